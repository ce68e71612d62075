//! One command to its end, or to the end of its time.

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::HashMap;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};
use wait_timeout::ChildExt;

/// What a command did.
pub(crate) struct Ran {
    /// Its end; nothing: it was ended because its time was over.
    pub(crate) status: Option<ExitStatus>,
    /// What it wrote, both outputs in their order.
    pub(crate) output: String,
    /// How long it took.
    pub(crate) time: Duration,
}

impl Ran {
    /// It ended by itself, and well.
    pub(crate) fn succeeded(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// Its end in words.
    pub(crate) fn outcome(&self) -> String {
        match self.status {
            Some(status) if status.success() => "ok".into(),
            Some(status) => status.to_string(),
            None => format!("not over after {} s", self.time.as_secs()),
        }
    }
}

/// Runs a command, whose output goes to `name` in `dir` meanwhile (so that a person can look at a test that hangs). Once `timeout` is
/// over, it and its descendants are ended.
pub(crate) fn run(mut command: Command, timeout: Duration, name: &Path, dir: &Path) -> Result<Ran> {
    let path = dir.join(name).with_extension("running");
    let file = std::fs::File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
    command.stdout(file.try_clone()?).stderr(file);
    let began = Instant::now();
    let mut child = command.spawn().with_context(|| format!("cannot run {:?}", command.get_program()))?;
    let status = child.wait_timeout(timeout)?;
    let time = began.elapsed();
    if status.is_none() {
        end(&mut child)?;
    }
    let output = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
    std::fs::remove_file(&path)?;
    Ok(Ran { status, output, time })
}

/// The child goes last: while it is there, its descendants are known as such.
fn end(child: &mut Child) -> Result<()> {
    for pid in descendants(child.id()).into_iter().filter_map(|pid| Pid::from_raw(pid.cast_signed())) {
        // It may have ended by itself meanwhile.
        let _ = kill_process(pid, Signal::KILL);
    }
    child.kill()?;
    child.wait()?;
    Ok(())
}

fn descendants(of: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        // The second field is a name, in brackets, which may hold anything.
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        if let Some(parent) = parent {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = children.get(&of).cloned().unwrap_or_default();
    let mut next = 0;
    while next < found.len() {
        found.extend(children.get(&found[next]).into_iter().flatten().copied().collect::<Vec<_>>());
        next += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, timeout: u64) -> Ran {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run(command, Duration::from_secs(timeout), Path::new("test"), dir.path()).unwrap()
    }

    #[test]
    fn both_outputs_come_back_in_their_order() {
        let ran = sh("echo one; echo two >&2; echo three; exit 3", 60);
        assert_eq!((ran.output.as_str(), ran.succeeded()), ("one\ntwo\nthree\n", false));
        assert_eq!(ran.outcome(), "exit status: 3");
        assert!(sh("true", 60).succeeded());
    }

    #[test]
    fn what_takes_too_long_is_ended_with_what_it_started() {
        let ran = sh("sleep 1000 & echo $!; sh -c 'sleep 1000' & wait", 3);
        assert!(!ran.succeeded());
        assert_eq!(ran.outcome(), "not over after 3 s");
        let pid: u32 = ran.output.trim().parse().unwrap();
        // A process that was killed may be seen until its new parent has reaped it.
        let is_there = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            !stat.is_empty() && !stat.contains(") Z ")
        };
        let until = Instant::now() + Duration::from_secs(60);
        while is_there() {
            assert!(Instant::now() < until, "{pid} is there");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
