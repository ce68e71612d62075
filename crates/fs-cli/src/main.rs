//! The `fastsock` program: up, run, ss, stat, top, capture, doctor.

mod capture;
mod control;
mod docs;
mod doctor;
mod histogram;
mod program;
mod run;
mod service;
mod socket_unsafe;
mod ss;
mod stat;
mod top;
mod up;

use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

/// User-space TCP/IP for unmodified programs.
#[derive(Parser, Debug)]
#[command(name = "fastsock", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Runs the daemon.
    Up(up::Args),
    /// Runs a program with its sockets accelerated; starts a daemon if none runs.
    Run(run::Args),
    /// Lists sockets, as `ss -tan` does.
    Ss(ss::Args),
    /// Prints counters.
    Stat(stat::Args),
    /// Shows connections, cores, rates, drops, and why sockets are not accelerated, anew every second.
    Top(top::Args),
    /// Writes what connections carry as pcapng, for Wireshark.
    Capture(Box<capture::Args>),
    /// Checks what acceleration needs, and says what to do.
    Doctor(doctor::Args),
    /// Prints manual pages, for packages.
    Man(docs::ManArgs),
    /// Prints completions for a shell.
    Completions(docs::CompletionsArgs),
    /// Starts a daemon in the background, for `run`.
    #[command(hide = true)]
    Start(run::StartArgs),
}

/// The error and its causes, each said once.
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

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Up(args) => up::up(args),
        Command::Run(args) => run::run(args),
        Command::Ss(args) => ss::ss(args),
        Command::Stat(args) => stat::stat(args),
        Command::Top(args) => top::top(args),
        Command::Capture(args) => capture::capture(*args),
        Command::Man(args) => docs::man(args, Args::command()),
        Command::Completions(args) => docs::completions(args, Args::command()),
        Command::Doctor(args) => doctor::doctor(args),
        Command::Start(args) => run::start_daemon(args),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("fastsock: {}", said(&error));
            ExitCode::FAILURE
        }
    }
}
