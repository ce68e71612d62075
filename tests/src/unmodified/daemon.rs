//! `fastsock up` in a namespace of the lab, and its counters.

use crate::apps::{READY_LIMIT, programs_dir};
use crate::lab::{Lab, Ns};
use crate::process::Proc;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the path of the library. It has no blank and no colon, at which LD_PRELOAD would be
/// split.
pub fn library() -> PathBuf {
    programs_dir().join("libfastsock.so")
}

/// What carries connections between the processes of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// `libfastsock.so`: sockets of the library's own.
    Shm,
    /// `libfastsock_preload.so`: the kernel's sockets, with a ring.
    Ring,
}

impl Carrier {
    fn library(self) -> PathBuf {
        match self {
            Carrier::Shm => library(),
            Carrier::Ring => programs_dir().join("libfastsock_preload.so"),
        }
    }
}

/// The `fastsock` program.
pub fn program() -> PathBuf {
    programs_dir().join("fastsock")
}

/// How the daemon reaches the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Connections of this host only.
    OnlyLocal,
    /// The device of its namespace that faces the peer as well.
    Wire,
}

/// A running daemon.
pub struct Daemon {
    /// The process.
    pub proc: Proc,
    control: PathBuf,
    library: PathBuf,
    ns: Ns,
    /// Where processes with a ring write their counters at their end.
    report: Option<PathBuf>,
}

/// The output of `fastsock stat`.
#[derive(Clone, Debug, Default)]
pub struct Counters(BTreeMap<String, u64>);

impl Counters {
    /// A counter; 0 when it was not printed.
    pub fn value(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// How far a counter has moved since `before`.
    pub fn since(&self, before: &Counters, name: &str) -> u64 {
        self.value(name).saturating_sub(before.value(name))
    }
}

impl Daemon {
    /// Starts one in `ns` and waits until it serves.
    pub fn start(lab: &Lab, ns: Ns, reach: Reach) -> Result<Daemon> {
        Self::start_with(lab, ns, reach, &[])
    }

    /// The same with further options.
    pub fn start_with(lab: &Lab, ns: Ns, reach: Reach, options: &[&str]) -> Result<Daemon> {
        Self::start_for(Carrier::Shm, lab, ns, reach, options)
    }

    /// The same for programs that get a carrier's library.
    pub fn start_for(carrier: Carrier, lab: &Lab, ns: Ns, reach: Reach, options: &[&str]) -> Result<Daemon> {
        for file in [carrier.library(), program()] {
            ensure!(file.exists(), "{} is not there: cargo build --workspace --lib --bins", file.display());
        }
        let control = lab.dir().join(format!("{}.sock", lab.ns(ns)));
        let mut command = lab.command(ns, program());
        command.arg("up").env("FASTSOCK_CONTROL", &control);
        match reach {
            Reach::OnlyLocal => command.arg("--only-local"),
            Reach::Wire => command.args(["--device", crate::servers::devices(ns).0, "--partial-checksums"]),
        };
        let mut proc = lab.spawn(&format!("daemon-{}", lab.ns(ns)), command.args(options))?;
        let log = proc.log_path().to_owned();
        let says = || std::fs::read_to_string(&log).is_ok_and(|text| text.lines().any(|line| line == "ready"));
        proc.wait_for("ready", READY_LIMIT, says)?;
        // Programs that drop privileges must find it: a copy in the lab's folder, which every user
        // may enter.
        let library = carrier.library();
        let copy = lab.dir().join(library.file_name().context("the library has no name")?);
        if !copy.exists() {
            std::fs::copy(&library, &copy)?;
        }
        let report = (carrier == Carrier::Ring).then(|| lab.dir().join(format!("{}.report", lab.ns(ns))));
        Ok(Daemon { proc, control, library: copy, ns, report })
    }

    /// A number that the processes with a ring which have ended report, summed up.
    pub fn reported(&self, name: &str) -> u64 {
        let text = self.report.as_ref().and_then(|report| std::fs::read_to_string(report).ok()).unwrap_or_default();
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
    pub fn environment(&self) -> [String; 2] {
        [format!("LD_PRELOAD={}", self.library.display()), format!("FASTSOCK_CONTROL={}", self.control.display())]
    }

    /// Returns a command in its namespace whose program gets the library.
    pub fn command(&self, lab: &Lab, name: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = lab.command(self.ns, "env");
        // Through env(1), so that "ip netns exec" itself runs without the library.
        command.args(self.environment());
        if let Some(report) = &self.report {
            command.arg(format!("FASTSOCK_REPORT={}", report.display()));
        }
        command.arg(name);
        command
    }

    /// Its counters.
    pub fn counters(&self, lab: &Lab) -> Result<Counters> {
        let mut command = lab.command(self.ns, program());
        let output = command.arg("stat").env("FASTSOCK_CONTROL", &self.control).output().context("fastsock stat")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success(), "fastsock stat: {}\n{text}", output.status);
        let mut counters = BTreeMap::new();
        for line in text.lines() {
            if let Some((name, value)) = line.split_once(char::is_whitespace)
                && let Ok(value) = value.trim().parse()
            {
                counters.insert(name.to_owned(), value);
            }
        }
        Ok(Counters(counters))
    }

    /// Returns the output of `fastsock ss`, to diagnose a failure.
    pub fn sockets(&self, lab: &Lab) -> String {
        let mut command = lab.command(self.ns, program());
        let output = command.arg("ss").env("FASTSOCK_CONTROL", &self.control).output();
        output.map_or_else(|error| error.to_string(), |output| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Sends SIGTERM; an error unless it ends soon, with status 0.
    pub fn stop(&mut self) -> Result<()> {
        let status = self.proc.terminate(READY_LIMIT)?;
        ensure!(status.success(), "the daemon ended with {status} after SIGTERM:\n{}", self.proc.log());
        Ok(())
    }
}
