//! Attacks by unprivileged users (`lab/redteam`): what held is held, and what is known to work is known.

use anyhow::{Context, Result, ensure};
use fs_tests::apps::workspace;
use std::process::Command;

#[test]
fn attacks_are_held_or_known() -> Result<()> {
    let lab = std::env::var("FS_LAB").unwrap_or_else(|_| format!("fst{}", std::process::id()));
    let output = Command::new(workspace().join("lab/redteam"))
        .env("FS_LAB", lab + "-red")
        .output()
        .context("cannot run lab/redteam")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{said}{}", String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "lab/redteam: {}", output.status);
    ensure!(said.contains("skipped: ") || said.contains(" attacks, "), "nothing was played");
    Ok(())
}
