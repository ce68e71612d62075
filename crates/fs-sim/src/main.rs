//! Replays simulated worlds: `cargo run -p fs-sim -- --scenario S --seed N [--count K]`; measures:
//! `cargo run --release -p fs-sim -- goodput`; searches for failures: `… soak --seconds N`.

mod cli {
    pub(crate) mod goodput;
    pub(crate) mod soak;
}

use clap::{Args, Parser, Subcommand};
use fs_sim::scenario::{Scenario, run_or_explain, scenarios};
use std::path::Path;
use std::process::ExitCode;

/// Simulates TCP stacks over lossy links in virtual time. Every run is repeatable by its seed.
#[derive(Debug, Parser)]
#[command(name = "fs-sim", args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    replay: Replay,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measures one flow over several losses and round-trip times, and prints a table of goodput.
    Goodput(cli::goodput::Arguments),
    /// Runs worlds with random seeds until a time is over or a world fails.
    Soak(cli::soak::Arguments),
}

/// Without a command: runs the worlds of a scenario with given seeds.
#[derive(Debug, Args)]
struct Replay {
    /// Prints the names of all scenarios.
    #[arg(long)]
    list: bool,
    /// The scenario; `--list` prints their names.
    #[arg(long, value_name = "NAME", value_parser = scenario, required_unless_present = "list")]
    scenario: Option<Scenario>,
    /// The seed of the first world. A failed run prints the seed that repeats it.
    #[arg(long, value_name = "N", required_unless_present = "list")]
    seed: Option<u64>,
    /// Number of worlds, with this seed and the next ones.
    #[arg(long, value_name = "N", default_value_t = 1)]
    count: u64,
}

/// Looks a scenario up by its name.
fn scenario(name: &str) -> Result<Scenario, String> {
    let names = || scenarios().map(|scenario| scenario.name).collect::<Vec<_>>().join(", ");
    Scenario::named(name).ok_or_else(|| format!("no scenario has this name; the scenarios are {}", names()))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.command {
        Some(Command::Goodput(arguments)) => cli::goodput::run(&arguments),
        Some(Command::Soak(arguments)) => cli::soak::run(&arguments),
        None => return replay(&arguments.replay),
    };
    done.unwrap_or_else(|error| {
        eprintln!("fs-sim: {error}");
        ExitCode::from(2)
    })
}

fn replay(arguments: &Replay) -> ExitCode {
    let (Some(scenario), Some(first)) = (arguments.scenario, arguments.seed) else {
        for Scenario { name, about, .. } in scenarios() {
            println!("{name:12} {about}");
        }
        return ExitCode::SUCCESS;
    };
    let mut failed = false;
    for seed in first..first.saturating_add(arguments.count) {
        let began = std::time::Instant::now();
        match run_or_explain(scenario, seed, Path::new("target/sim")) {
            Ok(report) => {
                println!(
                    "{} {seed}: ok, {} connections, {} packets, {:.1} virtual s in {:.2} s, digest {:016x}",
                    scenario.name,
                    report.connections,
                    report.packets,
                    report.took.as_secs_f64(),
                    began.elapsed().as_secs_f64(),
                    report.digest.0
                );
                if arguments.count == 1 {
                    println!("links: {:?}, no frame on arrival: {}", report.links, report.rx_dropped);
                    if report.held_back > 0 {
                        println!("turns with less in flight than cwnd allows: {}", report.held_back);
                    }
                    for (name, n) in report.stats.counters().filter(|&(_, n)| n > 0) {
                        println!("  {name} {n}");
                    }
                    for &reason in fs_core::DropReason::ALL {
                        match report.stats.dropped(reason) {
                            0 => {}
                            n => println!("  drop {} {n}", reason.name()),
                        }
                    }
                }
            }
            Err(error) => {
                failed = true;
                eprintln!("{} {seed}: FAILED\n{error}", scenario.name);
            }
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
