//! The functions and tests that `docs/SHM.md` names for its invariants exist.

use std::path::Path;

#[test]
fn names_of_the_invariants_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/SHM.md")).unwrap();
    let section =
        page.split("\n## ").find(|section| section.starts_with("Who may see a connection")).expect("the section");
    let rows: Vec<&str> = section.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| #")).collect();
    let mut names = 0;
    for (i, row) in rows.iter().enumerate() {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 5, "{row}");
        assert_eq!(cells[0], (i + 1).to_string(), "numbered in order");
        for name in row.split('`').filter(|word| word.contains("::")) {
            let (file, function) = name.split_once("::").unwrap();
            let text = std::fs::read_to_string(root.join("crates").join(file))
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            // Defined, or in a list from which a macro makes tests.
            let is_there = |line: &str| {
                let defined = line.split_once("fn ").and_then(|(_, rest)| rest.strip_prefix(function));
                line.trim() == function || defined.is_some_and(|rest| rest.starts_with(['(', '<']))
            };
            assert!(text.lines().any(is_there), "invariant {}: {name} is gone", i + 1);
            names += 1;
        }
        assert!(cells[3].contains("::"), "invariant {} is kept by nothing", i + 1);
        for rule in cells[4].split('`').filter(|word| word.contains('_') && !word.contains("::")) {
            let models = [include_str!("../src/accept.rs"), include_str!("../src/handover.rs")];
            let is_there = models.iter().any(|model| model.contains(&format!("pub {rule}: bool")));
            assert!(is_there, "invariant {}: no rule {rule}", i + 1);
        }
    }
    assert!(rows.len() >= 19 && names >= 50, "{} rows, {names} names", rows.len());
}
