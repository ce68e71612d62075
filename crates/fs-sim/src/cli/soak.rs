//! `fs-sim soak`: random seeds over all scenarios until the time is over or a run fails.

use fs_sim::rng::mix;
use fs_sim::scenario::{Scenario, run_or_explain, scenarios};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

pub(crate) const USAGE: &str = "fs-sim soak [--seconds N] [--seed N] [--threads N] [--only SCENARIO,…] [--keep-going]";

/// Number of bits of scenarios' seeds, so that they are short to type.
const SEED_BITS: u32 = 40;

struct Args {
    seconds: u64,
    seed: u64,
    threads: usize,
    scenarios: Vec<Scenario>,
    keep_going: bool,
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Args, String> {
    let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut parsed = Args {
        seconds: 60,
        seed: mix(clock.as_nanos() as u64) >> (64 - SEED_BITS),
        threads: cores,
        scenarios: scenarios().collect(),
        keep_going: false,
    };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|e| format!("{text}: {e}"));
        match arg.as_str() {
            "--seconds" => parsed.seconds = number(value()?)?,
            "--seed" => parsed.seed = number(value()?)?,
            "--threads" => parsed.threads = number(value()?)?.max(1) as usize,
            "--keep-going" => parsed.keep_going = true,
            "--only" => {
                let named = |name: &str| Scenario::named(name).ok_or(format!("no scenario {name}; see --list"));
                parsed.scenarios = value()?.split(',').map(named).collect::<Result<_, _>>()?;
            }
            _ => return Err(format!("unknown argument {arg}")),
        }
    }
    Ok(parsed)
}

pub(crate) fn run(args: impl Iterator<Item = String>) -> Result<ExitCode, String> {
    let args = parse(args)?;
    println!(
        "soak: seed {}, {} s, {} threads, {} scenarios",
        args.seed,
        args.seconds,
        args.threads,
        args.scenarios.len()
    );
    let end = Instant::now() + Duration::from_secs(args.seconds);
    let turn = AtomicU64::new(0);
    let failures = Mutex::new(Vec::<String>::new());
    let totals = Mutex::new((0u64, 0u64, 0u64));
    std::thread::scope(|scope| {
        for _ in 0..args.threads {
            scope.spawn(|| {
                while Instant::now() < end {
                    let n = turn.fetch_add(1, Ordering::Relaxed);
                    let scenario = args.scenarios[(n % args.scenarios.len() as u64) as usize];
                    let seed = mix(args.seed ^ mix(n)) >> (64 - SEED_BITS);
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
                            if !args.keep_going {
                                return;
                            }
                        }
                    }
                    if !args.keep_going && !failures.lock().unwrap_or_else(|e| e.into_inner()).is_empty() {
                        return;
                    }
                }
            });
        }
    });
    let (worlds, connections, packets) = *totals.lock().map_err(|e| e.to_string())?;
    let failures = failures.into_inner().map_err(|e| e.to_string())?;
    println!("soak: {worlds} worlds, {connections} connections, {packets} packets, {} failures", failures.len());
    for replay in failures.iter().filter_map(|what| what.lines().next()) {
        println!("{replay}");
    }
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
