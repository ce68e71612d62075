//! Checks `docs/rfc.md`: it has a row for each requirement of RFC 9293, each MUST has a test or a
//! reasoned exception, and every item and test that it names exists.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the cells of every table row, with the line's number.
fn rows(ledger: &str) -> impl Iterator<Item = (usize, Vec<&str>)> {
    ledger.lines().enumerate().filter_map(|(at, line)| {
        let cells = line.strip_prefix('|')?.strip_suffix('|')?;
        Some((at + 1, cells.split('|').map(str::trim).collect()))
    })
}

/// Returns the texts between backticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Returns why a reference is dangling. Texts between backticks that are neither scripts nor items
/// in sources are not references.
fn dangling(name: &str) -> Option<String> {
    if name.ends_with(".pkt") {
        let script = root().join("tests/packet").join(name);
        return (!script.is_file()).then(|| format!("no script {name}"));
    }
    let (path, item) = name.split_once("::").unwrap_or((name, ""));
    if !path.ends_with(".rs") {
        return None;
    }
    let below_core = root().join("crates/fs-core/src").join(path);
    let file = if below_core.is_file() { below_core } else { root().join(path) };
    if !file.is_file() {
        return Some(format!("no file {path}"));
    }
    if item.is_empty() || defines(&read(&file), item) {
        return None;
    }
    Some(format!("{path} does not define {item}"))
}

/// Returns true if `source` has a function, type, constant or field of that name.
fn defines(source: &str, item: &str) -> bool {
    let declares = |word: &str| {
        let needle = format!("{word} {item}");
        source.match_indices(&needle).any(|(at, _)| {
            let after = source[at + needle.len()..].chars().next();
            !after.is_some_and(|c| c.is_alphanumeric() || c == '_')
        })
    };
    ["fn", "struct", "enum", "const", "static", "trait", "type", "pub"].iter().any(|word| declares(word))
}

#[test]
fn references_exist() {
    let ledger = read(&root().join("docs/rfc.md"));
    let mut wrong = Vec::new();
    let mut right = 0;
    for (line, cells) in rows(&ledger) {
        for name in cells.iter().flat_map(|cell| quoted(cell)) {
            match dangling(name) {
                Some(what) => wrong.push(format!("docs/rfc.md:{line}: {what}")),
                None => right += 1,
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {} references lead nowhere:\n{}",
        wrong.len(),
        wrong.len() + right,
        wrong.join("\n")
    );
    assert!(right > 300, "only {right} references were found: has the ledger's form changed?");
}

#[test]
fn requirements_have_rows() {
    let ledger = read(&root().join("docs/rfc.md"));
    let ids = read(&root().join("tests/packet/rfc9293-ids.txt"));
    let mut found: BTreeMap<&str, (usize, Vec<&str>)> = BTreeMap::new();
    for (line, cells) in rows(&ledger) {
        if cells.len() == 6 && cells[0].contains(|c: char| c.is_ascii_digit()) {
            let id = cells[0];
            assert!(found.insert(id, (line, cells)).is_none(), "docs/rfc.md:{line}: {id} has two rows");
        }
    }
    let mut missing = Vec::new();
    let mut count = 0;
    for (id, level) in ids.lines().filter_map(|line| line.split_once('\t')) {
        count += 1;
        let Some((line, cells)) = found.get(id) else {
            missing.push(format!("{id} has no row"));
            continue;
        };
        if cells[1] != level {
            missing.push(format!("docs/rfc.md:{line}: {id} is a {level}, not a {}", cells[1]));
        }
        let shown = cells[5];
        let tested = quoted(shown).any(|name| name.ends_with(".pkt") || name.contains(".rs"));
        if level.starts_with("MUST") && !tested && !shown.contains("exception:") {
            missing.push(format!("docs/rfc.md:{line}: {id} has neither a test nor an exception"));
        }
    }
    assert_eq!(count, 119, "the list of requirements has changed its length");
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn check_detects_errors() {
    assert!(dangling("no/such.pkt").is_some());
    assert!(dangling("no/such.rs::thing").is_some());
    assert!(dangling("stack/tick.rs::no_such_function").is_some());
    assert!(dangling("stack/tick.rs::tick").is_none());
    assert!(dangling("nodelay").is_none());
    assert!(!defines("fn tickle() {}", "tick"));
}

#[test]
fn scripts_state_their_purpose() {
    let mut silent = Vec::new();
    let mut folders = vec![root().join("tests/packet")];
    let mut count = 0;
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        for path in entries.map(|entry| entry.expect("an entry of a folder").path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ext| ext == "pkt") {
                count += 1;
                if !read(&path).trim_start().starts_with("//") {
                    silent.push(path.display().to_string());
                }
            }
        }
    }
    assert!(count >= 250, "only {count} scripts");
    assert!(silent.is_empty(), "scripts without a comment at their head:\n{}", silent.join("\n"));
}
