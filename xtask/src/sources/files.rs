//! The text files of the tree.

use std::collections::BTreeMap;
use std::path::Path;

/// The path from the root of the tree, and the text, of each file.
#[derive(Default)]
pub(crate) struct Files(BTreeMap<String, String>);

impl Files {
    /// Reads all text files below `root`, except what cargo, git and tools create.
    pub(crate) fn read(root: &Path) -> Result<Self, String> {
        let mut files = Self::default();
        files.read_folder(root, "")?;
        Ok(files)
    }

    fn read_folder(&mut self, root: &Path, inside: &str) -> Result<(), String> {
        let folder = root.join(inside);
        let entries = std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        for entry in entries {
            let entry = entry.map_err(|error| format!("{}: {error}", folder.display()))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = if inside.is_empty() { name.clone() } else { format!("{inside}/{name}") };
            let kind = entry.file_type().map_err(|error| format!("{path}: {error}"))?;
            if kind.is_dir() {
                // `.git` is a file in a worktree, and no rule applies to it.
                if name != ".git" && !name.starts_with("target") && name != "artifacts" {
                    self.read_folder(root, &path)?;
                }
            } else if kind.is_file() {
                // Objects, corpora and pictures are not text.
                if let Ok(text) = std::fs::read_to_string(entry.path()) {
                    self.0.insert(path, text);
                }
            }
        }
        Ok(())
    }

    /// Creates files for a rule's test.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        Self(files.iter().map(|&(path, text)| (path.into(), text.into())).collect())
    }

    /// Returns the number of files.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns path and text of each file, in the order of paths.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Returns the text of a file.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.0.get(path).map(String::as_str)
    }

    /// Returns true if the path is a file, or a folder with a file in it. The empty path is the
    /// root.
    pub(crate) fn has(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        path.is_empty()
            || self.0.contains_key(path)
            || self.0.range(folder.clone()..).next().is_some_and(|(next, _)| next.starts_with(&folder))
    }

    /// Returns Rust sources that are compiled into the crate `crates/NAME`, or into one elsewhere
    /// (`benches`, `benches/tools/echo`), without tests.
    pub(crate) fn of_crate<'a>(&'a self, name: &str) -> Vec<(&'a str, &'a str)> {
        let inside = format!("crates/{name}/src/");
        let folder = if self.has(inside.trim_end_matches('/')) { inside } else { format!("{name}/src/") };
        let is_test = |file: &str| file.split('/').any(|part| part == "tests" || part == "tests.rs");
        self.iter()
            .filter_map(|(path, text)| Some((path.strip_prefix(&folder)?, text)))
            .filter(|(file, _)| file.ends_with(".rs") && !is_test(file))
            .collect()
    }
}

/// Returns `text` without its last test module, and without lines that only tests use.
pub(crate) fn without_tests(text: &str) -> impl Iterator<Item = &str> {
    let lines: Vec<&str> = text.lines().collect();
    let is_tests =
        |line: &str| line.trim_start_matches("pub(crate) ").trim_start_matches("pub(super) ").starts_with("mod tests");
    let tests = lines.windows(2).position(|pair| pair[0] == "#[cfg(test)]" && is_tests(pair[1]));
    let end = tests.unwrap_or(lines.len());
    lines.into_iter().take(end)
}
