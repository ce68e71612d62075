//! Runs the tests of cargo's test programs, each in a process of its own: with a bound on its time, and beside others where it may.
//!
//! A test's source says what it needs in lines of its own, anywhere in the file:
//!
//! - `// runner: beside others`: it may run at the same time as others that say so (what measures time or CPU must not);
//! - `// runner: waits`: the same, and it takes next to no CPU: one of these runs beside as many others as may run at once;
//! - `// runner: alone`: it never does, whatever the run allows;
//! - `// runner: timeout 900`: seconds after which it is ended and has failed.
//!
//! There are no retries: a test that fails now and then has failed.

mod command;
mod programs;
mod report;
mod schedule;

use anyhow::{Context, Result};
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Options of the program; what follows `--` is for `cargo test`.
#[derive(Parser)]
#[command(
    about = "Runs cargo's tests, each in a process of its own; prints what failed, writes a log and a JUnit file"
)]
struct Options {
    /// Names the run's files: NAME.log, NAME.xml and NAME.counts.
    #[arg(long)]
    name: String,
    /// The folder of these files.
    #[arg(long)]
    out: PathBuf,
    /// How many tests run at once, of those that may.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// All tests may run beside others, but for those whose source says `alone`.
    #[arg(long)]
    together: bool,
    /// Seconds for each test whose source says nothing else.
    #[arg(long, default_value_t = 300)]
    timeout: u64,
    /// Only tests whose "program::test" contains one of these.
    #[arg(long)]
    only: Vec<String>,
    /// A process group that is stopped while a test runs that runs alone: other work, which would disturb what it measures.
    #[arg(long)]
    stop: Option<i32>,
    /// Arguments of `cargo test`.
    #[arg(last = true)]
    cargo: Vec<String>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("fs-runner: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(options: &Options) -> Result<bool> {
    std::fs::create_dir_all(&options.out).with_context(|| format!("cannot make {}", options.out.display()))?;
    let mut report = report::Report::new(&options.name, &options.out)?;
    let built = programs::build(&options.cargo, &mut report)?;
    let mut tests = Vec::new();
    for program in built {
        match program.tests(Duration::from_secs(options.timeout), options.together) {
            Ok(found) => tests.extend(found),
            Err(error) => report.broken(&program.name, &format!("{error:#}"))?,
        }
    }
    if !options.only.is_empty() {
        tests.retain(|test| options.only.iter().any(|part| test.name().contains(part.as_str())));
    }
    schedule::run(tests, options.jobs.max(1), options.stop, &mut report)?;
    if options.only.is_empty() && programs::has_doctests(&options.cargo) {
        programs::doctests(&options.cargo, &mut report)?;
    }
    report.end()
}
