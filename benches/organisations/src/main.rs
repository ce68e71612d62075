//! One run of one threading model; prints its counters as a line of JSON.

use anyhow::Result;
use clap::Parser;
use fs_organisations::organisation::Kind;
use fs_organisations::run::{Setting, counted, timed};
use fs_organisations::wire::Load;
use std::process::ExitCode;
use std::time::Duration;

/// Runs the engine under one threading model, and prints its counters as a line of JSON.
#[derive(Debug, Parser)]
#[command(name = "organisations")]
struct Arguments {
    /// The threading model: up, msgp, connp-t, connp-l:GROUPS or per-core.
    #[arg(value_parser = kind)]
    kind: Kind,
    /// The load of the clients.
    load: Load,
    /// Number of connections.
    connections: usize,
    /// Number of cores.
    cores: usize,
    /// Runs threads for this time, after a quarter of it to warm up.
    #[arg(long, value_name = "N", required_unless_present = "packets", conflicts_with = "packets")]
    milliseconds: Option<u64>,
    /// Runs one thread for this many packets, for callgrind.
    #[arg(long, value_name = "N")]
    packets: Option<u64>,
}

/// Parses a threading model.
fn kind(name: &str) -> Result<Kind, &'static str> {
    Kind::parse(name).ok_or("the models are up, msgp, connp-t, connp-l:GROUPS (such as connp-l:128) and per-core")
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("organisations: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> Result<String> {
    let Arguments { kind, load, connections, cores, milliseconds, packets } = *arguments;
    let setting = Setting { kind, cores, connections, load };
    let outcome = match packets {
        Some(packets) => counted(setting, packets)?,
        None => {
            let time = Duration::from_millis(milliseconds.unwrap_or_default());
            timed(setting, time / 4, time)?
        }
    };
    Ok(serde_json::to_string(&outcome)?)
}
