//! The imports between a crate's modules: from `use` statements and from paths in code.

use super::files::without_tests;
use std::collections::{BTreeMap, BTreeSet};

/// Modules, and the modules that each imports from. Names are paths in the crate, as
/// `stack::calls`.
#[derive(Default, Debug)]
pub(crate) struct Imports(pub(crate) BTreeMap<String, BTreeSet<String>>);

impl Imports {
    /// Reads the imports of a crate's sources (path in `src`, text), see
    /// [`Files::of_crate`](super::Files::of_crate).
    pub(crate) fn of(sources: &[(&str, &str)]) -> Self {
        let is_root = |file: &str| matches!(file, "lib.rs" | "main.rs");
        let named = named_paths(sources);
        let module = |file: &str| named.get(file).cloned().unwrap_or_else(|| module(file));
        let modules: BTreeSet<String> =
            sources.iter().filter(|(file, _)| !is_root(file)).map(|(file, _)| module(file)).collect();
        // Names that the crate's root exports: importing one imports from its module.
        let mut exported = BTreeMap::new();
        for (_, text) in sources.iter().filter(|(file, _)| is_root(file)) {
            for path in paths("", text) {
                let path = path.trim_start_matches("crate::").trim_start_matches("self::");
                if let (Some(module), Some(name)) = (longest(path, &modules), path.rsplit("::").next())
                    && module != name
                {
                    exported.insert(name.to_owned(), module.to_owned());
                }
            }
        }
        let mut imports = Self::default();
        for (file, text) in sources.iter().filter(|(file, _)| !is_root(file)) {
            let from = module(file);
            let to = paths(&from, text).into_iter().filter_map(|path| {
                let name = path.split("::").next().unwrap_or_default();
                longest(&path, &modules).map(str::to_owned).or_else(|| exported.get(name).cloned())
            });
            let to: BTreeSet<String> = to.filter(|to| *to != from).collect();
            // Two files may be one module, each in another configuration.
            imports.0.entry(from).or_default().extend(to);
        }
        imports
    }

    /// Returns each import: the importing module and the imported one.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().flat_map(|(from, to)| to.iter().map(move |to| (from.as_str(), to.as_str())))
    }
}

/// Returns modules whose file has another name, by file: `#[path = "table_unsafe.rs"] mod table`.
fn named_paths(sources: &[(&str, &str)]) -> BTreeMap<String, String> {
    let mut named = BTreeMap::new();
    for (file, text) in sources {
        let folder = file.rfind('/').map_or("", |end| &file[..=end]);
        let parent = match module(file) {
            root if matches!(root.as_str(), "lib" | "main") => String::new(),
            parent => parent + "::",
        };
        let mut path = None;
        for line in without_tests(text).map(str::trim) {
            if let Some(rest) = line.strip_prefix("#[path = \"") {
                path = rest.split('"').next();
            } else if let Some(path) = path
                && let Some((before, name)) = line.trim_end_matches(';').rsplit_once("mod ")
                && (before.is_empty() || before.starts_with("pub"))
            {
                named.insert(format!("{folder}{path}"), format!("{parent}{name}"));
            }
            if !line.starts_with("#[") {
                path = None;
            }
        }
    }
    named
}

/// Returns the module of a file: `stack/mod.rs` is `stack`.
fn module(file: &str) -> String {
    file.trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::")
}

/// Returns the longest prefix of `path` that is a module.
fn longest<'a>(path: &'a str, modules: &BTreeSet<String>) -> Option<&'a str> {
    let mut path = path;
    while !modules.contains(path) {
        path = path.rsplit_once("::")?.0;
    }
    Some(path)
}

/// Returns every path in a file's code, from the crate's root.
fn paths(from: &str, text: &str) -> Vec<String> {
    let code: String = without_tests(text).map(|line| line.split("//").next().unwrap_or_default()).fold(
        String::new(),
        |mut code, line| {
            code += line;
            code.push('\n');
            code
        },
    );
    let mut found = Vec::new();
    for statement in code.split(';') {
        let (before, tree) = match import(statement) {
            Some(at) => (&statement[..at], Some(&statement[at + "use".len()..])),
            None => (statement, None),
        };
        if let Some(tree) = tree {
            leaves("", tree, &mut found);
        }
        written_out(before, &mut found);
    }
    found.iter().filter_map(|path| from_root(from, path)).collect()
}

/// Returns the position of the word `use` in a statement.
fn import(statement: &str) -> Option<usize> {
    let mut after = 0;
    while let Some(at) = statement[after..].find("use").map(|at| after + at) {
        let is_word = statement[..at].chars().next_back().is_none_or(|c| c.is_whitespace() || c == '}')
            && statement[at + 3..].starts_with(char::is_whitespace);
        if is_word {
            return Some(at);
        }
        after = at + 3;
    }
    None
}

/// Collects each path of a tree of imports.
fn leaves(prefix: &str, tree: &str, found: &mut Vec<String>) {
    let Some((head, rest)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default();
        found.push(format!("{prefix}{path}").split_whitespace().collect());
        return;
    };
    let prefix = format!("{prefix}{head}");
    let (mut depth, mut item) = (0, String::new());
    for c in rest.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                leaves(&prefix, &item, found);
                item.clear();
                continue;
            }
            _ => {}
        }
        item.push(c);
    }
    if !item.trim().is_empty() {
        leaves(&prefix, &item, found);
    }
}

/// Collects paths in expressions and types: `crate::time::Instant`.
fn written_out(code: &str, found: &mut Vec<String>) {
    for word in code.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')) {
        if word.contains("::") && word.starts_with(|c: char| c.is_lowercase() || c == '_') {
            found.push(word.to_owned());
        }
    }
}

/// Converts `path`, used in the module `from`, to a path from the crate's root.
fn from_root(from: &str, path: &str) -> Option<String> {
    if let Some(path) = path.strip_prefix("crate::") {
        return Some(path.to_owned());
    }
    let (mut base, mut path) = (from, path);
    while let Some(rest) = path.strip_prefix("super::") {
        base = base.rsplit_once("::").map_or("", |(parent, _)| parent);
        path = rest;
    }
    let path = path.trim_start_matches("self::");
    if path.is_empty() {
        return None;
    }
    Some(if base.is_empty() { path.to_owned() } else { format!("{base}::{path}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imports(sources: &[(&str, &str)]) -> Vec<String> {
        Imports::of(sources).pairs().map(|(from, to)| format!("{from} -> {to}")).collect()
    }

    #[test]
    fn reads_trees_of_imports() {
        let a = "use crate::{\n    b::{self, Bee},\n    c::d::{Dee, other as another},\n};\nuse std::time::Instant;\n";
        let sources = [
            ("a.rs", a),
            ("b.rs", ""),
            ("c/mod.rs", "mod d;"),
            ("c/d.rs", "use super::See;\npub(crate) use crate::a;"),
        ];
        assert_eq!(imports(&sources), ["a -> b", "a -> c::d", "c::d -> a", "c::d -> c"]);
    }

    #[test]
    fn reads_paths_in_code() {
        let sources = [
            ("a.rs", "fn f() -> crate::b::Bee { self::c::g() }\n// crate::d::no\n"),
            ("a/c.rs", ""),
            ("b.rs", ""),
            ("d.rs", ""),
        ];
        assert_eq!(imports(&sources), ["a -> a::c", "a -> b"]);
    }

    #[test]
    fn follows_names_that_the_root_exports() {
        let sources = [("lib.rs", "mod b;\npub use b::Bee;\n"), ("a.rs", "use crate::Bee;"), ("b.rs", "")];
        assert_eq!(imports(&sources), ["a -> b"]);
    }

    #[test]
    fn follows_a_module_to_its_file() {
        let root = "#[cfg(unix)]\n#[path = \"b_unsafe.rs\"]\npub mod b;\nmod a;\n";
        let sources = [
            ("lib.rs", root),
            ("a.rs", "use crate::b::Bee;"),
            ("b_unsafe.rs", "use crate::a::X;"),
            ("c/mod.rs", "#[path = \"d_unsafe.rs\"]\nmod d;\n"),
            ("c/d_unsafe.rs", "use crate::b;"),
        ];
        assert_eq!(imports(&sources), ["a -> b", "b -> a", "c::d -> b"]);
    }

    #[test]
    fn leaves_tests_out() {
        let a = "fn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::b;\n}\n";
        assert_eq!(imports(&[("a.rs", a), ("b.rs", "")]), [""; 0]);
        assert_eq!(imports(&[("a.rs", &a.replace("mod tests", "pub(crate) mod tests")), ("b.rs", "")]), [""; 0]);
    }

    #[test]
    fn takes_a_word_in_a_string_for_no_path() {
        assert_eq!(imports(&[("a/b.rs", "fn f() -> &str { \"super::\" }\n"), ("a/mod.rs", "")]), [""; 0]);
    }
}
