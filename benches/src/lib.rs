//! Shared code of this package's programs: command lines, rounds in turns, rows with a peer and a
//! goal.

pub mod figures;
pub mod parts;
pub mod plot;
pub mod report;

use anyhow::Result;
use clap::Parser;
use std::process::ExitCode;

/// Parses the arguments of a program and runs it. `body` returns whether all succeeded.
pub fn run<A: Parser>(body: impl FnOnce(A) -> Result<bool>) -> ExitCode {
    exit_code(body(A::parse()))
}

/// Returns the exit status of a program: 0, or 1 for a missed goal. Prints an error in one line,
/// and returns 2, as for wrong arguments.
pub fn exit_code(result: Result<bool>) -> ExitCode {
    match result {
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
