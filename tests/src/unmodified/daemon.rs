//! `fastsock up`, the match service, in a namespace of the lab, and what programs with its library have done.

use crate::apps::{READY_LIMIT, programs_dir};
use crate::lab::{Lab, Ns};
use crate::process::Proc;
use crate::unmodified::stage::finish;
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the path of the library. It has no blank and no colon, at which LD_PRELOAD would be
/// split.
pub fn library() -> PathBuf {
    programs_dir().join("libfastsock.so")
}

/// The `fastsock` program.
pub fn program() -> PathBuf {
    programs_dir().join("fastsock")
}

/// Returns a command that runs `fastsock` in a namespace of the lab, but among the test's own mounts: what
/// it pins in the BPF file system would end with the mount namespace of "ip netns exec".
pub fn fastsock(lab: &Lab, ns: Ns) -> Command {
    let mut command = lab.command(ns, "nsenter");
    command.arg(format!("--mount=/proc/{}/ns/mnt", std::process::id())).arg("--").arg(program());
    command
}

/// A running daemon.
pub struct Daemon {
    /// The process.
    pub proc: Proc,
    control: PathBuf,
    library: PathBuf,
    ns: Ns,
    /// Where processes write their counters at their end.
    report: PathBuf,
    /// Further variables of programs.
    variables: &'static [&'static str],
}

/// A row of `fastsock ss --json`: a connection with a ring, or one that was refused a ring.
#[derive(Clone, Debug, Deserialize)]
pub struct Pair {
    /// The address of one end.
    pub local: String,
    /// The address of the other.
    pub peer: String,
    /// Bytes that went by the ring, in both directions.
    pub ring_bytes: u64,
    /// Bytes that the kernel carried.
    pub kernel_bytes: u64,
    /// True if the kernel alone carries the connection from now on.
    pub pinned: bool,
    /// The reason why the connection has no ring.
    pub reason: Option<String>,
}

impl Daemon {
    /// Starts one in `ns` and waits until it serves.
    pub fn start(lab: &Lab, ns: Ns) -> Result<Daemon> {
        Self::start_with(lab, ns, &[])
    }

    /// The same with further options.
    pub fn start_with(lab: &Lab, ns: Ns, options: &[&str]) -> Result<Daemon> {
        for file in [library(), program()] {
            ensure!(file.exists(), "{} is not there: cargo build --workspace --lib --bins", file.display());
        }
        let control = lab.dir().join(format!("{}.sock", lab.ns(ns)));
        let mut command = fastsock(lab, ns);
        command.arg("up").env("FASTSOCK_CONTROL", &control);
        let mut proc = lab.spawn(&format!("daemon-{}", lab.ns(ns)), command.args(options))?;
        let log = proc.log_path().to_owned();
        let says = || std::fs::read_to_string(&log).is_ok_and(|text| text.lines().any(|line| line == "ready"));
        proc.wait_for("ready", READY_LIMIT, says)?;
        // Programs that drop privileges must find it: a copy in the lab's folder, which every user
        // may enter.
        let copy = lab.dir().join(library().file_name().context("the library has no name")?);
        if !copy.exists() {
            std::fs::copy(library(), &copy)?;
        }
        // Processes of every user append to it.
        let report = lab.dir().join(format!("{}.report", lab.ns(ns)));
        if !report.exists() {
            std::fs::write(&report, "")?;
            std::fs::set_permissions(&report, std::os::unix::fs::PermissionsExt::from_mode(0o666))?;
        }
        Ok(Daemon { proc, control, library: copy, ns, report, variables: &[] })
    }

    /// Programs with the library yield the processor while they wait, instead of spinning: a ring
    /// is then used on a busy machine too.
    #[must_use]
    pub fn yielding(self) -> Daemon {
        Daemon { variables: &["FASTSOCK_YIELDS=2000"], ..self }
    }

    /// The same, and a connection gets its ring before its first byte.
    #[must_use]
    pub fn eager(self) -> Daemon {
        Daemon { variables: &["FASTSOCK_YIELDS=2000", "FASTSOCK_CALLS=0"], ..self }
    }

    /// A number that the processes which have ended report, summed up: `promoted`, `ring_sends`, …
    /// (`fs-preload/src/report.rs`). A killed process reports nothing.
    pub fn reported(&self, name: &str) -> u64 {
        let text = std::fs::read_to_string(&self.report).unwrap_or_default();
        let fields = text.split_whitespace().filter_map(|field| field.split_once('='));
        fields.filter(|(field, _)| *field == name).filter_map(|(_, value)| value.parse::<u64>().ok()).sum()
    }

    /// The path of its control socket.
    pub fn control(&self) -> &Path {
        &self.control
    }

    /// Its namespace.
    pub fn ns(&self) -> Ns {
        self.ns
    }

    /// Returns the required environment of a program, for env(1).
    pub fn environment(&self) -> Vec<String> {
        let mut all = vec![
            format!("LD_PRELOAD={}", self.library.display()),
            format!("FASTSOCK_CONTROL={}", self.control.display()),
            format!("FASTSOCK_REPORT={}", self.report.display()),
        ];
        all.extend(self.variables.iter().map(|variable| (*variable).to_owned()));
        all
    }

    /// Returns a command in its namespace whose program gets the library.
    pub fn command(&self, lab: &Lab, name: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = lab.command(self.ns, "env");
        // Through env(1), so that "ip netns exec" itself runs without the library.
        command.args(self.environment()).arg(name);
        command
    }

    fn ss(&self, lab: &Lab, options: &[&str]) -> Result<String> {
        let mut command = lab.command(self.ns, program());
        let output = command.arg("ss").args(options).env("FASTSOCK_CONTROL", &self.control).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success(), "fastsock ss: {}\n{text}", output.status);
        Ok(text)
    }

    /// Returns how many connections got a ring since the daemon's start, by `fastsock stat`: also those of
    /// processes that were killed or exited by _exit(2), which [`Daemon::reported`] lacks.
    pub fn promoted(&self, lab: &Lab) -> Result<u64> {
        let mut command = lab.command(self.ns, program());
        let text = finish(command.arg("stat").env("FASTSOCK_CONTROL", &self.control), "fastsock stat")?;
        let value = text.lines().find_map(|line| line.strip_prefix("pairs_promoted ")).context("pairs_promoted")?;
        Ok(value.parse()?)
    }

    /// Returns the output of `fastsock ss`, to diagnose a failure.
    pub fn sockets(&self, lab: &Lab) -> String {
        self.ss(lab, &[]).unwrap_or_else(|error| error.to_string())
    }

    /// The connections that `fastsock ss` lists.
    pub fn pairs(&self, lab: &Lab) -> Result<Vec<Pair>> {
        let text = self.ss(lab, &["--json"])?;
        let mut value: serde_json::Value = serde_json::from_str(&text).with_context(|| text.clone())?;
        serde_json::from_value(value["pairs"].take()).with_context(|| text)
    }

    /// The connections to or from `port` that have a ring.
    pub fn with_ring(&self, lab: &Lab, port: u16) -> Result<Vec<Pair>> {
        let end = format!(":{port}");
        let mut pairs = self.pairs(lab)?;
        pairs.retain(|pair| pair.reason.is_none() && (pair.local.ends_with(&end) || pair.peer.ends_with(&end)));
        Ok(pairs)
    }

    /// Sends SIGTERM; an error unless it ends soon, with status 0.
    pub fn stop(&mut self) -> Result<()> {
        let status = self.proc.terminate(READY_LIMIT)?;
        ensure!(status.success(), "the daemon ended with {status} after SIGTERM:\n{}", self.proc.log());
        Ok(())
    }
}
