//! The stable driver: random and mutated inputs from a seed, guided by coverage.
//!
//! With files it replays only these. Otherwise it replays the corpus, then makes inputs until the
//! executions or the seconds are over. `fs-fuzz --help` has the options.

use clap::Parser;
use clap::builder::PossibleValuesParser;
use fastrand::Rng;
use fs_fuzz::{TARGETS, Target};
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Maximum number of inputs that are kept for their coverage. Too high: common paths are mutated
/// for longer.
const POOL_MAX: usize = 4096;
/// Duration after which an execution counts as hanging.
const HANG: Duration = Duration::from_secs(20);

/// Runs fuzz targets on random and mutated inputs. A failing input is written to
/// fuzz/artifacts/TARGET, and the last printed line is the command that replays it.
#[derive(Debug, Parser)]
#[command(name = "fs-fuzz")]
struct Options {
    /// The target, or `all`.
    #[arg(value_parser = PossibleValuesParser::new(TARGETS.iter().map(|target| target.name).chain(["all"])))]
    target: String,
    /// Runs the target on these inputs only.
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Ends after this many executions: 100,000 by default, unlimited with `--seconds`.
    #[arg(long, value_name = "N", value_parser = number)]
    execs: Option<u64>,
    /// Ends after this time.
    #[arg(long, value_name = "N", value_parser = number)]
    seconds: Option<u64>,
    /// The seed of the inputs.
    #[arg(long, value_name = "N", value_parser = number, default_value = "1")]
    seed: u64,
    /// Folder with a folder of inputs for each target. They run first.
    #[arg(long, value_name = "DIR", default_value = "fuzz/corpus")]
    corpus: PathBuf,
    /// Adds inputs that reach new code to the corpus.
    #[arg(long)]
    save: bool,
}

/// Parses a number, which may contain `_`.
fn number(text: &str) -> Result<u64, String> {
    text.replace('_', "").parse().map_err(|error| format!("{error}"))
}

fn main() -> ExitCode {
    let options = Options::parse();
    // Larger than any single allocation of an execution, so that the allocator keeps freed memory
    // from then on.
    drop(vec![1u8; 16 << 20]);
    for target in TARGETS.iter().filter(|target| options.target == target.name || options.target == "all") {
        let ok = if options.files.is_empty() { fuzz(target, &options) } else { replay(target, &options.files) };
        if !ok {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn replay(target: &Target, files: &[PathBuf]) -> bool {
    for file in files {
        let Ok(data) = std::fs::read(file) else {
            eprintln!("fs-fuzz: cannot read {}", file.display());
            return false;
        };
        (target.run)(&data);
        println!("{}: {} passes", target.name, file.display());
    }
    true
}

/// State for the watcher of hangs.
struct Watch {
    /// Number of executions begun.
    count: AtomicU64,
    input: Mutex<Vec<u8>>,
}

fn fuzz(target: &Target, options: &Options) -> bool {
    let watch = Arc::new(Watch { count: AtomicU64::new(0), input: Mutex::new(Vec::new()) });
    std::thread::spawn({
        let (watch, name) = (Arc::downgrade(&watch), target.name);
        move || {
            let mut last = u64::MAX;
            loop {
                std::thread::sleep(HANG);
                let Some(watch) = watch.upgrade() else { return };
                let now = watch.count.load(Ordering::Relaxed);
                if now == last {
                    let input = watch.input.lock().map(|i| i.clone()).unwrap_or_default();
                    report(name, &input, "hangs");
                    std::process::exit(1);
                }
                last = now;
            }
        }
    });
    let mut run = Run {
        target,
        rng: Rng::with_seed(options.seed),
        pool: Vec::new(),
        seen: HashSet::new(),
        execs: 0,
        watch,
        save: options.save.then(|| options.corpus.join(target.name)),
    };
    let begun = Instant::now();
    let corpus = corpus(&options.corpus.join(target.name));
    let files = corpus.len();
    for input in corpus {
        if !run.one(&input) {
            return false;
        }
    }
    let execs = options.execs.unwrap_or(if options.seconds.is_some() { u64::MAX } else { 100_000 });
    let until = options.seconds.map(|s| begun + Duration::from_secs(s));
    let mut input = Vec::new();
    while run.execs < execs {
        if run.execs.is_multiple_of(256) && until.is_some_and(|at| Instant::now() >= at) {
            break;
        }
        run.make(&mut input);
        if !run.one(&input) {
            return false;
        }
    }
    let took = begun.elapsed().as_secs_f64();
    println!(
        "{}: {} executions in {took:.1} s ({:.0} a second), {files} from the corpus, {} ways reached, no failure",
        target.name,
        run.execs,
        run.execs as f64 / took,
        run.seen.len()
    );
    true
}

/// Returns the files of a corpus, sorted by name.
fn corpus(dir: &Path) -> Vec<Vec<u8>> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut paths: Vec<_> = entries.flatten().map(|e| e.path()).filter(|p| p.is_file()).collect();
    paths.sort();
    paths.iter().filter_map(|p| std::fs::read(p).ok()).collect()
}

fn report(name: &str, input: &[u8], what: &str) {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    input.iter().for_each(|&b| hash = (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    let path = PathBuf::from(format!("fuzz/artifacts/{name}/{hash:016x}"));
    let written =
        path.parent().map(std::fs::create_dir_all).is_some_and(|r| r.is_ok()) && std::fs::write(&path, input).is_ok();
    println!("{name}: an input {what}: {input:02x?}");
    if written {
        println!("cargo run --release -p fs-fuzz -- {name} {}", path.display());
    }
}

struct Run<'a> {
    target: &'a Target,
    rng: Rng,
    pool: Vec<Vec<u8>>,
    seen: HashSet<u64>,
    execs: u64,
    watch: Arc<Watch>,
    save: Option<PathBuf>,
}

impl Run<'_> {
    fn one(&mut self, input: &[u8]) -> bool {
        self.execs += 1;
        if let Ok(mut current) = self.watch.input.lock() {
            current.clear();
            current.extend_from_slice(input);
        }
        self.watch.count.store(self.execs, Ordering::Relaxed);
        match catch_unwind(AssertUnwindSafe(|| (self.target.run)(input))) {
            Ok(way) => {
                if self.pool.len() < POOL_MAX && self.seen.insert(way) {
                    self.keep(input, way);
                }
                true
            }
            Err(_) => {
                report(self.target.name, input, "fails");
                false
            }
        }
    }

    fn keep(&mut self, input: &[u8], way: u64) {
        self.pool.push(input.to_vec());
        if let Some(dir) = &self.save {
            let saved =
                std::fs::create_dir_all(dir).and_then(|()| std::fs::write(dir.join(format!("{way:016x}")), input));
            if let Err(error) = saved {
                eprintln!("fs-fuzz: cannot save into {}: {error}", dir.display());
            }
        }
    }

    /// Makes the next input: a fresh one, or a mutation of a kept one.
    fn make(&mut self, input: &mut Vec<u8>) {
        input.clear();
        let len_max = self.target.len_max as u64;
        if self.pool.is_empty() || self.rng.u64(..4) == 0 {
            let len = self.rng.u64(..len_max) + 1;
            // Scripts of small numbers reach deeper than uniform noise.
            let mask = if self.rng.u64(..2) == 0 { 0xff } else { 0x0f };
            input.extend((0..len).map(|_| self.rng.u8(..) & mask));
            return;
        }
        let base = self.rng.usize(..self.pool.len());
        input.extend_from_slice(&self.pool[base]);
        for _ in 0..=self.rng.u64(..6) {
            self.mutate(input);
        }
        input.truncate(self.target.len_max);
    }

    fn mutate(&mut self, input: &mut Vec<u8>) {
        let rng = &mut self.rng;
        let len = input.len();
        let at = rng.usize(..len.max(1));
        match rng.u64(..9) {
            0 | 1 if len > 0 => input[at] = rng.u8(..),
            2 if len > 0 => input[at] ^= 1 << rng.u64(..8),
            3 if len > 0 => input[at] = input[at].wrapping_add(rng.u64(..9) as u8).wrapping_sub(4),
            4 if len > 1 => {
                let n = rng.usize(..(len - at).min(8)) + 1;
                input.drain(at..(at + n).min(len));
            }
            5 => {
                let n = rng.u64(..8) + 1;
                let new: Vec<u8> = (0..n).map(|_| rng.u8(..)).collect();
                input.splice(at.min(input.len())..at.min(input.len()), new);
            }
            6 if len > 0 => {
                // Repeats some steps.
                let n = (rng.usize(..24) + 1).min(input.len() - at);
                let copy = input[at..at + n].to_vec();
                let to = rng.usize(..len + 1);
                input.splice(to..to, copy);
            }
            7 if !self.pool.is_empty() => {
                // The end of another input.
                let other = &self.pool[rng.usize(..self.pool.len())];
                let from = rng.usize(..other.len() + 1);
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            _ => input.push(rng.u8(..)),
        }
    }
}
