//! A lab whose host is a bad wire (`lab/net up --wire` and the program `relay`), and the peers at
//! its ends.

use crate::apps::{Program, READY_LIMIT};
use crate::lab::{Lab, Ns};
use crate::process::Proc;
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Address of [`Gvisor`], next to the kernel's own at the backend.
pub const GVISOR: &str = "10.77.1.3";
/// The same, IPv6.
pub const GVISOR6: &str = "fd77:1::3";
/// Starts the relay with these options.
pub fn relay(lab: &Lab, options: &[&str]) -> Result<Proc> {
    let mut command = Program::Relay.command(lab, Ns::Host)?;
    let mut relay = lab.spawn("relay", command.args(["front0", "back0"]).args(options))?;
    ready(&mut relay)?;
    Ok(relay)
}

/// Waits for a line "ready".
pub fn ready(proc: &mut Proc) -> Result<()> {
    let log = proc.log_path().to_owned();
    let says = || std::fs::read_to_string(&log).is_ok_and(|text| text.lines().any(|line| line == "ready"));
    proc.wait_for("ready", READY_LIMIT, says)
}

/// An address with a port, as programs want it.
pub fn at(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// gVisor's netstack as a peer: `tests/gvisor-peer`, built with Go.
pub struct Gvisor(PathBuf);

impl Gvisor {
    /// Builds the program. Returns `None` and prints a line `skipped: …` if it cannot be built.
    pub fn build() -> Result<Option<Gvisor>> {
        let program = crate::apps::target_dir().join("gvisor-peer");
        let built = crate::apps::made(&program, |program| {
            let mut go = Command::new("go");
            // No other Go than the installed one is fetched.
            go.env("GOTOOLCHAIN", "local").env("GOFLAGS", "-mod=readonly -buildvcs=false");
            go.args(["build", "-o"])
                .arg(program)
                .arg(".")
                .current_dir(crate::apps::workspace().join("tests/gvisor-peer"));
            let output = go.output().context("go")?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "{}", said.trim().lines().last().unwrap_or("go build failed"));
            Ok(())
        });
        let Err(why) = built else { return Ok(Some(Gvisor(program))) };
        ensure!(std::env::var_os("FS_TEST_MUST_RUN").is_none(), "FS_TEST_MUST_RUN is set, but gvisor-peer: {why:#}");
        let test = std::thread::current().name().unwrap_or("gVisor").to_owned();
        println!("skipped: {test}: gvisor-peer cannot be built: {why:#}");
        Ok(None)
    }

    /// A command that runs it at the backend, with these options.
    pub fn command(&self, lab: &Lab, options: &[&str]) -> Command {
        let mut command = lab.command(Ns::Backend, &self.0);
        command.args(["-device", "backend0", "-addr", &format!("{GVISOR}/24,{GVISOR6}/64")]).args(options);
        command
    }
}

/// Runs a transfer's active side to its end. Its last line is `N bytes SUM`.
pub fn finish(lab: &Lab, name: &str, command: &mut Command, bytes: u64) -> Result<()> {
    let mut proc = lab.spawn(name, command)?;
    let status = proc.wait_end(Duration::from_secs(240))?;
    let log = proc.log();
    ensure!(status.success(), "{name} ended with {status}:\n{log}");
    let last = log.lines().last().context("no answer")?;
    ensure!(last.starts_with(&format!("{bytes} bytes ")), "{name} says {last:?}");
    Ok(())
}
