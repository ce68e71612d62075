//! Packages every crate for crates.io (those without `publish = false`) as cargo would upload it.
//! Warnings are failures.

use super::commands::all;
use crate::part::Outcome;
use crate::run::{Run, root};
use crate::tools::cargo;

/// Returns the names of the published crates.
pub(super) fn published() -> Vec<String> {
    let mut names = Vec::new();
    for folder in std::fs::read_dir(root().join("crates")).into_iter().flatten().flatten() {
        let manifest = std::fs::read_to_string(folder.path().join("Cargo.toml")).unwrap_or_default();
        if !manifest.is_empty() && !manifest.lines().any(|line| line.starts_with("publish")) {
            names.push(folder.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    names
}

/// Packages them without building them again.
pub(super) fn package(run: &mut Run) -> Outcome {
    let crates = published();
    let mut command = cargo(&["package", "--no-verify", "--allow-dirty"]);
    command.args(crates.iter().flat_map(|name| ["-p", name]));
    let outcome = all(run, [command], 1800);
    let log = std::fs::read_to_string(run.log()).unwrap_or_default();
    let packaged = log.lines().filter(|line| line.trim_start().starts_with("Packaged ")).count();
    if outcome.is_good() && (packaged != crates.len() || log.lines().any(|line| line.starts_with("warning"))) {
        run.note(&format!("{packaged} crates were packaged of {}, or cargo warned", crates.len()));
        return Outcome::one(run.name(), false);
    }
    outcome
}
