//! The parts of `make test`.

use crate::nextest;
use crate::part::{Outcome, Part};
use crate::run::{Run, target};
use crate::tools::is_root;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Seconds after which a command counts as hung. A slow machine may need more than an hour, and
/// nextest limits each test.
const LIMIT_S: u64 = 4 * 3600;

/// `make test`, in its order: quick failures first.
pub(crate) const TEST: &[Part] = &[
    Part {
        name: "packages",
        about: "Debian's packages that the tests use are installed",
        run: |run| step(run, Command::new("lab/install").arg("test")),
    },
    Part {
        name: "format",
        about: "rustfmt",
        run: |run| step(run, Command::new("cargo").args(["fmt", "--all", "--check"])),
    },
    Part {
        name: "sources",
        about: "rules that no compiler checks: unsafe code's fence, parts, scripts, links",
        run: |run| step(run, Command::new("cargo").args(["xtask", "sources"])),
    },
    Part {
        name: "bpf",
        about: "the BPF programs in the tree are what their sources compile to",
        run: |run| {
            let mut outcome = step(run, Command::new("crates/fs-xdp/bpf/build.sh").arg("--check"));
            outcome.add(step(run, Command::new("crates/fs-relay/bpf/build.sh").arg("--check")));
            outcome.add(step(run, Command::new("crates/fs-broker/bpf/build.sh").arg("--check")));
            outcome.add(step(run, Command::new("crates/fs-splice/bpf/build.sh").arg("--check")));
            outcome
        },
    },
    Part {
        name: "build",
        about: "programs, libraries and tests, compiled once",
        run: |run| {
            let built = nextest::build(run, LIMIT_S);
            Outcome::one("build", built)
        },
    },
    Part {
        name: "tests",
        about: "unit, model, simulation, link, API, preload and lab tests",
        run: |run| nextest::tests(run, "default", &nextest::workspace(), LIMIT_S),
    },
    Part { name: "doctests", about: "the examples of README and of public items", run: doctests },
    Part { name: "clippy", about: "clippy without a warning", run: clippy },
];

/// Runs the named parts, or all, and prints "N passed, N failed" as the last line. `Ok(true)` if
/// all passed.
pub(crate) fn test(names: &[String]) -> Result<bool, String> {
    let parts = chosen(TEST, names)?;
    let logs = target().join("test-logs");
    // Logs of an earlier run must not be used for this one.
    let _ = std::fs::remove_dir_all(&logs);
    std::fs::create_dir_all(&logs).map_err(|error| format!("cannot make {}: {error}", logs.display()))?;
    let mut total = Outcome::default();
    let began = Instant::now();
    let find = |name| parts.iter().find(|part| part.name == name);
    for part in &parts {
        match (part.name, find("tests"), find("clippy")) {
            ("tests", _, Some(clippy)) => total.add(both(part, clippy, &logs)?),
            // It has run beside the tests.
            ("clippy", Some(_), _) => {}
            _ => total.add(finish(part, &logs)?),
        }
    }
    if !total.failed.is_empty() {
        println!("\nfailed, with logs in {}:", logs.display());
        total.failed.iter().for_each(|name| println!("  {name}"));
    }
    println!("\n{} s\n{}", began.elapsed().as_secs(), total.verdict());
    Ok(total.is_good())
}

/// Runs a part and prints its outcome.
fn finish(part: &Part, logs: &Path) -> Result<Outcome, String> {
    let mut run = Run::begin(part.name, logs)?;
    let outcome = (part.run)(&mut run);
    print_outcome(&run, &outcome);
    Ok(outcome)
}

/// Runs the tests, and clippy in the time that they leave the processors idle, about a third.
fn both(tests: &Part, clippy: &Part, logs: &Path) -> Result<Outcome, String> {
    let is_over = AtomicBool::new(false);
    let log = logs.join(tests.name).with_extension("log");
    let runs_tests = || std::fs::read_to_string(&log).is_ok_and(|log| log.contains("PASS [") || log.contains("... ok"));
    std::thread::scope(|scope| {
        let clippy = scope.spawn(|| {
            // Until the first test runs, cargo has a lock on the target folder.
            while !is_over.load(Ordering::Relaxed) && !runs_tests() {
                std::thread::sleep(Duration::from_secs(1));
            }
            finish(clippy, logs)
        });
        let outcome = finish(tests, logs);
        is_over.store(true, Ordering::Relaxed);
        let clippy = clippy.join().map_err(|_| "clippy: a panic")?;
        let mut outcome = outcome?;
        outcome.add(clippy?);
        Ok(outcome)
    })
}

/// Returns the parts of `all` with these names, or all if there are no names.
pub(crate) fn chosen<'a>(all: &'a [Part], names: &[String]) -> Result<Vec<&'a Part>, String> {
    if let Some(unknown) = names.iter().find(|name| all.iter().all(|part| part.name != *name)) {
        let known: Vec<_> = all.iter().map(|part| part.name).collect();
        return Err(format!("no part '{unknown}': the parts are {}", known.join(" ")));
    }
    Ok(all.iter().filter(|part| names.is_empty() || names.iter().any(|name| name == part.name)).collect())
}

/// Prints the part's counts and time, and the end of its log if a test failed.
pub(crate) fn print_outcome(run: &Run, outcome: &Outcome) {
    println!(
        "{:<14} {:>5} passed {:>3} failed {:>3} skipped {:>5} s",
        run.name(),
        outcome.passed,
        outcome.failed.len(),
        outcome.skipped,
        run.seconds()
    );
    if !outcome.failed.is_empty() {
        println!("{}", run.tail(20));
    }
}

/// Runs one command as one test.
pub(crate) fn step(run: &mut Run, command: &mut Command) -> Outcome {
    let passed = run.succeeds(command, LIMIT_S);
    Outcome::one(run.name(), passed)
}

fn doctests(run: &mut Run) -> Outcome {
    let mut command = Command::new("cargo");
    command.args(["test", "--doc", "--no-fail-fast"]).args(nextest::workspace());
    let passed = run.succeeds(&mut command, LIMIT_S);
    let outcome = nextest::libtest_counts(&std::fs::read_to_string(run.log()).unwrap_or_default(), is_root());
    if passed || !outcome.failed.is_empty() { outcome } else { Outcome::one("doctests", false) }
}

fn clippy(run: &mut Run) -> Outcome {
    if !Command::new("cargo").args(["clippy", "--version"]).output().is_ok_and(|output| output.status.success()) {
        run.note("skipped: clippy is not installed: rustup component add clippy");
        return Outcome::skipped();
    }
    let nice = || {
        let mut command = Command::new("nice");
        command.args(["-n", "19", "cargo", "clippy"]);
        command
    };
    let mut command = nice();
    command.args(nextest::workspace()).args(["--all-targets", "--keep-going", "--", "-D", "warnings"]);
    let mut outcome = step(run, &mut command);
    // Like `make demo` builds it: without TLS and HTTP/2.
    let mut demo = nice();
    demo.args(["-p", "fs-proxy", "--no-default-features", "--", "-D", "warnings"]);
    outcome.add(step(run, &mut demo));
    outcome
}
