//! Started programs, and information of /proc about them.

use anyhow::{Context, Result, bail, ensure};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Ticks of /proc/PID/stat per second: USER_HZ, 100 on every architecture that Linux has in user
/// space.
const TICKS: f64 = 100.0;

/// A running program; killed when dropped.
#[derive(Debug)]
pub struct Proc {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Proc {
    /// Starts `command` with its standard output and error going to `log`.
    pub fn spawn(name: &str, log: &Path, command: &mut Command) -> Result<Proc> {
        Proc::start(name, log, command, Stdio::null())
    }

    /// The same, with a pipe as its standard input: see [`Proc::feed`].
    pub fn spawn_fed(name: &str, log: &Path, command: &mut Command) -> Result<Proc> {
        Proc::start(name, log, command, Stdio::piped())
    }

    fn start(name: &str, log: &Path, command: &mut Command, input: Stdio) -> Result<Proc> {
        let out = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let child = command
            .stdin(input)
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .with_context(|| format!("cannot start {name}: {command:?}"))?;
        Ok(Proc { name: name.into(), child, log: log.into() })
    }

    /// Writes to its standard input.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<()> {
        let input = self.child.stdin.as_mut().context("its standard input is no pipe")?;
        input.write_all(bytes)?;
        Ok(input.flush()?)
    }

    /// Closes its standard input.
    pub fn end_input(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the file with its output.
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// Returns its output up to now.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Its exit status, when it has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits until `ready` holds; an error, with the end of the log, when the program ends first or
    /// time runs out.
    pub fn wait_for(&mut self, what: &str, limit: Duration, mut ready: impl FnMut() -> bool) -> Result<()> {
        let start = Instant::now();
        loop {
            // Checked first, so that its output before the end counts.
            let ended = self.ended()?;
            if ready() {
                return Ok(());
            }
            if let Some(status) = ended {
                bail!("{} ended ({status}) before {what}:\n{}", self.name, tail(&self.log, 20));
            }
            ensure!(
                start.elapsed() < limit,
                "{}: no {what} within {limit:?}; its log ends:\n{}",
                self.name,
                tail(&self.log, 20)
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sends SIGTERM and waits for the end.
    pub fn terminate(&mut self, limit: Duration) -> Result<ExitStatus> {
        self.signal("TERM")?;
        self.wait_end(limit)
    }

    /// Waits for the end.
    pub fn wait_end(&mut self, limit: Duration) -> Result<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            ensure!(
                start.elapsed() < limit,
                "{} still runs after {limit:?}; its log ends:\n{}",
                self.name,
                tail(&self.log, 20)
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sends a signal, named as `kill` names it.
    pub fn signal(&self, signal: &str) -> Result<()> {
        let status = Command::new("sh").args(["-c", &format!("kill -{signal} {}", self.pid())]).status()?;
        ensure!(status.success(), "cannot send SIG{signal} to {}", self.name);
        Ok(())
    }

    /// Kills it as `kill -9` does, and waits until it is gone.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Restricts it, with its children and all threads, to CPUs in the form of `taskset -c`.
    pub fn pin(&self, cpus: &str) -> Result<()> {
        let script = "for p in $0 $(cat /proc/$0/task/*/children); do taskset -acp $1 $p >/dev/null || exit 1; done";
        let status = Command::new("sh").args(["-c", script, &self.pid().to_string(), cpus]).status()?;
        ensure!(status.success(), "cannot confine {} to CPU {cpus}", self.name);
        Ok(())
    }

    /// CPU seconds used so far, user and system, all its threads.
    pub fn cpu_seconds(&self) -> Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()))?;
        // Field 2 is the name in parentheses, which may contain blanks; utime and stime are fields
        // 14 and 15.
        let after = stat.rsplit_once(')').context("/proc/PID/stat")?.1;
        let fields: Vec<&str> = after.split_whitespace().collect();
        let ticks =
            |n: usize| -> Result<f64> { Ok(fields.get(n - 3).context("/proc/PID/stat")?.parse::<u64>()? as f64) };
        Ok((ticks(14)? + ticks(15)?) / TICKS)
    }

    /// Resident memory in bytes.
    pub fn resident(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
        Ok(kib * 1024)
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The last `lines` lines of a file.
pub fn tail(path: &Path, lines: usize) -> String {
    let bytes = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
