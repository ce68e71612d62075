//! Changes of a running program's environment (`cargo xtask proof changes`).

use anyhow::{Context, Result, ensure};
use fs_tests::apps::built;
use fs_tests::lab::prefix;
use std::process::Command;

/// Random changes of links, addresses, routes, neighbours, link addresses and queues: connections
/// lose nothing, and none is reset.
#[test]
fn random_changes_end_no_connection() -> Result<()> {
    let mut command = Command::new(built("changes")?);
    // Always the same seeds. For others: `cargo run --release -p fs-tests --bin changes --
    // --seconds N`.
    command.args(["--seed", "1", "--seconds", "600", "--rounds", "2"]).env("FS_LAB", prefix() + "-changes");
    let output = command.output().context("cannot run changes")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{said}{}", String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "changes: {}", output.status);
    ensure!(said.contains("skipped: ") || said.contains(" rounds with "), "nothing was played");
    Ok(())
}
