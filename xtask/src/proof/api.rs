//! Checks whether the published crates break their users: cargo-semver-checks, against the last
//! release, or else against the commit of the last kept run of this part (docs/PROOF-RUN.md).

use super::package::published;
use super::table::PAGE;
use crate::part::Outcome;
use crate::run::{Run, root, target};
use crate::tools::{cargo, output_of};
use std::process::Command;

/// Installs the tool into a folder of target/tools, and runs it. The log lists breaking changes.
pub(super) fn public_api(run: &mut Run) -> Outcome {
    let Some(baseline) = baseline() else {
        run.note("skipped: no release and no kept run of this part to compare with");
        return Outcome::skipped();
    };
    let tools = target().join("tools/cargo-semver-checks");
    let program = tools.join("bin/cargo-semver-checks");
    if !program.exists()
        && !run.succeeds(cargo(&["install", "--locked", "--root"]).arg(&tools).arg("cargo-semver-checks"), 3600)
    {
        run.note("skipped: cargo-semver-checks cannot be installed from the registry");
        return Outcome::skipped();
    }
    let mut command = Command::new(program);
    command.args(["semver-checks", "--baseline-rev", &baseline]);
    command.args(published().iter().filter(|name| has_library(name)).flat_map(|name| ["-p", name]));
    let passed = run.succeeds(&mut command, 7200);
    Outcome::one(&format!("breaking changes since {baseline}"), passed)
}

/// Programs and the C library have no items to compare.
fn has_library(name: &str) -> bool {
    let manifest = std::fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).unwrap_or_default();
    root().join("crates").join(name).join("src/lib.rs").exists() && !manifest.contains("cdylib")
}

fn baseline() -> Option<String> {
    let tag = output_of(Command::new("git").args(["describe", "--tags", "--abbrev=0", "--match", "v*"]));
    tag.map(|tag| tag.trim().to_owned()).or_else(|| kept(&std::fs::read_to_string(root().join(PAGE)).ok()?))
}

/// Returns the commit of this part's row in a kept table.
fn kept(page: &str) -> Option<String> {
    let row = page.lines().find(|line| line.starts_with("| public-api |"))?;
    let commit = row.split('|').nth(3)?.trim();
    (!commit.is_empty() && !commit.ends_with('+')).then(|| commit.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compares_with_the_last_kept_run() {
        let page = "| part | what | commit |\n| public-api | breaks nobody | abc123 | 2026-01-02 | 7 | passed: 1 |\n";
        assert_eq!(kept(page).as_deref(), Some("abc123"));
        assert_eq!(kept(&page.replace("abc123", "abc123+")), None);
        assert_eq!(kept("| public-api | breaks nobody | | | | not run |\n"), None);
    }
}
