//! The program of `tests/semantics`: built, run case by case, compared.

use crate::lab::{Lab, Ns};
use crate::process::Proc;
use anyhow::Result;
use rustix::process::{Pid, setpriority_process};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Limit for a case on a busy machine. The slowest takes two seconds on an idle one.
const CASE_LIMIT: Duration = Duration::from_secs(150);
/// The exit status of a case that reached its next step too late to be valid (`again` of `util.c`;
/// EX_TEMPFAIL), and how often it is run then.
const TOO_SLOW: (i32, u32) = (75, 10);
/// The exit status if a lost wake-up could look like a delay of a busy machine (`late` of `util.c`;
/// EX_IOERR), and how often it is run then.
const LATE: (i32, u32) = (74, 8);

/// The nice value of a case that runs again.
const HIGHEST: i32 = -20;

/// The built program.
pub struct Semantics {
    program: PathBuf,
    cases: Vec<String>,
}

/// The output of a case, line by line. The last line describes an abnormal end.
pub type Observed = Vec<String>;

impl Semantics {
    /// Compiles it.
    pub fn build() -> Result<Semantics> {
        // The program passes invalid arguments on purpose. Other warnings of -Wall are errors.
        let allowed =
            ["-Wno-nonnull", "-Wno-stringop-overflow", "-Wno-stringop-overread", "-Wno-restrict", "-Wno-unused-result"];
        let program = crate::apps::compile("semantics", &allowed)?;
        let listed = Command::new(&program).arg("--list").output()?;
        let cases = String::from_utf8(listed.stdout)?.lines().map(str::to_owned).collect();
        Ok(Semantics { program, cases })
    }

    /// Returns all cases; with `FS_TEST_CASE` those whose name contains it.
    pub fn cases(&self) -> Vec<&str> {
        let wanted = std::env::var("FS_TEST_CASE").unwrap_or_default();
        self.cases.iter().map(String::as_str).filter(|case| case.contains(&wanted)).collect()
    }

    /// The program, for a command to run.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Runs one case in `ns` with a command that ends in the program's name, again if the machine
    /// was too slow. No other case runs there.
    pub fn run(&self, lab: &Lab, case: &str, ns: Ns, mut command: Command) -> Result<Observed> {
        let log = lab.dir().join(format!("case-{}.log", lab.ns(ns)));
        command.arg(case);
        let mut seen = [0; 2];
        let ended = loop {
            let mut proc = Proc::spawn(case, &log, &mut command)?;
            if seen != [0; 2] {
                // Busy processes then hardly delay it. Its first run competes with them.
                let _kept = setpriority_process(Pid::from_raw(proc.pid() as i32), HIGHEST);
            }
            let ended = proc.wait_end(CASE_LIMIT);
            match &ended {
                Ok(status) if may_run_again(&mut seen, status.code()) => {
                    println!("{case}: once more, status {:?}", status.code());
                }
                Ok(_) => break ended,
                Err(_) => {
                    proc.kill()?;
                    break ended;
                }
            }
        };
        let mut lines: Observed = std::fs::read_to_string(&log)?.lines().map(str::to_owned).collect();
        match ended {
            Ok(status) if status.success() => {}
            Ok(status) => lines.push(format!("ENDED {status}")),
            Err(_) => lines.push("STILL RAN and was killed".into()),
        }
        Ok(lines)
    }
}

/// Returns whether a case that ended with `code` runs again. Each reason has its own limit; `seen`
/// counts them.
fn may_run_again(seen: &mut [u32; 2], code: Option<i32>) -> bool {
    let reasons = [TOO_SLOW, LATE].into_iter().zip(seen);
    reasons.into_iter().any(|((reason, most), seen)| {
        let is_it = code == Some(reason);
        *seen += u32::from(is_it);
        is_it && *seen < most
    })
}

/// Returns the first lines that differ, or `None`.
pub fn difference(kernel: &Observed, ours: &Observed) -> Option<String> {
    let n = kernel.len().max(ours.len());
    let mut told = 0;
    let mut text = String::new();
    for i in 0..n {
        let (k, o) = (kernel.get(i), ours.get(i));
        if k != o {
            let show = |line: Option<&String>| line.map_or("(nothing)", String::as_str).to_owned();
            text += &format!("    line {}: kernel {:?}, ours {:?}\n", i + 1, show(k), show(o));
            told += 1;
            if told == 4 {
                break;
            }
        }
    }
    (told > 0).then_some(text)
}
