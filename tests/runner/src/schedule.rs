//! Which test runs when: first those that may run beside others, several at once, and beside them those that only wait; then each of
//! the others alone.

use crate::command::{self, Ran};
use crate::programs::{Company, Test};
use crate::report::Report;
use anyhow::Result;
use rustix::process::{Pid, Signal, kill_process_group};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs all of them and enters their results. The process group `other` stands still while one runs alone.
pub(crate) fn run(tests: Vec<Test>, jobs: usize, other: Option<i32>, report: &mut Report) -> Result<()> {
    let (ignored, tests): (Vec<_>, Vec<_>) = tests.into_iter().partition(|test| test.ignored);
    for test in &ignored {
        report.ignored(test)?;
    }
    let of = |company| tests.iter().filter(|test| test.company == company).map(Queued::new).collect::<Vec<_>>();
    let (beside, waits, alone) = (of(Company::Beside), of(Company::Waits), of(Company::Alone));
    // What is left of those that wait is for the others' workers when they have nothing else.
    let all: Vec<_> = beside.iter().chain(&waits).collect();
    let mut workers = vec![&all[..]; jobs];
    let waits: Vec<_> = waits.iter().collect();
    workers.extend((!waits.is_empty()).then_some(&waits[..]));
    batch(&workers, report)?;
    let _stopped = other.and_then(Pid::from_raw).map(Stopped::new);
    batch(&[&alone.iter().collect::<Vec<_>>()], report)
}

/// A process group that stands still for as long as this lives. It may have ended by itself.
struct Stopped(Pid);

impl Stopped {
    fn new(group: Pid) -> Self {
        let _ = kill_process_group(group, Signal::STOP);
        Self(group)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process_group(self.0, Signal::CONT);
    }
}

/// A test that one worker takes.
struct Queued<'a> {
    test: &'a Test,
    is_taken: AtomicBool,
}

impl<'a> Queued<'a> {
    fn new(test: &'a Test) -> Self {
        Self { test, is_taken: AtomicBool::new(false) }
    }

    fn take(&self) -> Option<&'a Test> {
        (!self.is_taken.swap(true, Ordering::Relaxed)).then_some(self.test)
    }
}

/// Each worker takes from its own list, in its order, what nobody has taken.
fn batch(workers: &[&[&Queued<'_>]], report: &mut Report) -> Result<()> {
    let dir = report.dir().to_owned();
    let report = Mutex::new(report);
    std::thread::scope(|scope| {
        let running: Vec<_> = workers
            .iter()
            .enumerate()
            .map(|(worker, list)| {
                let (dir, report) = (&dir, &report);
                scope.spawn(move || -> Result<()> {
                    for test in list.iter().filter_map(|queued| queued.take()) {
                        let ran = one(test, worker, dir);
                        let mut report = report.lock().expect("no worker panics");
                        match ran {
                            Ok(ran) => report.ran(test, &ran)?,
                            Err(error) => report.broken(&test.name(), &format!("{error:#}"))?,
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        running.into_iter().try_for_each(|worker| worker.join().expect("no worker panics"))
    })
}

/// A worker's labs have names of their own: `FS_LAB-WORKER-…`.
fn one(test: &Test, worker: usize, dir: &Path) -> Result<Ran> {
    let lab = std::env::var("FS_LAB").unwrap_or_else(|_| format!("fst{}", std::process::id()));
    let mut command = test.program.command();
    // Two threads: with one, libtest would run the test on the program's main thread.
    command.args(["--exact", &test.test, "--nocapture", "--test-threads=2"]).env("FS_LAB", format!("{lab}-{worker}"));
    command::run(command, test.timeout, &PathBuf::from(test.name().replace(['/', ':'], "-")), dir)
}
