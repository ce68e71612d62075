//! The `fastsock` program.

// They panic if the output is a full disk or a pipe that nobody reads.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod bench;
mod control;
mod counters;
mod devices;
mod docs;
mod doctor;
mod exposition;
mod program;
mod run;
mod service;
mod services;
#[path = "sigpipe_unsafe.rs"]
mod sigpipe;
mod ss;
mod stat;
mod up;
mod why;

use clap::{CommandFactory, Parser, Subcommand};
use std::io::Write;
use std::process::ExitCode;

/// Faster connections between unmodified programs of this host.
#[derive(Parser, Debug)]
#[command(name = "fastsock", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run the daemon in the foreground, until SIGTERM.
    Up(up::Args),
    /// Run a program with accelerated sockets; starts a daemon if none runs.
    Run(run::Args),
    /// Make services of systemd load the library.
    Enable(services::EnableArgs),
    /// Take back what `enable` has done.
    Disable(services::DisableArgs),
    /// List enabled services, and whether their processes have the library.
    Status(services::StatusArgs),
    /// List connections with a ring, and those that the kernel carries alone, with the reason.
    Ss(ss::Args),
    /// Tell why a service's connections are, or are not, accelerated.
    Why(why::Args),
    /// Print counters.
    Stat(stat::Args),
    /// Compare fastsock with the kernel on this machine, in a minute.
    Bench(bench::Args),
    /// List the programs on shared devices by their device pairs, with what the kernel has counted.
    Devices,
    /// Stop sharing devices: remove device pairs, leases and BPF programs. Connections over them end.
    Down,
    /// Check what this machine lacks, and print what to do.
    Doctor(doctor::Args),
    /// Print manual pages.
    Man(docs::ManArgs),
    /// Print completions for a shell.
    Completions(docs::CompletionsArgs),
    /// Start a daemon in the background, for `run`.
    #[command(hide = true)]
    Start(run::StartArgs),
    /// One of two processes that `bench` measures.
    #[command(hide = true)]
    BenchPair(bench::PairArgs),
}

/// Formats the error and its causes, each once.
fn said(error: &anyhow::Error) -> String {
    let mut said = String::new();
    for cause in error.chain().map(|cause| cause.to_string()) {
        if !said.contains(&cause) {
            said.push_str(if said.is_empty() { "" } else { ": " });
            said.push_str(&cause);
        }
    }
    said
}

/// Prints a line to standard error. A line that cannot be written, for example to a full disk, is
/// lost; `eprintln` would panic.
fn warn(line: std::fmt::Arguments<'_>) {
    let _unheard = writeln!(std::io::stderr(), "fastsock: {line}");
}

/// The exit status for an error in the configuration's text (EX_CONFIG of sysexits.h). The unit does not try again.
const WRONG_FILE: u8 = 78;

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Up(args) => up::up(args),
        Command::Run(args) => run::run(args),
        Command::Enable(args) => services::enable(args),
        Command::Disable(args) => services::disable(args),
        Command::Status(args) => services::status(args),
        Command::Ss(args) => ss::ss(args),
        Command::Why(args) => why::why(args),
        Command::Stat(args) => stat::stat(args),
        Command::Devices => devices::devices(),
        Command::Down => devices::down(),
        Command::Man(args) => docs::man(args, Args::command()),
        Command::Completions(args) => docs::completions(args, Args::command()),
        Command::Doctor(args) => doctor::doctor(args),
        Command::Bench(args) => bench::bench(args),
        Command::BenchPair(args) => bench::pair(args),
        Command::Start(args) => run::start_daemon(args),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            warn(format_args!("{}", said(&error)));
            match error.downcast_ref() {
                Some(fs_daemon::ConfigError::Wrong { .. }) => ExitCode::from(WRONG_FILE),
                _ => ExitCode::FAILURE,
            }
        }
    }
}
