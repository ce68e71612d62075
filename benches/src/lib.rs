//! What the programs of this package share: their command lines' manners, rounds in turns, rows with a peer and a goal.

pub mod figures;
pub mod parts;
pub mod plot;
pub mod report;

use anyhow::Result;
use std::process::ExitCode;

/// Runs a program: `--help` prints how it is used, an error is one line, with a status of its own (2) beside that of
/// a goal missed (1). `body` answers whether all is well.
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
