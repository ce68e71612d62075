//! PostgreSQL on Debian: `pg_ctlcluster` starts the server with only the variables of the cluster's
//! file `environment`.

use anyhow::{Context, bail};
use std::path::{Path, PathBuf};

/// The directory of the clusters' configuration.
pub(super) const FOLDER: &str = "/etc/postgresql";
/// The end of a line that `enable` has written.
const MARK: &str = "# fastsock enable";

/// A cluster: a PostgreSQL version and a name.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cluster {
    version: String,
    name: String,
}

impl Cluster {
    /// Parses a unit's name: `postgresql@15-main.service`.
    pub(super) fn of_unit(id: &str) -> Option<Self> {
        let instance = id.strip_prefix("postgresql@")?.strip_suffix(".service")?;
        let (version, name) = instance.split_once('-')?;
        let is_plain = |part: &str| !part.is_empty() && !part.contains('/') && !part.starts_with('.');
        (is_plain(version) && is_plain(name)).then(|| Self { version: version.to_owned(), name: name.to_owned() })
    }

    pub(super) fn unit(&self) -> String {
        format!("postgresql@{}-{}.service", self.version, self.name)
    }

    /// Returns its file of variables.
    pub(super) fn file(&self, folder: &Path) -> PathBuf {
        folder.join(&self.version).join(&self.name).join("environment")
    }
}

/// Returns the clusters of the host.
pub(super) fn all(folder: &Path) -> Vec<Cluster> {
    let names = |path: &Path| {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect::<Vec<_>>()
    };
    let mut clusters = Vec::new();
    for version in names(folder) {
        for name in names(&folder.join(&version)) {
            let cluster = Cluster { version: version.clone(), name };
            if cluster.file(folder).is_file() {
                clusters.push(cluster);
            }
        }
    }
    clusters.sort();
    clusters
}

/// Returns true if `enable` has added a line.
pub(super) fn is_ours(content: &str) -> bool {
    content.lines().any(|line| line.ends_with(MARK))
}

/// Returns the file's content with the library.
///
/// # Errors
/// The file cannot be read, or preloads something else.
pub(super) fn with(file: &Path, library: &Path) -> anyhow::Result<String> {
    let content = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let mut content = without(&content);
    if content.lines().any(|line| line.trim_start().starts_with("LD_PRELOAD")) {
        bail!("{} sets LD_PRELOAD: add {} there", file.display(), library.display());
    }
    if !content.is_empty() && !content.ends_with('\n') {
        content.push('\n');
    }
    Ok(content + &format!("LD_PRELOAD = '{}' {MARK}\n", library.display()))
}

/// Returns the content without what `enable` has added.
pub(super) fn without(content: &str) -> String {
    content.split_inclusive('\n').filter(|line| !line.trim_end().ends_with(MARK)).collect()
}
