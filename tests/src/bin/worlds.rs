//! `cargo xtask proof worlds`: random worlds for a time, from a seed.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use fs_tests::Lab;
use fs_tests::worlds::{Seen, Stage};
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[derive(Parser, Debug)]
struct Args {
    /// The first world's seed; the next ones follow.
    #[arg(long)]
    seed: Option<u64>,
    /// Worlds.
    #[arg(long, default_value_t = u64::MAX)]
    worlds: u64,
    /// For so long.
    #[arg(long, default_value_t = 600)]
    seconds: u64,
}

/// So many worlds have open connections when rules come.
const ENOUGH: u64 = 16;

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(fs_tests::random::by_the_clock);
    let lab = Lab::up(&["--queues", "1"])?.context("worlds need root, for network namespaces")?;
    let (start, mut seen) = (Instant::now(), Seen::default());
    let mut stage = Stage::new(&lab)?;
    for number in 0..args.worlds {
        if start.elapsed() > Duration::from_secs(args.seconds) {
            break;
        }
        stage.run(seed.wrapping_add(number), &mut seen)?;
    }
    stage.end()?;
    seen.wrong.iter().for_each(|wrong| println!("WRONG: {wrong}"));
    println!("{}", seen.line(seed));
    // Of a few worlds none may have a connection that a later rule stops.
    ensure!(seen.stopped == 0 || seen.slow < seen.stopped, "no rule stopped a connection with a ring in time");
    ensure!(seen.worlds < ENOUGH || seen.flows > 0, "no connection had a ring when a rule came");
    Ok(if seen.wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
