//! Which test runs when: first those that may run beside others, several at once; then each of the others alone.

use crate::command::{self, Ran};
use crate::programs::Test;
use crate::report::Report;
use anyhow::Result;
use rustix::process::{Pid, Signal, kill_process_group};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs all of them and enters their results. The process group `other` stands still while one runs alone.
pub(crate) fn run(tests: Vec<Test>, jobs: usize, other: Option<i32>, report: &mut Report) -> Result<()> {
    let (ignored, tests): (Vec<_>, Vec<_>) = tests.into_iter().partition(|test| test.ignored);
    for test in &ignored {
        report.ignored(test)?;
    }
    let (beside, alone): (Vec<_>, Vec<_>) = tests.into_iter().partition(|test| test.beside);
    batch(&beside, jobs, report)?;
    let _stopped = other.and_then(Pid::from_raw).map(Stopped::new);
    batch(&alone, 1, report)
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

fn batch(tests: &[Test], jobs: usize, report: &mut Report) -> Result<()> {
    let next = AtomicUsize::new(0);
    let dir = report.dir().to_owned();
    let report = Mutex::new(report);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs)
            .map(|worker| {
                let (next, dir, report) = (&next, &dir, &report);
                scope.spawn(move || -> Result<()> {
                    while let Some(test) = tests.get(next.fetch_add(1, Ordering::Relaxed)) {
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
        workers.into_iter().try_for_each(|worker| worker.join().expect("no worker panics"))
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
