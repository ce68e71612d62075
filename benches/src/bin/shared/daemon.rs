//! A lab whose devices a daemon may share, and our programs in it.

use anyhow::{Context, Result};
use fs_tests::apps::{Program, READY_LIMIT, StackOptions, built};
use fs_tests::loadgen::{Load, LoadResult};
use fs_tests::process::Proc;
use fs_tests::servers::devices;
use fs_tests::{Lab, Ns};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Shares the device that faces the peer. Dropping it removes what is shared.
pub(crate) struct Daemon<'a> {
    lab: &'a Lab,
    ns: Ns,
    proc: Proc,
}

impl<'a> Daemon<'a> {
    pub(crate) fn start(lab: &'a Lab, ns: Ns) -> Result<Self> {
        Ok(Self { lab, ns, proc: up(lab, ns)? })
    }

    /// Kills it as `kill -9` does, and starts the next one.
    pub(crate) fn exchange(&mut self) -> Result<()> {
        self.proc.kill()?;
        self.proc = up(self.lab, self.ns)?;
        Ok(())
    }

    pub(crate) fn control(&self) -> PathBuf {
        control(self.lab, self.ns)
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let down = || fastsock(self.lab, self.ns, &["down"])?.output().context("cannot run fastsock down");
        match self.proc.kill().and_then(|()| down()) {
            Ok(output) if output.status.success() => {}
            Ok(output) => eprintln!("fastsock down: {}", String::from_utf8_lossy(&output.stderr)),
            Err(error) => eprintln!("{error:#}"),
        }
    }
}

fn control(lab: &Lab, ns: Ns) -> PathBuf {
    lab.dir().join(format!("{}.sock", devices(ns).0))
}

/// A command in the network namespace of `ns` only: `ip netns exec` also hides the BPF file system.
pub(crate) fn enter(lab: &Lab, ns: Ns) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{}", lab.ns(ns)));
    command
}

fn fastsock(lab: &Lab, ns: Ns, args: &[&str]) -> Result<Command> {
    let mut command = enter(lab, ns);
    command.arg(built("fastsock")?).args(args);
    Ok(command)
}

fn up(lab: &Lab, ns: Ns) -> Result<Proc> {
    let control = control(lab, ns);
    let mut command = fastsock(lab, ns, &["up", "--device", devices(ns).0])?;
    command.arg("--control").arg(control);
    ready(lab, &format!("daemon-{}", devices(ns).0), &mut command)
}

/// Starts a program and waits until it prints "ready".
pub(crate) fn ready(lab: &Lab, name: &str, command: &mut Command) -> Result<Proc> {
    let mut proc = lab.spawn(name, command)?;
    let log = proc.log_path().to_owned();
    let says = || std::fs::read_to_string(&log).is_ok_and(|text| text.lines().any(|line| line == "ready"));
    proc.wait_for("ready", READY_LIMIT, says)?;
    Ok(proc)
}

/// Starts a server of ours, which attaches to the daemon if there is one.
pub(crate) fn serve(
    lab: &Lab,
    program: Program,
    listen: &str,
    own: &[&str],
    on: &StackOptions,
    daemon: Option<&Daemon<'_>>,
) -> Result<Proc> {
    let mut command = enter(lab, Ns::Host);
    command.arg(program.path()?).args(["--listen", listen]).args(own).args(on.arguments(&[devices(Ns::Host)]));
    with(&mut command, daemon);
    ready(lab, &format!("{}-{listen}", program.name()), &mut command)
}

/// Starts a load from the client's namespace.
pub(crate) fn load(lab: &Lab, load: &Load, name: &str, daemon: Option<&Daemon<'_>>) -> Result<Proc> {
    let mut command = load.command(lab, Ns::Client)?;
    with(&mut command, daemon);
    lab.spawn(name, &mut command)
}

/// Waits for its result.
pub(crate) fn result(mut load: Proc, seconds: u32) -> Result<LoadResult> {
    let status = load.wait_end(Duration::from_secs(u64::from(seconds) + 60))?;
    anyhow::ensure!(status.success(), "loadgen ended with {status}:\n{}", load.log());
    LoadResult::parse(&load.log())
}

fn with(command: &mut Command, daemon: Option<&Daemon<'_>>) {
    match daemon {
        Some(daemon) => command.env("FASTSOCK_CONTROL", daemon.control()),
        None => command.env("FASTSOCK_CONTROL", "/nonexistent/control.sock"),
    };
}
