//! Attacks by unprivileged users (`cargo xtask redteam`): they fail, except those listed as known.

use anyhow::{Context, Result, ensure};
use fs_tests::apps::{programs_dir, workspace};
use fs_tests::lab::prefix;
use std::process::Command;

/// Runs the attacks and returns the output.
fn redteam(arguments: &[&str]) -> Result<String> {
    let mut command = Command::new("/usr/bin/python3");
    let output = command
        .arg(workspace().join("tests/redteam/run.py"))
        .args(arguments)
        .env("FS_LAB", prefix() + "-red")
        .env("FS_PROGRAMS", programs_dir())
        .output()
        .context("cannot run tests/redteam/run.py")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{said}{}", String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "redteam {}: {}", arguments.join(" "), output.status);
    Ok(said)
}

/// An attack of each kind.
#[test]
fn attack_of_each_kind_fails() -> Result<()> {
    let said = redteam(&[
        "namespace-takes-an-address",
        "port-is-closed-by-a-liar",
        "peer-address-of-another-host",
        "passed-socket-is-another",
        "side-of-the-peer",
        "listener-of-others-ends",
        "daemon-of-another-user",
        "worker-reads-a-session",
        "scribbling-client",
        "lock-of-the-receiver-is-held",
        "queue-without-end",
        "pages-for-reading",
        "output-rule-of-a-user",
        "landlock-at-connect",
        "name-with-an-escape",
    ])?;
    ensure!(said.contains("skipped: ") || said.contains(" attacks, "), "nothing was played");
    Ok(())
}

/// Rules and worlds of fixed seeds.
#[test]
fn rules_and_worlds_of_fixed_seeds_hold() -> Result<()> {
    for (arguments, sign) in [
        (["--rules", "20", "--seed", "1"], " sets of rules from seed "),
        (["--worlds", "40", "--seed", "1"], " worlds from seed "),
    ] {
        let said = redteam(&arguments)?;
        ensure!(said.contains("skipped: ") || said.contains(sign), "nothing was played");
    }
    Ok(())
}

#[test]
#[ignore = "long: make proof"]
fn attacks_fail_or_are_known() -> Result<()> {
    let said = redteam(&[])?;
    ensure!(said.contains("skipped: ") || said.contains(" attacks, "), "nothing was played");
    Ok(())
}

/// Random nftables rule sets: if the kernel stops an open connection of its own, or refuses or
/// redirects a new one, so do we.
#[test]
#[ignore = "long: make proof"]
fn random_rules_hold() -> Result<()> {
    let said = redteam(&["--rules", "100000", "--seconds", "20"])?;
    ensure!(said.contains("skipped: ") || said.contains(" sets of rules from seed "), "nothing was played");
    Ok(())
}

/// Users, namespaces, addresses, devices, rules and options by chance: a connection is made,
/// refused and seen as on the kernel.
#[test]
#[ignore = "long: make proof"]
fn random_worlds_equal_the_kernel() -> Result<()> {
    let said = redteam(&["--worlds", "100000", "--seconds", "25"])?;
    ensure!(said.contains("skipped: ") || said.contains(" worlds from seed "), "nothing was played");
    Ok(())
}
