//! The command line of the judge.

use anyhow::{Context, Result, anyhow, ensure};
use clap::{Parser, Subcommand};
use fs_differ::coverage::Coverage;
use fs_differ::emit::python;
use fs_differ::generate::generate;
use fs_differ::judge::{Allowed, Found, Judge, NotYet, report};
use fs_differ::program::Program;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// So few programs may have no connection that gets a ring.
const FEW: usize = 100;

/// Random programs of socket calls, on the kernel and under fastsock.
#[derive(Debug, Parser)]
#[command(name = "fs-differ")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs programs on both sides and prints the differences (needs root).
    Run(Box<Run>),
    /// Prints the program of a seed.
    Show {
        /// The seed.
        seed: u64,
        /// The generator's profile.
        #[arg(long, default_value = "")]
        profile: String,
    },
    /// Prints the program of a file as Python.
    Python {
        /// The file.
        file: PathBuf,
    },
    /// Runs programs from a pipe, for the judge.
    #[command(hide = true)]
    Serve,
    /// Continues as an actor after exec.
    #[command(hide = true)]
    Actor { words: Vec<String> },
    /// Reports by the exit status whether a descriptor is writable.
    #[command(hide = true)]
    Probe { descriptor: i32 },
    /// Sends a byte by standard output as soon as standard input has one.
    #[command(hide = true)]
    Job,
}

#[derive(Debug, clap::Args)]
struct Run {
    /// Files and directories of programs. They run first, and alone unless a number of random
    /// programs is given.
    files: Vec<PathBuf>,
    /// Time for random programs in seconds (60 without files).
    #[arg(long)]
    seconds: Option<u64>,
    /// Maximum number of random programs.
    #[arg(long)]
    programs: Option<usize>,
    /// The first seed; by default derived from the time.
    #[arg(long)]
    seed: Option<u64>,
    /// The generator's profile.
    #[arg(long, default_value = "")]
    profile: String,
    /// The fastsock program.
    #[arg(long)]
    fastsock: Option<PathBuf>,
    /// Ends after this many different differences.
    #[arg(long, default_value_t = 10)]
    differences: usize,
    /// File of known differences with reasons.
    #[arg(long)]
    allowed: Option<PathBuf>,
    /// File of known differences that are not counted: names of files, `seed-N`, and `~ SIGNATURE`,
    /// in which * matches anything.
    #[arg(long)]
    not_yet: Option<PathBuf>,
    /// Appends the names of programs that differ to this file, as lines for `--not-yet`.
    #[arg(long)]
    names: Option<PathBuf>,
    /// Directory for differences, one file each.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Number of concurrent programs.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Runs the kernel on both sides: any difference is then an error of the judge.
    #[arg(long)]
    kernel: bool,
    /// File for the table of calls and flags.
    #[arg(long)]
    coverage: Option<PathBuf>,
    /// Prints differences as found, without shrinking.
    #[arg(long)]
    raw: bool,
}

/// State shared by several judges.
struct Work {
    files: Vec<PathBuf>,
    /// Number of programs begun, from files and random.
    next: usize,
    first: u64,
    until: Instant,
    most: usize,
    /// Known differences.
    not_yet: NotYet,
    found: Found,
    known: usize,
    unsteady: Vec<String>,
    carried: [u64; 2],
    coverage: Coverage,
}

/// Returns all given files of the corpus, and those in given directories.
fn corpus(named: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in named {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        for entry in std::fs::read_dir(path).with_context(|| path.display().to_string())? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
            if name.ends_with(".txt") && !["allowed.txt", "not-yet.txt"].contains(&name) {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Returns the next program and its name, or `None` if there are no more.
fn next(arguments: &Run, work: &mut Work) -> Result<Option<(String, Program)>> {
    let number = work.next;
    if work.found.len() >= arguments.differences {
        return Ok(None);
    }
    let (name, program) = match work.files.get(number) {
        Some(file) => {
            let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
            let name = file.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
            (name, Program::parse(&text).with_context(|| file.display().to_string())?)
        }
        None => {
            let number = number - work.files.len();
            if Instant::now() > work.until || number >= work.most {
                return Ok(None);
            }
            let seed = work.first + number as u64;
            (format!("seed-{seed}"), generate(seed, &arguments.profile))
        }
    };
    work.next += 1;
    Ok(Some((name, program)))
}

fn one_judge(name: &str, arguments: &Run, work: &Mutex<Work>, begin: Instant) -> Result<()> {
    let fastsock = match &arguments.fastsock {
        Some(path) => path.clone(),
        None => std::env::current_exe()?.with_file_name("fastsock"),
    };
    let allowed = match &arguments.allowed {
        Some(path) => Allowed::parse(&std::fs::read_to_string(path).with_context(|| path.display().to_string())?)?,
        None => Allowed::default(),
    };
    let mut judge = Judge::new(name, (!arguments.kernel).then_some(fastsock.as_path()), allowed)?;
    let lock = || work.lock().unwrap_or_else(|broken| broken.into_inner());
    loop {
        let Some((name, program)) = next(arguments, &mut lock())? else { break };
        let difference = judge.judge(&program)?;
        lock().coverage.add(&program, &judge.last);
        let Some(difference) = difference else { continue };
        let number = {
            let mut work = lock();
            if work.not_yet.has(&name, &difference.signature) {
                work.known += 1;
                continue;
            }
            if let Some(path) = &arguments.names {
                use std::io::Write;
                let mut names = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
                writeln!(names, "{name} # {}", difference.signature)?;
            }
            if let Some((times, _)) = work.found.get_mut(&difference.signature) {
                *times += 1;
                continue;
            }
            work.found.insert(difference.signature.clone(), (1, difference.clone()));
            work.next
        };
        let small = if arguments.raw { difference } else { judge.shrink(&difference)? };
        let text = report(&small);
        println!("--- {name}, program {number}, {:.0} s\n{text}", begin.elapsed().as_secs_f64());
        if let Some(out) = &arguments.out {
            std::fs::create_dir_all(out)?;
            std::fs::write(out.join(format!("{}-{}.txt", small.program.profile, small.program.seed)), text)?;
        }
    }
    let carried = judge.carried();
    let mut work = lock();
    work.carried = [work.carried[0] + carried[0], work.carried[1] + carried[1]];
    work.unsteady.append(&mut judge.unsteady);
    Ok(())
}

fn run(arguments: &Run) -> Result<bool> {
    let begin = Instant::now();
    let first = match arguments.seed {
        Some(seed) => seed,
        None => std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs() << 20,
    };
    println!("seed {first}");
    let bounded = arguments.seconds.is_some() || arguments.programs.is_some();
    let seconds = arguments.seconds.unwrap_or(if arguments.programs.is_some() { 86_400 } else { 60 });
    let work = Mutex::new(Work {
        files: corpus(&arguments.files)?,
        next: 0,
        first,
        until: begin + Duration::from_secs(seconds),
        most: if arguments.files.is_empty() || bounded { arguments.programs.unwrap_or(usize::MAX) } else { 0 },
        not_yet: match &arguments.not_yet {
            Some(path) => NotYet::parse(&std::fs::read_to_string(path).with_context(|| path.display().to_string())?)?,
            None => NotYet::default(),
        },
        found: Found::new(),
        known: 0,
        unsteady: Vec::new(),
        carried: [0; 2],
        coverage: Coverage::default(),
    });
    std::thread::scope(|scope| {
        let begun: Vec<_> = (0..arguments.jobs.max(1))
            .map(|job| {
                let work = &work;
                scope.spawn(move || one_judge(&format!("j{job}"), arguments, work, begin))
            })
            .collect();
        begun.into_iter().try_for_each(|judge| judge.join().unwrap_or_else(|_| Err(anyhow!("a judge panicked"))))
    })?;
    let work = work.into_inner().unwrap_or_else(|broken| broken.into_inner());
    let seconds = begin.elapsed().as_secs_f64();
    for (signature, (times, _)) in &work.found {
        println!("{times:5} {signature}");
    }
    for how in &work.unsteady {
        println!("once: {how}");
    }
    if let Some(path) = &arguments.coverage {
        std::fs::write(path, work.coverage.table(first)).with_context(|| path.display().to_string())?;
    }
    println!(
        "{} programs from seed {first} in {seconds:.0} s ({:.0} a second), {} differences, {} known, {} that did not come again",
        work.next,
        work.next as f64 / seconds,
        work.found.len(),
        work.known,
        work.unsteady.len()
    );
    println!(
        "{} connections promoted, {} sends by the ring (of processes that were not killed)",
        work.carried[0], work.carried[1]
    );
    ensure!(work.next > 0, "no program ran");
    let has_ring = work.carried.iter().all(|carried| *carried > 0);
    ensure!(
        arguments.kernel || has_ring || work.next < FEW,
        "nothing was sent by a ring: the kernel was compared with itself"
    );
    Ok(work.found.is_empty())
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Serve => fs_differ::serve::serve(),
        Command::Actor { words } => {
            fs_differ::actor::resume(&words);
            return ExitCode::FAILURE;
        }
        Command::Probe { descriptor } => {
            return ExitCode::from(fs_differ::interpret::probe(descriptor) as u8);
        }
        Command::Job => {
            let result = if fs_differ::sys::job::await_go() { fs_differ::interpret::probe(1) } else { 255 };
            return ExitCode::from(result as u8);
        }
        Command::Show { seed, profile } => {
            use std::io::Write;
            // The reader may close the pipe early.
            let _ = write!(std::io::stdout(), "{}", generate(seed, &profile));
        }
        Command::Python { file } => {
            let program =
                std::fs::read_to_string(&file).map_err(anyhow::Error::from).and_then(|text| Program::parse(&text));
            match program {
                Ok(program) => print!("{}", python(&program)),
                Err(error) => {
                    eprintln!("fs-differ: {}: {error:#}", file.display());
                    return ExitCode::from(2);
                }
            }
        }
        Command::Run(arguments) => match run(&arguments) {
            Ok(true) => {}
            Ok(false) => return ExitCode::FAILURE,
            Err(error) => {
                eprintln!("fs-differ: {error:#}");
                return ExitCode::from(2);
            }
        },
    }
    ExitCode::SUCCESS
}
