//! The command line: runs scripts and directories of them on one target, and prints a verdict for
//! each and a summary.

use clap::{Parser, ValueEnum};
use fs_pkt::script::Side;
use fs_pkt::{Report, Request, Verdict, run_file, scripts_in};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Target {
    /// Our engine, in virtual time.
    Engine,
    /// The kernel, over a TUN device in a network namespace of its own (needs root).
    Linux,
}

/// Runs packet scripts in packetdrill's language.
#[derive(Debug, Parser)]
#[command(name = "fs-pkt")]
struct Arguments {
    /// Target of the scripts.
    #[arg(long, value_enum, default_value = "engine")]
    target: Target,
    /// Tolerance of times, in microseconds.
    #[arg(long)]
    tolerance_usecs: Option<u64>,
    /// ipv4, ipv6 or ipv4-mapped-ipv6.
    #[arg(long = "ip-version", alias = "ip_version")]
    ip_version: Option<String>,
    /// Another option of packetdrill, as NAME or NAME=VALUE.
    #[arg(long = "set", value_name = "NAME[=VALUE]")]
    set: Vec<String>,
    /// A symbol: SYM=VALUE.
    #[arg(short = 'D', long = "define", value_name = "SYM=VALUE")]
    define: Vec<String>,
    /// Prints packets, and the output of scripts.
    #[arg(short, long)]
    verbose: bool,
    /// Number of concurrent scripts.
    #[arg(short, long, default_value_t = 1)]
    jobs: usize,
    /// On Linux, the maximum number of attempts per script: times are real, and the machine may be
    /// busy.
    #[arg(long, default_value_t = 3)]
    attempts: u32,
    /// Only parses the scripts.
    #[arg(long)]
    dry_run: bool,
    /// Scripts, and directories of them.
    #[arg(required = true, value_name = "FILE|DIR")]
    paths: Vec<PathBuf>,
}

fn request(arguments: &Arguments) -> Result<Request, String> {
    let mut request = Request::new(match arguments.target {
        Target::Engine => Side::Engine,
        Target::Linux => Side::Linux,
    });
    for symbol in &arguments.define {
        let (name, value) = symbol.split_once('=').ok_or_else(|| format!("-D {symbol}: expected SYM=VALUE"))?;
        request.defines.insert(name.into(), value.into());
    }
    let mut option = |name: &str, value: Option<String>| request.options.push((name.into(), value));
    if let Some(us) = arguments.tolerance_usecs {
        option("tolerance_usecs", Some(us.to_string()));
    }
    if let Some(version) = &arguments.ip_version {
        option("ip_version", Some(version.clone()));
    }
    if arguments.verbose {
        option("verbose", None);
    }
    for set in &arguments.set {
        match set.split_once('=') {
            Some((name, value)) => option(name, Some(value.into())),
            None => option(set, None),
        }
    }
    (request.dry_run, request.attempts) = (arguments.dry_run, arguments.attempts);
    Ok(request)
}

fn run(arguments: &Arguments) -> Result<bool, String> {
    let request = request(arguments)?;
    let scripts = scripts_in(&arguments.paths)?;
    let next = AtomicUsize::new(0);
    let counts = Mutex::new([0usize; 4]);
    let work = || {
        while let Some(path) = scripts.get(next.fetch_add(1, Ordering::Relaxed)) {
            let Report { verdict, log, not_run } = run_file(path, &request);
            let Ok(mut counts) = counts.lock() else { return };
            if arguments.verbose {
                print!("{log}");
            }
            match verdict {
                Verdict::Passed => {
                    counts[0] += 1;
                    counts[3] += usize::from(!not_run.is_empty());
                    let without = match &not_run[..] {
                        [] => String::new(),
                        commands => format!(" (commands not run: {})", commands.join("; ")),
                    };
                    println!("ok       {}{without}", path.display());
                }
                Verdict::Failed(message) => {
                    counts[1] += 1;
                    println!("FAILED   {}\n  {}", path.display(), message.replace('\n', "\n  "));
                }
                Verdict::Skipped(reason) => {
                    counts[2] += 1;
                    println!("skipped  {} ({reason})", path.display());
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..arguments.jobs.clamp(1, 64) {
            scope.spawn(work);
        }
        work();
    });
    let [passed, failed, skipped, without] = counts.into_inner().map_err(|_| "a script panicked")?;
    let skipped_text = if skipped == 0 { String::new() } else { format!(", {skipped} skipped") };
    let without = if without == 0 { String::new() } else { format!(" ({without} without some of their commands)") };
    println!("{passed} passed{without}, {failed} failed{skipped_text}");
    Ok(failed == 0)
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("fs-pkt: {message}");
            ExitCode::from(2)
        }
    }
}
