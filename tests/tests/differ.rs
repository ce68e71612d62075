//! Random programs of socket calls observe the same under preload as on the kernel (`make differ`
//! runs more of them).

use anyhow::{Context, Result, ensure};
use fs_tests::Lab;
use fs_tests::apps::{built, workspace};
use std::process::Command;

/// Runs the judge. Returns its output, and whether nothing differed.
fn judge(arguments: &[&str]) -> Result<(String, bool)> {
    let output = Command::new(built("fs-differ")?)
        .args(["run", "--raw", "--jobs", "2", "--fastsock"])
        .arg(built("fastsock")?)
        .arg("--allowed")
        .arg(workspace().join("tests/differ/allowed.txt"))
        .arg("--not-yet")
        .arg(workspace().join("tests/differ/not-yet.txt"))
        .args(arguments)
        .output()
        .context("fs-differ")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    print!("{text}");
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(matches!(output.status.code(), Some(0 | 1)), "fs-differ ends with {}: {errors}", output.status);
    Ok((text, output.status.success()))
}

/// A difference between two runs on the kernel would be an error of the judge.
#[test]
fn judge_finds_no_difference_between_two_kernel_runs() -> Result<()> {
    if Lab::up(&[])?.is_none() {
        return Ok(());
    }
    let (text, same) = judge(&["--kernel", "--seed", "1", "--programs", "500"])?;
    ensure!(same, "the kernel differs from itself:\n{text}");
    Ok(())
}

/// The programs of `tests/differ`, then those of fixed seeds, except those in `not-yet.txt`.
#[test]
fn known_programs_observe_the_same_as_on_the_kernel() -> Result<()> {
    if Lab::up(&[])?.is_none() {
        return Ok(());
    }
    let corpus = workspace().join("tests/differ");
    let (text, same) = judge(&[&corpus.to_string_lossy(), "--seed", "1", "--programs", "500"])?;
    ensure!(same, "programs differ:\n{text}");
    Ok(())
}
