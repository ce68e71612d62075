//! What came of the tests: a log, a JUnit file, counts for who adds up, and failures for who reads.

use crate::command::Ran;
use crate::programs::Test;
use anyhow::{Context, Result};
use quick_junit::{NonSuccessKind, TestCase, TestCaseStatus, TestSuite, XmlString};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Lines and bytes of a failed test's output that are shown; the log has all of it.
const SHOWN: (usize, usize) = (40, 400);
/// Bytes of an error with all its causes.
const CAUSES: usize = 1500;
/// As many are named with their times at the log's end.
const SLOWEST: usize = 25;

/// The results of a run.
pub(crate) struct Report {
    name: String,
    dir: PathBuf,
    log: File,
    began: Instant,
    suite: TestSuite,
    passed: usize,
    skipped: usize,
    failures: Vec<(String, String)>,
    times: Vec<(Duration, String)>,
}

impl Report {
    /// A report without results, whose files lie in `dir`.
    pub(crate) fn new(name: &str, dir: &Path) -> Result<Self> {
        let path = dir.join(name).with_extension("log");
        let log = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Report {
            name: name.to_owned(),
            dir: dir.to_owned(),
            log,
            began: Instant::now(),
            suite: TestSuite::new(name),
            passed: 0,
            skipped: 0,
            failures: Vec::new(),
            times: Vec::new(),
        })
    }

    /// The folder of its files.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// How many have failed.
    pub(crate) fn failed(&self) -> usize {
        self.failures.len()
    }

    /// Words for the log alone.
    pub(crate) fn log(&mut self, text: &str) -> Result<()> {
        Ok(self.log.write_all(text.as_bytes())?)
    }

    /// A program without results: it did not compile, or did not list its tests.
    pub(crate) fn broken(&mut self, name: &str, why: &str) -> Result<()> {
        self.fail(name, TestCaseStatus::non_success(NonSuccessKind::Error), why, Duration::ZERO)
    }

    /// A test that is not run.
    pub(crate) fn ignored(&mut self, test: &Test) -> Result<()> {
        self.skip(&test.name(), "ignored", Duration::ZERO)
    }

    /// A doctest, by rustdoc's own word for its result.
    pub(crate) fn doctest(&mut self, name: &str, result: &str) -> Result<()> {
        match result {
            "ok" => self.pass(name, Duration::ZERO),
            "FAILED" => self.fail(name, failure("a doctest that failed"), "see the log", Duration::ZERO),
            _ => self.skip(name, result, Duration::ZERO),
        }
    }

    /// A test that has run. One that succeeds and says "skipped: …" did not test anything.
    pub(crate) fn ran(&mut self, test: &Test, ran: &Ran) -> Result<()> {
        let (name, outcome) = (test.name(), ran.outcome());
        writeln!(self.log, "=== {name}: {outcome}, {:.2} s", ran.time.as_secs_f64())?;
        self.log.write_all(ran.output.as_bytes())?;
        self.times.push((ran.time, name.clone()));
        // libtest says a test's name before what the test says, on the same line.
        let skipped = ran.output.lines().find_map(|line| line.find("skipped: ").map(|at| line[at..].to_owned()));
        match (ran.succeeded(), skipped) {
            (false, _) => self.fail(&name, failure(&outcome), &format!("{}{outcome}\n", ran.output), ran.time),
            (true, Some(why)) => self.skip(&name, &why, ran.time),
            (true, None) => self.pass(&name, ran.time),
        }
    }

    fn pass(&mut self, name: &str, time: Duration) -> Result<()> {
        self.passed += 1;
        self.case(name, TestCaseStatus::success(), time, None)
    }

    fn skip(&mut self, name: &str, why: &str, time: Duration) -> Result<()> {
        self.skipped += 1;
        let mut status = TestCaseStatus::skipped();
        status.set_message(why);
        self.case(name, status, time, None)
    }

    fn fail(&mut self, name: &str, status: TestCaseStatus, output: &str, time: Duration) -> Result<()> {
        self.failures.push((name.to_owned(), output.to_owned()));
        self.case(name, status, time, Some(output))
    }

    fn case(&mut self, name: &str, status: TestCaseStatus, time: Duration, output: Option<&str>) -> Result<()> {
        let (class, test) = name.rsplit_once("::").unwrap_or((&self.name, name));
        let mut case = TestCase::new(test, status);
        case.set_classname(class).set_time(time);
        if let Some(output) = output {
            case.set_system_out(XmlString::new(output));
        }
        self.suite.add_test_case(case);
        Ok(())
    }

    /// Writes the files and prints the counts and what failed. True when nothing has failed, and there were tests.
    pub(crate) fn end(mut self) -> Result<bool> {
        self.times.sort_by(|a, b| b.cmp(a));
        writeln!(self.log, "=== The slowest of {}:", self.times.len())?;
        for (time, name) in self.times.iter().take(SLOWEST) {
            writeln!(self.log, "{:8.2} s  {name}", time.as_secs_f64())?;
        }
        let mut junit = quick_junit::Report::new(&self.name);
        self.suite.set_time(self.began.elapsed());
        junit.set_time(self.began.elapsed()).add_test_suite(self.suite);
        let file = |extension| self.dir.join(&self.name).with_extension(extension);
        junit.serialize(File::create(file("xml"))?).context("cannot write the JUnit file")?;
        let mut counts = format!("{} {} {}\n", self.passed, self.failures.len(), self.skipped);
        for (name, output) in &self.failures {
            counts += &format!("{name}: {}\n", reason(output));
        }
        std::fs::write(file("counts"), counts)?;
        let took = self.began.elapsed().as_secs();
        println!("{:5} passed {:3} failed {:3} skipped  {took:4} s", self.passed, self.failures.len(), self.skipped);
        for (name, output) in &self.failures {
            println!("  failed: {name}");
            excerpt(output).iter().for_each(|line| println!("  | {line}"));
        }
        Ok(self.failures.is_empty() && self.passed + self.skipped > 0)
    }
}

fn failure(message: &str) -> TestCaseStatus {
    let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
    status.set_message(message);
    status
}

/// The last lines of a failed test's output.
fn excerpt(output: &str) -> Vec<String> {
    let lines: Vec<&str> = output.lines().collect();
    let last = &lines[lines.len().saturating_sub(SHOWN.0)..];
    last.iter().map(|line| shown(line)).collect()
}

/// Why a test failed, on one line: the error that it returned or the words of its panic; else its output's last line.
fn reason(output: &str) -> String {
    let mut lines = output.lines();
    let mut last = "";
    while let Some(line) = lines.next() {
        if let Some(error) = line.strip_prefix("Error: ") {
            return with_causes(error, lines).chars().take(CAUSES).collect();
        }
        if line.starts_with("thread '") && line.contains(" panicked at ") {
            return shown(lines.next().unwrap_or(line));
        }
        if !line.trim().is_empty() {
            last = line;
        }
    }
    shown(last)
}

/// An error and what it was caused by, as anyhow prints them below it, on one line: the end of the whole run's output is often all that
/// there is to see.
fn with_causes<'a>(error: &str, below: impl Iterator<Item = &'a str>) -> String {
    let mut whole = error.to_owned();
    let mut causes = below.skip_while(|line| line.trim().is_empty());
    if causes.next() == Some("Caused by:") {
        for line in causes.take_while(|line| line.starts_with("    ") || line.is_empty()) {
            let line = line.trim();
            let cause = line
                .split_once(": ")
                .filter(|(number, _)| number.parse::<u32>().is_ok())
                .map_or(line, |(_, cause)| cause);
            if !cause.is_empty() {
                whole = whole + ": " + cause;
            }
        }
    }
    whole
}

fn shown(line: &str) -> String {
    line.chars().take(SHOWN.1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_the_error_or_the_panic() {
        let of_panic = "ready\n\nthread 'a::b' (12) panicked at src/lib.rs:3:5:\nassertion failed\nnote: run with …\ntest a::b ... FAILED\n";
        assert_eq!(reason(of_panic), "assertion failed");
        assert_eq!(
            reason("log of nginx\nError: 3 contended locks under load\ntest a ... FAILED\n"),
            "3 contended locks under load"
        );
        let caused =
            "Error: round 7\n\nCaused by:\n    0: after\n         2 s: down\n    1: reset\n\ntest a ... FAILED\n";
        assert_eq!(reason(caused), "round 7: after: 2 s: down: reset");
        assert_eq!(reason("Error: round 7\n\nCaused by:\n    reset\n"), "round 7: reset");
        assert_eq!(reason("one\nnot over after 8 s\n\n"), "not over after 8 s");
        assert_eq!(reason(""), "");
    }
}
