//! The parts of `make proof`, and the commands of short ones.

use super::commands::{all, built, host, log, release, variable, xtask};
use super::{api, lifetimes, nostd, package, processors, readme};
use crate::nextest;
use crate::part::{Outcome, Part};
use crate::run::{Run, target};
use crate::tools::{BUILT, cargo, is_debug_build, is_root, output_of, packages, profile};
use std::process::Command;

const MINUTE: u64 = 60;
const HOUR: u64 = 3600;

/// All parts, quick failures first. Environment variables set the duration of some, as in `make`.
pub(crate) const PROOF: &[Part] = &[
    Part { name: "docs", about: "rustdoc's pages of every crate, without a warning", run: docs },
    Part { name: "nostd", about: "the engine builds without std", run: nostd::nostd },
    Part { name: "package", about: "crates as cargo would upload them", run: package::package },
    Part { name: "public-api", about: "published crates break nobody since the last kept run", run: api::public_api },
    Part { name: "features", about: "the facade with its features, metrics and tracing", run: features },
    Part { name: "xsk-rs", about: "the link suite on xsk-rs's rings", run: xsk_rs },
    Part { name: "benches", about: "tests of benches and experiments; pages have the kept figures", run: benches },
    Part { name: "loom", about: "every order of the carrier's memory accesses", run: loom },
    Part { name: "miri", about: "rings, frames and memory of links under Miri", run: miri },
    Part { name: "sanitize", about: "crates with unsafe code under AddressSanitizer", run: sanitize },
    Part { name: "long", about: "tests that take long or measure time: the ignored ones", run: long },
    Part { name: "unmodified", about: "unmodified programs: docs/COMPATIBILITY.md", run: unmodified },
    Part {
        name: "frameworks",
        about: "axum, tonic, quinn and others on fastsock; SEND.md's programs",
        run: frameworks,
    },
    Part { name: "suites", about: "tests of std, tokio, socket2, polling and async-io under preload", run: suites },
    Part { name: "readme", about: "each command of README ends as it says", run: readme::readme },
    Part { name: "icount", about: "instructions per piece of work, within 3 %", run: icount },
    Part { name: "experiments", about: "the papers' experiments work, at their smallest", run: experiments },
    Part { name: "soak", about: "simulated worlds from random seeds, SECONDS (600)", run: soak },
    Part { name: "fuzz", about: "all fuzz targets, MINUTES (10)", run: fuzz },
    Part { name: "differ", about: "random socket programs as on the kernel, SECONDS (600)", run: differ },
    Part { name: "changes", about: "links, addresses and routes change, SECONDS (600)", run: changes },
    Part {
        name: "lifetimes",
        about: "CONNECTIONS (1,000,000) of processes that are killed",
        run: lifetimes::lifetimes,
    },
    Part { name: "compat", about: "servers under load and reloads: REQUESTS (100,000)", run: compat },
    Part { name: "proxy", about: "the proxy's tests for both stacks, on AF_XDP", run: proxy },
    Part { name: "kills", about: "the daemon is killed under load: REQUESTS (100,000) of each program", run: kills },
    Part { name: "worlds", about: "random firewalls and users, as on the kernel: SECONDS (600)", run: worlds },
    Part { name: "processors", about: "aarch64 and a big-endian processor, by QEMU", run: processors::processors },
    Part { name: "vm", about: "other kernels and cards, in QEMU: docs/PLATFORMS.md; QUICK=1, ONLY=PART", run: vm },
    Part { name: "deb", about: "Debian packages in clean Debian 12 and 13", run: deb },
];

/// Runs a `cargo test` command and counts the tests that it prints.
fn tested(run: &mut Run, mut command: Command, limit_s: u64) -> Outcome {
    let before = log(run).len();
    // A test that cannot run here says so in its output, which libtest shows of failed tests only.
    // A script passes this option itself.
    if command.get_program() == "cargo" {
        let has_dashes = command.get_args().any(|argument| argument == "--");
        command.args((!has_dashes).then_some("--")).arg("--show-output");
    }
    let passed = run.succeeds(&mut command, limit_s);
    let outcome = nextest::libtest_counts(&log(run)[before..], is_root());
    if passed == outcome.failed.is_empty() && (!passed || outcome.passed + outcome.skipped > 0) {
        return outcome;
    }
    Outcome::one(&format!("{}: cargo test failed, or ran nothing", run.name()), false)
}

/// Runs a command whose last line is "N passed, N failed", and that prints a line "skipped: …" for each test that
/// cannot run here.
fn counted(run: &mut Run, command: &mut Command, limit_s: u64) -> Outcome {
    let passed = run.succeeds(command, limit_s);
    let text = log(run);
    let skipped = text.lines().filter(|line| line.starts_with("skipped: ")).count();
    let outcome = text.lines().rev().find_map(|line| verdict(run.name(), line));
    match outcome {
        Some(outcome) if passed == outcome.failed.is_empty() => Outcome { skipped, ..outcome },
        None if passed && skipped > 0 => Outcome::skipped(),
        _ => Outcome::one(run.name(), false),
    }
}

/// Parses a line "N passed, N failed", possibly with more.
fn verdict(name: &str, line: &str) -> Option<Outcome> {
    let (passed, rest) = line.split_once(" passed, ")?;
    let failed: usize = rest.split_once(" failed")?.0.parse().ok()?;
    Some(Outcome { passed: passed.parse().ok()?, skipped: 0, failed: vec![name.into(); failed] })
}

fn docs(run: &mut Run) -> Outcome {
    let mut command = cargo(&["doc", "--workspace", "--no-deps", "--keep-going"]);
    let passed = run.succeeds(command.env("RUSTDOCFLAGS", "-D warnings"), HOUR);
    // Cargo only warns if two pages have the same path.
    Outcome::one(run.name(), passed && !log(run).lines().any(|line| line.starts_with("warning")))
}

fn features(run: &mut Run) -> Outcome {
    let observed = cargo(&["test", "-p", "fs-compat", "--features", "metrics,tracing", "--test", "observed"]);
    let facade = cargo(&["test", "-p", "fastsock", "--features", "tap,metrics,tracing"]);
    let mut outcome = tested(run, observed, HOUR);
    outcome.add(tested(run, facade, HOUR));
    outcome
}

fn xsk_rs(run: &mut Run) -> Outcome {
    tested(run, cargo(&["test", "-p", "fs-xdp", "--features", "xsk-rs", "--test", "link_suite"]), HOUR)
}

/// Runs clippy and the tests of the packages that `make test` leaves out.
fn benches(run: &mut Run) -> Outcome {
    let chosen = packages(&nextest::LEFT_OUT);
    let mut clippy = cargo(&["clippy", "--all-targets"]);
    let clean = run.succeeds(clippy.args(&chosen).args(["--", "-D", "warnings"]), HOUR);
    let mut outcome = Outcome::one("clippy of benches", clean);
    let mut tests = cargo(&["test", "--no-fail-fast"]);
    tests.args(&chosen);
    outcome.add(tested(run, tests, HOUR));
    outcome
}

fn loom(run: &mut Run) -> Outcome {
    let mut command = cargo(&["test", "-p", "fs-carrier", "--release", "--lib", "--target-dir"]);
    command.arg(target().join("proof/loom")).args(["--", "tests::orders"]);
    command.env("RUSTFLAGS", "--cfg loom");
    tested(run, command, HOUR)
}

fn miri(run: &mut Run) -> Outcome {
    if output_of(&mut cargo(&["+nightly", "miri", "--version"])).is_none() {
        run.note("skipped: no Miri: rustup +nightly component add miri rust-src");
        return Outcome::skipped();
    }
    // The modules with unsafe code for memory; other tests make system calls. Compiler wrappers do
    // not support Miri.
    let mut command = cargo(&["+nightly", "miri", "test", "-p", "fs-xdp", "--lib", "--target-dir"]);
    command.arg(target().join("proof/miri"));
    command.args(["--", "--skip", "steering", "ring::", "umem::", "memory::", "fill_target::"]);
    command.env_remove("RUSTC_WRAPPER").env("MIRIFLAGS", "-Zmiri-disable-isolation");
    let mut outcome = tested(run, command, 2 * HOUR);
    let mut carrier = cargo(&["+nightly", "miri", "test", "-p", "fs-carrier", "--lib", "--target-dir"]);
    carrier.arg(target().join("proof/miri"));
    carrier.env_remove("RUSTC_WRAPPER").env("MIRIFLAGS", "-Zmiri-disable-isolation");
    outcome.add(tested(run, carrier, 2 * HOUR));
    outcome
}

/// Crates whose tests run under AddressSanitizer.
const WATCHED: [&str; 5] = ["fs-xdp", "fs-rt", "fs-compat", "fs-carrier", "fs-pairs"];

fn sanitize(run: &mut Run) -> Outcome {
    let libraries = output_of(Command::new("rustc").args(["--print", "target-libdir"])).unwrap_or_default();
    let runtime = std::fs::read_dir(libraries.trim()).into_iter().flatten().flatten();
    if !runtime.into_iter().any(|file| file.file_name().to_string_lossy().ends_with("_rt.asan.a")) {
        run.note("skipped: this compiler came without AddressSanitizer");
        return Outcome::skipped();
    }
    // With an explicit target, build scripts are not instrumented. The stable compiler needs
    // permission.
    let mut command = cargo(&["test", "--lib", "--tests", "--no-fail-fast", "--target", &host(), "--target-dir"]);
    command.arg(target().join("proof/sanitize"));
    command
        .args(packages(&WATCHED))
        .args(["--", "--test-threads=1"])
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", "-Zsanitizer=address -Cforce-frame-pointers=yes")
        .env("ASAN_OPTIONS", "detect_leaks=1");
    tested(run, command, 2 * HOUR)
}

/// Runs the ignored (long) tests, optimized, one at a time: some measure time or CPU.
fn long(run: &mut Run) -> Outcome {
    if !release(run) {
        return Outcome::one("long: build", false);
    }
    let mut arguments = nextest::workspace();
    arguments.extend(profile());
    // The frameworks' tests need a program that has its own part.
    arguments.extend(["--run-ignored", "only", "-E", "not binary(frameworks)"]);
    nextest::tests(run, "long", &arguments, 4 * HOUR)
}

/// Selects the packages of the build, for a test of one of them: a selection of fewer has other
/// features, and cargo would build most packages again.
fn all_packages() -> Vec<&'static str> {
    if is_debug_build() { nextest::workspace() } else { vec!["--workspace"] }
}

fn frameworks(run: &mut Run) -> Outcome {
    if !release(run) {
        return Outcome::one("frameworks: build", false);
    }
    let arguments = [&all_packages()[..], &["--test", "frameworks", "--run-ignored", "all"], profile()].concat();
    let mut outcome = nextest::tests(run, "default", &arguments, HOUR);
    let sends = [&["-p", "fs-frameworks", "--test", "send"], profile()].concat();
    outcome.add(nextest::tests(run, "default", &sends, HOUR));
    outcome
}

fn unmodified(run: &mut Run) -> Outcome {
    if !release(run) {
        return Outcome::one("unmodified: build", false);
    }
    let arguments = [&all_packages()[..], &["--test", "unmodified", "--run-ignored", "all"], profile()].concat();
    let outcome = nextest::tests(run, "default", &arguments, 2 * HOUR);
    // The page has figures of the release build.
    if outcome.failed.is_empty() && !is_debug_build() {
        run.succeeds(&mut Command::new(crate::tools::release("compatibility")), MINUTE);
    }
    outcome
}

fn suites(run: &mut Run) -> Outcome {
    counted(run, &mut xtask(&["suites"]), 3 * HOUR)
}

fn icount(run: &mut Run) -> Outcome {
    all(run, [xtask(&["icount", "--check"])], HOUR)
}

fn experiments(run: &mut Run) -> Outcome {
    built(run, [xtask(&["experiments", "--smoke"])], HOUR)
}

fn soak(run: &mut Run) -> Outcome {
    let seconds = variable(run, "SECONDS", "600");
    let mut command = Command::new(crate::tools::release("fs-sim"));
    command.args(["soak", "--seconds", &seconds]);
    built(run, [command], 24 * HOUR)
}

fn fuzz(run: &mut Run) -> Outcome {
    let Ok(minutes) = variable(run, "MINUTES", "10").parse::<u64>() else { return Outcome::one("MINUTES", false) };
    let mut command = xtask(&["fuzz", "--seconds", &(minutes * MINUTE).to_string()]);
    command.env_remove(BUILT);
    all(run, [command], 24 * HOUR)
}

fn differ(run: &mut Run) -> Outcome {
    if !release(run) {
        return Outcome::one("differ: build", false);
    }
    let seconds = variable(run, "SECONDS", "600");
    let mut command = Command::new(crate::tools::release("fs-differ"));
    command.args(["run", "tests/differ", "--seconds", &seconds, "--jobs", "2", "--differences", "1000"]);
    command.args(["--allowed", "tests/differ/allowed.txt", "--not-yet", "tests/differ/not-yet.txt"]);
    let page = variable(run, "COVERAGE", "");
    if !page.is_empty() {
        command.args(["--coverage", &page]);
    }
    Outcome::one(run.name(), run.succeeds(&mut command, 24 * HOUR))
}

fn changes(run: &mut Run) -> Outcome {
    let mut command = Command::new(crate::tools::release("changes"));
    command.args(["--seconds", &variable(run, "SECONDS", "600")]);
    built(run, [command], 24 * HOUR)
}

fn compat(run: &mut Run) -> Outcome {
    let mut install = Command::new("lab/install");
    install.arg("compat");
    let mut compat = Command::new(crate::tools::release("compat"));
    compat
        .args(["--requests", &variable(run, "REQUESTS", "100000")])
        .args(variable(run, "PROGRAMS", "").split_whitespace());
    built(run, [install, compat], 24 * HOUR)
}

/// The programs of `compat`, while the daemon is killed and exchanged.
/// `make test` runs them on the kernel's sockets.
fn proxy(run: &mut Run) -> Outcome {
    if !is_root() {
        run.note("skipped: needs root");
        return Outcome::skipped();
    }
    tested(run, Command::new("crates/fs-proxy/tests/af_xdp"), HOUR)
}

fn kills(run: &mut Run) -> Outcome {
    let mut install = Command::new("lab/install");
    install.arg("compat");
    let mut compat = Command::new(crate::tools::release("compat"));
    compat.args(["--kill-daemon", "--requests", &variable(run, "REQUESTS", "100000")]);
    compat.args(variable(run, "PROGRAMS", "").split_whitespace());
    built(run, [install, compat], 24 * HOUR)
}

fn worlds(run: &mut Run) -> Outcome {
    let mut command = Command::new(crate::tools::release("worlds"));
    command.args(["--seconds", &variable(run, "SECONDS", "600")]);
    let seed = variable(run, "SEED", "");
    if !seed.is_empty() {
        command.args(["--seed", &seed]);
    }
    built(run, [command], 24 * HOUR)
}

fn vm(run: &mut Run) -> Outcome {
    if !run.succeeds(Command::new("lab/install").arg("vm"), HOUR) || !release(run) {
        return Outcome::one("vm: build", false);
    }
    let mut command = xtask(&["vm", "matrix"]);
    command.args((!variable(run, "QUICK", "").is_empty()).then_some("--quick"));
    let only = variable(run, "ONLY", "");
    if !only.is_empty() {
        command.args(["--only", &only]);
    }
    counted(run, &mut command, 12 * HOUR)
}

fn deb(run: &mut Run) -> Outcome {
    counted(run, &mut xtask(&["deb", "--test"]), 2 * HOUR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_verdicts() {
        assert_eq!(verdict("vm", "3 passed, 0 failed"), Some(Outcome { passed: 3, skipped: 0, failed: vec![] }));
        assert_eq!(verdict("vm", "3 passed, 2 failed, 1 skipped").map(|outcome| outcome.failed.len()), Some(2));
        assert_eq!(verdict("vm", "test result: ok. 3 passed; 0 failed"), None);
    }
}
