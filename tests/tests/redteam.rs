//! Attacks by unprivileged users (`cargo xtask redteam`): what held is held, and what is known to work is known.

// runner: beside others

use anyhow::{Context, Result, ensure};
use fs_tests::apps::{programs_dir, workspace};
use std::process::Command;

/// Runs the attacks; what it said.
fn redteam(arguments: &[&str]) -> Result<String> {
    let lab = std::env::var("FS_LAB").unwrap_or_else(|_| format!("fst{}", std::process::id()));
    let mut command = Command::new("/usr/bin/python3");
    let output = command
        .arg(workspace().join("tests/redteam/run.py"))
        .args(arguments)
        .env("FS_LAB", lab + "-red")
        .env("FS_PROGRAMS", programs_dir())
        .output()
        .context("cannot run tests/redteam/run.py")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{said}{}", String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "redteam {}: {}", arguments.join(" "), output.status);
    Ok(said)
}

#[test]
fn attacks_are_held_or_known() -> Result<()> {
    let said = redteam(&[])?;
    ensure!(said.contains("skipped: ") || said.contains(" attacks, "), "nothing was played");
    Ok(())
}

/// Sets of nftables' rules by chance: where the kernel stops an open connection of its own, or refuses or leads elsewhere a new one, so it
/// is with ours.
#[test]
fn random_rules_hold() -> Result<()> {
    let said = redteam(&["--rules", "100000", "--seconds", "20"])?;
    ensure!(said.contains("skipped: ") || said.contains(" sets of rules from seed "), "nothing was played");
    Ok(())
}

/// Users, namespaces, addresses, devices, rules and options by chance: a connection is made, refused and seen as on the kernel.
#[test]
fn random_worlds_are_as_on_the_kernel() -> Result<()> {
    let said = redteam(&["--worlds", "100000", "--seconds", "25"])?;
    ensure!(said.contains("skipped: ") || said.contains(" worlds from seed "), "nothing was played");
    Ok(())
}
