//! The places and sockets of the two ends of a table cell.

use crate::apps::{READY_LIMIT, workspace};
use crate::body::{self, Body};
use crate::lab::{Lab, Ns};
use crate::process::Proc;
use crate::unmodified::daemon::Daemon;
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Seconds after which a client that does not end is killed.
const CLIENT_LIMIT: &str = "300";

/// Which ends of a connection within one host get the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Neither: tests the harness itself.
    Kernel,
    /// Both. Another host than `Kernel`'s, so that both fit in one lab.
    OneHost,
    /// The server.
    MixedServer,
    /// The client.
    MixedClient,
}

impl Placement {
    /// All placements, in the table's order.
    pub const ALL: [Placement; 4] =
        [Placement::OneHost, Placement::MixedServer, Placement::MixedClient, Placement::Kernel];

    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Placement::Kernel => "kernel",
            Placement::OneHost => "one-host",
            Placement::MixedServer => "mixed-server",
            Placement::MixedClient => "mixed-client",
        }
    }

    fn ns(self) -> Ns {
        match self {
            Placement::OneHost => Ns::Client,
            Placement::Kernel | Placement::MixedServer | Placement::MixedClient => Ns::Backend,
        }
    }

    fn server_has_library(self) -> bool {
        matches!(self, Placement::OneHost | Placement::MixedServer)
    }

    fn client_has_library(self) -> bool {
        matches!(self, Placement::OneHost | Placement::MixedClient)
    }
}

/// The address of a stage's servers.
const HOST: &str = "127.0.0.1";

/// What the processes with the library that have ended report.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reported {
    /// Sockets that got a ring.
    pub promoted: u64,
    /// Data calls that sent by it.
    pub ring_sends: u64,
}

/// A lab with the daemon of a placement.
pub struct Stage<'a> {
    /// The lab.
    pub lab: &'a Lab,
    /// Which placement.
    pub placement: Placement,
    /// The address that the client connects to.
    pub host: &'static str,
    /// Files that servers offer.
    pub bodies: Vec<Body>,
    /// The CPU for programs started from now on; `None`: all.
    pub cpu: Option<usize>,
    /// Clients send requests now, for a fault that is not the program's.
    pub busy: Arc<AtomicBool>,
    daemon: Option<Daemon>,
    files: PathBuf,
}

impl<'a> Stage<'a> {
    /// Starts the prerequisites of the placement.
    pub fn set(lab: &'a Lab, placement: Placement) -> Result<Stage<'a>> {
        Self::set_with(lab, placement, &[])
    }

    /// The same, the daemon with further options.
    pub fn set_with(lab: &'a Lab, placement: Placement, options: &[&str]) -> Result<Stage<'a>> {
        let has_daemon = placement != Placement::Kernel;
        let daemon = has_daemon.then(|| Daemon::start_with(lab, placement.ns(), options)).transpose()?;
        let files = lab.dir().join("files");
        std::fs::create_dir_all(&files)?;
        let bodies = [body::SMALL, body::TEN_KIB, body::MIB, body::TEN_MIB];
        let bodies = bodies.into_iter().map(body::body).collect::<Result<Vec<_>>>()?;
        for body in &bodies {
            std::fs::copy(&body.path, files.join(body.name))?;
        }
        Ok(Stage { lab, placement, host: HOST, bodies, cpu: None, busy: Arc::default(), daemon, files })
    }

    /// Like [`Daemon::yielding`].
    #[must_use]
    pub fn yielding(self) -> Stage<'a> {
        Stage { daemon: self.daemon.map(Daemon::yielding), ..self }
    }

    /// Like [`Daemon::eager`].
    #[must_use]
    pub fn eager(self) -> Stage<'a> {
        Stage { daemon: self.daemon.map(Daemon::eager), ..self }
    }

    /// The folder of files that servers offer.
    pub fn files(&self) -> &PathBuf {
        &self.files
    }

    /// Creates an empty folder with this name.
    pub fn folder(&self, name: &str) -> Result<PathBuf> {
        let dir = self.lab.dir().join(name);
        if dir.exists() {
            std::fs::remove_dir_all(&dir)?;
        }
        std::fs::create_dir_all(&dir)?;
        Ok(dir)
    }

    /// A script or source of the tests.
    pub fn script(&self, name: &str) -> PathBuf {
        workspace().join("tests/unmodified").join(name)
    }

    fn command(&self, has_library: bool, before: &[&str], program: &str) -> Command {
        let mut command = self.lab.command(self.placement.ns(), "env");
        command.args(before);
        if let Some(cpu) = self.cpu {
            command.args(["taskset", "-c", &cpu.to_string()]);
        }
        if has_library && let Some(daemon) = &self.daemon {
            command.arg("env").args(daemon.environment());
        }
        command.arg(program);
        command
    }

    /// A command that runs a server of this cell.
    pub fn server(&self, program: &str) -> Command {
        self.command(self.placement.server_has_library(), &[], program)
    }

    /// A command that runs a client of this cell; it is killed when it does not end.
    pub fn client(&self, program: &str) -> Command {
        self.command(self.placement.client_has_library(), &["timeout", "-k", "2", CLIENT_LIMIT], program)
    }

    /// The same for a client that the caller ends.
    pub fn endless_client(&self, program: &str) -> Command {
        self.command(self.placement.client_has_library(), &[], program)
    }

    /// Starts a server and waits until the client's side reaches it.
    pub fn serve(&self, name: &str, command: &mut Command, port: u16) -> Result<Proc> {
        let mut proc = self.lab.spawn(name, command)?;
        self.reached(&mut proc, port)?;
        Ok(proc)
    }

    /// Waits until the client's side reaches a port.
    pub fn reached(&self, proc: &mut Proc, port: u16) -> Result<()> {
        let script = format!("exec 3<>/dev/tcp/{}/{port}", self.host);
        proc.wait_for("answer", READY_LIMIT, || {
            let mut probe = self.command(false, &["timeout", "-k", "1", "3"], "bash");
            probe.args(["-c", &script]).stdout(Stdio::null()).stderr(Stdio::null());
            probe.status().is_ok_and(|status| status.success())
        })
    }

    /// Runs a client to its end and returns its output. Fails if the client fails.
    pub fn run(&self, program: &str, args: &[&str]) -> Result<String> {
        finish(self.client(program).args(args), program)
    }

    /// What processes that have ended report, up to now.
    pub fn reported(&self) -> Reported {
        let Some(daemon) = &self.daemon else { return Reported::default() };
        Reported { promoted: daemon.reported("promoted"), ring_sends: daemon.reported("ring_sends") }
    }

    /// An error unless sockets of the processes that have ended since `before` got a ring. If one end
    /// only has the library: unless none got one.
    pub fn promoted(&self, before: Reported) -> Result<()> {
        let promoted = self.reported().promoted - before.promoted;
        if self.placement == Placement::OneHost {
            ensure!(promoted > 0, "no connection got a ring: the kernel carried");
        } else {
            ensure!(promoted == 0, "{promoted} sockets got a ring, and one end has no library");
        }
        Ok(())
    }

    /// The same, and they sent by it. To be asked when the processes of both ends have ended.
    pub fn proven(&self, before: Reported) -> Result<()> {
        self.promoted(before)?;
        let sends = self.reported().ring_sends - before.ring_sends;
        ensure!(sends > 0 || self.placement != Placement::OneHost, "nothing was sent by a ring");
        Ok(())
    }

    /// The daemon, if the placement has one.
    pub fn daemon(&mut self) -> Option<&mut Daemon> {
        self.daemon.as_mut()
    }

    /// The process of the daemon.
    pub fn daemon_pid(&self) -> Option<u32> {
        self.daemon.as_ref().map(|daemon| daemon.proc.pid())
    }

    /// Returns the output of `fastsock ss`; empty without a daemon.
    pub fn sockets(&self) -> String {
        self.daemon.as_ref().map(|daemon| daemon.sockets(self.lab)).unwrap_or_default()
    }

    /// Stops the daemon.
    pub fn end(mut self) -> Result<()> {
        self.daemon.as_mut().map_or(Ok(()), Daemon::stop)
    }
}

/// Runs a command to its end and returns its standard output. The error has its output.
pub fn finish(command: &mut Command, name: &str) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {name}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    let end =
        |text: &str| text.lines().rev().take(6).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("\n");
    ensure!(output.status.success(), "{name}: {}\n{}\n{}", output.status, end(&text), end(&errors));
    Ok(text)
}
