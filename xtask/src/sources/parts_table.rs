//! The parts of a crate: files import only from parts that the table in ARCHITECTURE.md allows for
//! their part.

use super::files::{Files, without_tests};
use super::imports::Imports;
use std::collections::{BTreeMap, BTreeSet};

const PAGE: &str = "ARCHITECTURE.md";
/// Crates with a table of parts, and the heading above it.
const TABLES: [(&str, &str); 3] =
    [("fs-core", "## Parts of the engine"), ("fs-xdp", "## Parts of the links"), ("fs-rt", "## Parts of the runtime")];

/// Returns violations of the tables, and files that are in no part.
pub(super) fn broken(files: &Files) -> Vec<String> {
    TABLES.into_iter().flat_map(|(name, heading)| broken_in(files, name, heading)).collect()
}

fn broken_in(files: &Files, name: &str, heading: &str) -> Vec<String> {
    let sources = files.of_crate(name);
    let parts = Parts::read(files.text(PAGE).unwrap_or_default(), heading);
    if parts.of.is_empty() {
        return vec![format!("{PAGE}: no table below '{heading}'")];
    }
    let imports = Imports::of(&sources);
    let mut broken = parts.upwards();
    let outside: BTreeSet<&str> =
        imports.0.keys().map(|module| top(module)).filter(|top| !parts.of.contains_key(*top)).collect();
    broken.extend(outside.iter().map(|top| format!("{PAGE}: {name}/src/{top} is in no part")));
    for (from, to) in imports.pairs() {
        if let (Some(user), Some(used)) = (parts.of.get(top(from)), parts.of.get(top(to)))
            && user != used
            && !parts.may.contains(&(user.clone(), used.clone()))
        {
            broken.push(format!("{name}: {from} imports {to}: {user} may not use {used} ({PAGE})"));
        }
    }
    // A name imported from the crate's root hides the file that defines it.
    for (file, text) in sources.iter().filter(|(file, _)| *file != "lib.rs") {
        for (number, line) in (1..).zip(without_tests(text)) {
            let code = line.split("//").next().unwrap_or_default();
            let names_root = code.split("crate::").skip(1).any(|rest| rest.starts_with(|c: char| c.is_uppercase()));
            if names_root || line.starts_with("use crate::{") {
                broken.push(format!("{name}: {file}:{number}: imports from the root of the crate: {}", line.trim()));
            }
        }
    }
    broken
}

fn top(module: &str) -> &str {
    module.split("::").next().unwrap_or_default()
}

/// The table: | part | its files and folders | parts it may use | what it is |
#[derive(Default)]
struct Parts {
    /// The parts in the order of the rows.
    order: Vec<String>,
    /// The part of each file or folder.
    of: BTreeMap<String, String>,
    /// Part, and one that it may use.
    may: BTreeSet<(String, String)>,
}

impl Parts {
    fn read(page: &str, heading: &str) -> Self {
        let mut parts = Self::default();
        let lines = page.lines().skip_while(|line| *line != heading).skip(1);
        for line in lines.take_while(|line| !line.starts_with("## ")) {
            let cells: Vec<&str> = line.split('|').collect();
            let &[_, part, files, may, _, _] = &cells[..] else { continue };
            if !files.contains('`') {
                continue;
            }
            let part = words(part).next().unwrap_or_default();
            parts.order.push(part.clone());
            parts.may.extend(words(may).map(|used| (part.clone(), used)));
            parts.of.extend(
                words(files).map(|file| (file.trim_end_matches('/').trim_end_matches(".rs").to_owned(), part.clone())),
            );
        }
        parts
    }

    /// Returns parts that may use a part which is not in a row above them: parts form no circle.
    fn upwards(&self) -> Vec<String> {
        let row = |part: &String| self.order.iter().position(|other| other == part);
        let upwards = self.may.iter().filter(|(user, used)| row(used).is_none_or(|used| Some(used) >= row(user)));
        upwards.map(|(user, used)| format!("{PAGE}: {user} may use {used}, which is in no row above")).collect()
    }
}

/// The words of a cell.
fn words(cell: &str) -> impl Iterator<Item = String> {
    cell.split(',').map(|word| word.trim().trim_matches('`').to_owned()).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "## Parts of the engine\n\n| part | files and folders | may use | what |\n|---|---|---|---|\n\
        | base | `time.rs`, `frame.rs` | | words |\n| tcb | `tcb/` | base | a connection |\n\n## Next\n";

    fn of(sources: &[(&str, &str)]) -> Vec<String> {
        let mut files = vec![(PAGE, TABLE)];
        files.extend(sources);
        broken_in(&Files::of(&files), "fs-core", "## Parts of the engine")
    }

    #[test]
    fn allows_imports_of_the_table() {
        let tcb = ("crates/fs-core/src/tcb/mod.rs", "use crate::time::Instant;\n");
        assert!(of(&[tcb, ("crates/fs-core/src/time.rs", "use crate::frame::Frame;\n")]).is_empty());
    }

    #[test]
    fn refuses_other_imports_and_files_without_a_part() {
        let broken = of(&[
            ("crates/fs-core/src/time.rs", "use crate::tcb::Tcb;\n"),
            ("crates/fs-core/src/tcb/mod.rs", ""),
            ("crates/fs-core/src/other.rs", ""),
        ]);
        assert_eq!(
            broken,
            [
                "ARCHITECTURE.md: fs-core/src/other is in no part",
                "fs-core: time imports tcb: base may not use tcb (ARCHITECTURE.md)"
            ]
        );
    }

    #[test]
    fn refuses_names_of_the_root() {
        let broken = of(&[("crates/fs-core/src/frame.rs", "use crate::time::Instant;\nuse crate::Error;\n")]);
        assert_eq!(broken, ["fs-core: frame.rs:2: imports from the root of the crate: use crate::Error;"]);
    }

    #[test]
    fn requires_the_tables() {
        assert_eq!(broken(&Files::of(&[]))[0], "ARCHITECTURE.md: no table below '## Parts of the engine'");
    }

    #[test]
    fn refuses_a_table_with_a_circle() {
        let page = "## P\n| a | `a.rs` | b | |\n| b | `b.rs` | a, c | |\n";
        assert_eq!(
            Parts::read(page, "## P").upwards(),
            [
                "ARCHITECTURE.md: a may use b, which is in no row above",
                "ARCHITECTURE.md: b may use c, which is in no row above"
            ]
        );
    }
}
