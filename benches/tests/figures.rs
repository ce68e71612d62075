//! The figures of README.md and docs/PERFORMANCE.md are those of benches/results.

use std::process::Command;

#[test]
fn pages_and_charts_match_kept_runs() {
    let output = Command::new(env!("CARGO_BIN_EXE_figures")).arg("--check").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
