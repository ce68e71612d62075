//! Shared code of this package's programs: command lines, rounds in turns, rows with a peer and a
//! goal.

pub mod figures;
pub mod parts;
pub mod plot;
pub mod report;

use anyhow::Result;
use std::process::ExitCode;

/// Runs a program. `--help` prints the usage. An error is one line, with its own exit status (2); a
/// missed goal has status 1. `body` returns whether all succeeded.
pub fn run(usage: &str, body: impl FnOnce(Vec<String>) -> Result<bool>) -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "-h" || word == "--help") {
        println!("{usage}");
        return ExitCode::SUCCESS;
    }
    match body(words) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let program = std::env::args().next().unwrap_or_default();
            let name = program.rsplit('/').next().unwrap_or_default();
            eprintln!("{name}: {error:#}");
            ExitCode::from(2)
        }
    }
}
