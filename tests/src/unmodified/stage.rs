//! The places and sockets of the two ends of a table cell.

use crate::apps::{READY_LIMIT, workspace};
use crate::body::{self, Body};
use crate::lab::{BACK, BACKEND, FRONT, Lab, Ns};
use crate::process::Proc;
use crate::unmodified::Sockets;
use crate::unmodified::daemon::{Counters, Daemon, Reach};
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Seconds after which a client that does not end is killed.
const CLIENT_LIMIT: &str = "120";

/// The places of client and server, and which of them is accelerated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Both on kernel sockets, one host: tests the harness itself.
    Kernel,
    /// Both on kernel sockets, two hosts, over another device than that of the other placements'
    /// daemons, so that both fit in one lab.
    KernelWire,
    /// Both preloaded, one host whose loopback device is down, over 127.0.0.1. Another host than
    /// `Kernel`'s, so that both fit in one lab.
    OneHost,
    /// The server preloaded, the client on the kernel of another host.
    Server,
    /// The client preloaded, the server on the kernel of another host.
    Client,
    /// Both preloaded, two hosts.
    TwoHosts,
    /// The server preloaded, the client not, one host, over 127.0.0.1.
    MixedServer,
    /// The server preloaded, the client not, one host, over the host's own address.
    MixedAddress,
    /// The client preloaded, the server not, one host.
    MixedClient,
}

impl Placement {
    /// All placements, in the table's order.
    pub const ALL: [Placement; 8] = [
        Placement::OneHost,
        Placement::Server,
        Placement::Client,
        Placement::TwoHosts,
        Placement::MixedServer,
        Placement::MixedAddress,
        Placement::MixedClient,
        Placement::Kernel,
    ];

    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Placement::Kernel => "kernel",
            Placement::KernelWire => "kernel-wire",
            Placement::OneHost => "one-host",
            Placement::Server => "server",
            Placement::Client => "client",
            Placement::TwoHosts => "two-hosts",
            Placement::MixedServer => "mixed-server",
            Placement::MixedAddress => "mixed-address",
            Placement::MixedClient => "mixed-client",
        }
    }

    fn server(self) -> (Ns, Sockets) {
        match self {
            Placement::Kernel | Placement::MixedClient => (Ns::Backend, Sockets::Kernel),
            Placement::OneHost => (Ns::Client, Sockets::Preload),
            Placement::MixedServer | Placement::MixedAddress => (Ns::Backend, Sockets::Preload),
            Placement::Server | Placement::TwoHosts => (Ns::Host, Sockets::Preload),
            Placement::Client | Placement::KernelWire => (Ns::Host, Sockets::Kernel),
        }
    }

    fn client(self) -> (Ns, Sockets) {
        match self {
            Placement::Kernel | Placement::KernelWire | Placement::MixedServer | Placement::MixedAddress => {
                (Ns::Backend, Sockets::Kernel)
            }
            Placement::OneHost => (Ns::Client, Sockets::Preload),
            Placement::MixedClient => (Ns::Backend, Sockets::Preload),
            Placement::Server => (Ns::Client, Sockets::Kernel),
            Placement::Client | Placement::TwoHosts => (Ns::Client, Sockets::Preload),
        }
    }

    /// The counter that must have moved, if the bytes cannot have gone another way.
    fn proof(self) -> Option<&'static str> {
        match self {
            Placement::OneHost => Some("local_bytes"),
            Placement::Server | Placement::Client | Placement::TwoHosts => Some("wire_bytes"),
            _ => None,
        }
    }
}

/// A lab with the daemons of a placement.
pub struct Stage<'a> {
    /// The lab.
    pub lab: &'a Lab,
    /// Which placement.
    pub placement: Placement,
    /// The address that the client dials.
    pub host: &'static str,
    /// Files that servers offer.
    pub bodies: Vec<Body>,
    /// The CPU for programs started from now on; `None`: all.
    pub cpu: Option<usize>,
    daemons: Vec<Daemon>,
    files: PathBuf,
}

impl<'a> Stage<'a> {
    /// Starts the prerequisites of the placement.
    pub fn set(lab: &'a Lab, placement: Placement) -> Result<Stage<'a>> {
        Self::set_with(lab, placement, &[])
    }

    /// The same, the daemons with further options.
    pub fn set_with(lab: &'a Lab, placement: Placement, options: &[&str]) -> Result<Stage<'a>> {
        let (server, client) = (placement.server(), placement.client());
        if placement == Placement::OneHost {
            lo_down(lab, server.0)?;
        }
        let host = match placement {
            Placement::Server | Placement::Client | Placement::TwoHosts => FRONT,
            Placement::MixedAddress => BACKEND,
            Placement::KernelWire => BACK,
            _ => "127.0.0.1",
        };
        let mut daemons = Vec::new();
        let reach = if server.0 == client.0 { Reach::OnlyLocal } else { Reach::Wire };
        for (ns, sockets) in [server, client] {
            if sockets == Sockets::Preload && !daemons.iter().any(|daemon: &Daemon| daemon.ns() == ns) {
                daemons.push(Daemon::start_with(lab, ns, reach, options)?);
            }
        }
        let files = lab.dir().join("files");
        std::fs::create_dir_all(&files)?;
        let bodies = [body::SMALL, body::TEN_KIB, body::MIB, body::TEN_MIB];
        let bodies = bodies.into_iter().map(body::body).collect::<Result<Vec<_>>>()?;
        for body in &bodies {
            std::fs::copy(&body.path, files.join(body.name))?;
        }
        Ok(Stage { lab, placement, host, bodies, cpu: None, daemons, files })
    }

    /// Brings the loopback device on the server's side up.
    pub fn lo_up(&self) -> Result<()> {
        self.lab.run(self.placement.server().0, "ip", &["link", "set", "lo", "up"]).map(drop)
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

    fn command(&self, (ns, sockets): (Ns, Sockets), before: &[&str], program: &str) -> Command {
        let mut command = self.lab.command(ns, "env");
        command.args(before);
        if let Some(cpu) = self.cpu {
            command.args(["taskset", "-c", &cpu.to_string()]);
        }
        if sockets == Sockets::Preload {
            let daemon = self.daemons.iter().find(|daemon| daemon.ns() == ns).map(Daemon::environment);
            command.arg("env").args(daemon.unwrap_or_default());
        }
        command.arg(program);
        command
    }

    /// A command that runs a server of this cell.
    pub fn server(&self, program: &str) -> Command {
        self.command(self.placement.server(), &[], program)
    }

    /// A command that runs a client of this cell; it is killed when it does not end.
    pub fn client(&self, program: &str) -> Command {
        self.command(self.placement.client(), &["timeout", "-k", "2", CLIENT_LIMIT], program)
    }

    /// The same for a client that the caller ends.
    pub fn endless_client(&self, program: &str) -> Command {
        self.command(self.placement.client(), &[], program)
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
            let mut probe = self.command(self.placement.client(), &["timeout", "-k", "1", "3"], "bash");
            probe.args(["-c", &script]).stdout(Stdio::null()).stderr(Stdio::null());
            probe.status().is_ok_and(|status| status.success())
        })
    }

    /// Runs a client to its end and returns its output. Fails if the client fails.
    pub fn run(&self, program: &str, args: &[&str]) -> Result<String> {
        finish(self.client(program).args(args), program)
    }

    /// The counters of all daemons.
    pub fn counters(&self) -> Result<Vec<Counters>> {
        self.daemons.iter().map(|daemon| daemon.counters(self.lab)).collect()
    }

    /// An error unless at least `bytes` went through every daemon of the placement since `before`.
    pub fn proven(&self, before: &[Counters], bytes: u64) -> Result<()> {
        let Some(name) = self.placement.proof() else { return Ok(()) };
        for (daemon, (before, after)) in self.daemons.iter().zip(before.iter().zip(self.counters()?)) {
            let moved = after.since(before, name);
            ensure!(
                moved >= bytes,
                "only {moved} of {bytes} bytes are counted in {name} of the daemon of {:?}: the kernel carried the rest",
                daemon.ns()
            );
        }
        Ok(())
    }

    /// The daemon on the server's side.
    pub fn daemon(&mut self) -> Option<&mut Daemon> {
        self.daemons.first_mut()
    }

    /// The process of the daemon on the server's side.
    pub fn daemon_pid(&self) -> Option<u32> {
        self.daemons.first().map(|daemon| daemon.proc.pid())
    }

    /// Returns the output of `fastsock ss` on the server's side; empty without a daemon.
    pub fn sockets(&self) -> String {
        self.daemons.first().map(|daemon| daemon.sockets(self.lab)).unwrap_or_default()
    }

    /// Stops the daemons.
    pub fn end(mut self) -> Result<()> {
        self.daemons.iter_mut().try_for_each(Daemon::stop)
    }
}

/// Takes down the loopback device of a namespace. 127.0.0.1 can still be bound, but the kernel
/// carries nothing.
pub fn lo_down(lab: &Lab, ns: Ns) -> Result<()> {
    lab.run(ns, "sysctl", &["-qw", "net.ipv4.ip_nonlocal_bind=1", "net.ipv6.ip_nonlocal_bind=1"])?;
    lab.run(ns, "ip", &["link", "set", "lo", "down"])?;
    Ok(())
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
