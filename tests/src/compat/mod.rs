//! `make compat`: runs real programs under load and faults, on kernel sockets and on ours, and
//! compares them.
//!
//! A [`Program`] defines how a server is started, its clients' requests (`src/bin/asker`), and the
//! faults during them. [`run()`] runs it in one placement and returns an [`Outcome`].
//! [`judge`](judge::judge) compares the kernel's with ours.

pub mod judge;
pub mod programs;
pub mod run;
pub mod table;
pub mod watch;

use crate::process::Proc;
use crate::unmodified::Stage;
use crate::unmodified::stage::finish;
use anyhow::{Context, Result, ensure};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

pub use run::{Outcome, run};

/// Limit for a program's actions on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A server program and its test.
pub struct Program {
    /// Its row in the table.
    pub name: &'static str,
    /// Commands (found in the path) and files that must be there; without them it is skipped.
    pub needs: &'static [&'static str],
    /// Its clients' protocol, as in `asker --ask`.
    pub ask: &'static str,
    /// Further arguments of the clients.
    pub clients: &'static [&'static str],
    /// The client: `asker`, or a program with the same arguments and output.
    pub client: fn(&Place) -> Result<Command>,
    /// Makes its folder and starts it.
    pub start: fn(&Place) -> Result<Server>,
    /// Why the kernel alone carries its connections; `None`: rings do.
    pub carried: Option<&'static str>,
    /// Faults while clients send requests, in turn and twice.
    pub faults: Vec<Fault>,
}

impl Program {
    /// Creates a program whose clients are `asker`.
    pub fn new(
        name: &'static str,
        needs: &'static [&'static str],
        ask: &'static str,
        start: fn(&Place) -> Result<Server>,
        faults: Vec<Fault>,
    ) -> Program {
        Program { name, needs, ask, clients: &[], client: asker, start, carried: None, faults }
    }

    /// Adds arguments of the clients.
    pub fn asked(self, clients: &'static [&'static str]) -> Program {
        Program { clients, ..self }
    }

    /// The kernel alone carries its connections, for this reason.
    pub fn carried(self, why: &'static str) -> Program {
        Program { carried: Some(why), ..self }
    }

    /// Returns a missing prerequisite.
    pub fn missing(&self) -> Option<&'static str> {
        self.needs.iter().copied().find(|need| program(need).is_err())
    }
}

/// The client of nearly all.
fn asker(place: &Place) -> Result<Command> {
    let asker = crate::apps::programs_dir().join("asker");
    ensure!(asker.exists(), "{} is not there: cargo build --release -p fs-tests", asker.display());
    Ok(place.stage.endless_client(&asker.display().to_string()))
}

/// The path of an installed program.
pub fn program(name: &str) -> Result<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let found = path.split(':').map(|dir| PathBuf::from(dir).join(name)).find(|path| path.exists());
    found.with_context(|| format!("{name} is not installed"))
}

/// A fault of a server under load, and the failures that clients may see because of it.
pub struct Fault {
    /// Its name in the table.
    pub name: &'static str,
    /// Permitted kinds of failures, by the client's names (`asker`: refused, reset, closed, stale,
    /// answer 502 …).
    pub permits: &'static [&'static str],
    /// Does it.
    pub act: Act,
}

/// An action on a running server.
pub type Does = fn(&Place, &mut Server) -> Result<()>;

/// The action of a fault.
pub enum Act {
    /// This.
    Do(Does),
    /// All of the server's processes are killed, and this function starts it again.
    Restart(Does),
    /// A client process with open connections is killed.
    KillClient,
}

/// The place of a server: sockets, folder, port.
pub struct Place<'a> {
    /// The placement.
    pub stage: &'a Stage<'a>,
    /// Its first port. The next nine belong to the program too.
    pub port: u16,
    /// A folder of its own.
    pub dir: PathBuf,
}

impl Place<'_> {
    /// Returns a path in its folder, for configurations.
    pub fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// Writes a configuration; its path.
    pub fn write(&self, name: &str, text: &str) -> Result<String> {
        let path = self.path(name);
        std::fs::write(&path, text).with_context(|| path.clone())?;
        Ok(path)
    }

    /// Starts a process of the server and waits until `port` is reached.
    pub fn serve(&self, name: &str, command: &mut Command, port: u16) -> Result<Proc> {
        let name = format!("{}-{}-{name}", self.port, self.stage.placement.name());
        // Some send signals to all of their process group.
        self.stage.serve(&name, command.process_group(0), port)
    }
}

/// The processes of a server. Clients reach the first one.
#[derive(Default)]
pub struct Server(pub Vec<Proc>);

impl From<Proc> for Server {
    fn from(proc: Proc) -> Server {
        Server(vec![proc])
    }
}

impl Server {
    /// The process that clients reach, or its master.
    pub fn main(&mut self) -> Result<&mut Proc> {
        self.0.first_mut().context("a server without a process")
    }

    /// Sends a signal to the main process.
    pub fn signal(&mut self, signal: &str) -> Result<()> {
        self.main()?.signal(signal)
    }

    /// Kills the newest child of the main process: an older one may be about to end. Whether there
    /// is a new one is for the master to decide.
    pub fn kill_worker(&mut self) -> Result<()> {
        kill_child(self.main()?.pid())
    }

    /// Kills all of it.
    pub fn kill(&mut self) {
        let pids: Vec<u32> = self.0.iter().flat_map(|proc| watch::tree(proc.pid())).collect();
        for pid in &pids {
            let _ = signal(*pid, "KILL");
        }
        self.0.clear();
        let _ = until("all processes end", || pids.iter().all(|pid| !watch::lives(*pid)));
    }

    /// Ends it by SIGTERM, and kills processes that ignore it.
    pub fn end(mut self) {
        for proc in &self.0 {
            let _ = proc.signal("TERM");
        }
        for proc in &mut self.0 {
            let _ = proc.wait_end(Duration::from_secs(5));
        }
        self.kill();
    }
}

/// Kills the newest child of a process, and waits until that has noticed.
pub fn kill_child(master: u32) -> Result<()> {
    let mut victim = None;
    until("a child", || {
        victim = watch::children(master).last().copied();
        victim.is_some()
    })?;
    let victim = victim.unwrap_or_default();
    // The process may have exited just now.
    let _ = signal(victim, "KILL");
    until("the end of a child", || !watch::children(master).contains(&victim))
}

/// Sends a signal to a process.
pub fn signal(pid: u32, name: &str) -> Result<()> {
    finish(Command::new("kill").args([&format!("-{name}"), &pid.to_string()]), "kill").map(drop)
}

/// Waits until a condition holds.
pub fn until(what: &str, mut so: impl FnMut() -> bool) -> Result<()> {
    let start = Instant::now();
    while !so() {
        ensure!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
