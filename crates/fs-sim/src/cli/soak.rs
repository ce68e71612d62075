//! `fs-sim soak`: random seeds over all scenarios until the time is over or a run fails.

use clap::value_parser;
use fs_sim::rng::mix;
use fs_sim::scenario::{Scenario, run_or_explain, scenarios};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// Number of bits of scenarios' seeds, so that they are short to type.
const SEED_BITS: u32 = 40;

/// Options of `fs-sim soak`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Time until the last world starts.
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
    /// The seed that all worlds' seeds are drawn from; by default from the clock.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Number of worlds that run at the same time; by default one per CPU.
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Only these scenarios; by default all. `fs-sim --list` prints their names.
    #[arg(long, value_name = "SCENARIO,…", value_delimiter = ',', value_parser = crate::scenario)]
    only: Vec<Scenario>,
    /// Continues after a world has failed.
    #[arg(long)]
    keep_going: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, String> {
    let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let all_seeds = arguments.seed.unwrap_or_else(|| mix(clock.as_nanos() as u64) >> (64 - SEED_BITS));
    let cpus = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = arguments.threads.map_or_else(cpus, usize::from);
    let worlds = if arguments.only.is_empty() { scenarios().collect() } else { arguments.only.clone() };
    println!("soak: seed {all_seeds}, {} s, {threads} threads, {} scenarios", arguments.seconds, worlds.len());
    let end = Instant::now() + Duration::from_secs(arguments.seconds);
    let turn = AtomicU64::new(0);
    let failures = Mutex::new(Vec::<String>::new());
    let totals = Mutex::new((0u64, 0u64, 0u64));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while Instant::now() < end {
                    let n = turn.fetch_add(1, Ordering::Relaxed);
                    let scenario = worlds[(n % worlds.len() as u64) as usize];
                    let seed = mix(all_seeds ^ mix(n)) >> (64 - SEED_BITS);
                    match run_or_explain(scenario, seed, Path::new("target/sim")) {
                        Ok(report) => {
                            let mut totals = totals.lock().unwrap_or_else(|e| e.into_inner());
                            totals.0 += 1;
                            totals.1 += report.connections as u64;
                            totals.2 += report.packets;
                        }
                        Err(what) => {
                            eprintln!("{} {seed}: FAILED\n{what}", scenario.name);
                            failures.lock().unwrap_or_else(|e| e.into_inner()).push(what);
                            if !arguments.keep_going {
                                return;
                            }
                        }
                    }
                    if !arguments.keep_going && !failures.lock().unwrap_or_else(|e| e.into_inner()).is_empty() {
                        return;
                    }
                }
            });
        }
    });
    let (runs, connections, packets) = *totals.lock().map_err(|e| e.to_string())?;
    let failures = failures.into_inner().map_err(|e| e.to_string())?;
    println!("soak: {runs} worlds, {connections} connections, {packets} packets, {} failures", failures.len());
    for replay in failures.iter().filter_map(|what| what.lines().next()) {
        println!("{replay}");
    }
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
