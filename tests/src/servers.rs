//! Our own servers, as the tests and benches start them.

use crate::apps::{Program, READY_LIMIT, StackOptions};
use crate::lab::{Lab, Ns};
use crate::process::Proc;
use anyhow::{Result, ensure};

/// Port of [`httpd`].
pub const HTTPD_PORT: u16 = 7000;
/// Port of [`echo`].
pub const ECHO_PORT: u16 = 7007;

/// A running server of ours.
pub struct Server {
    /// The process.
    pub proc: Proc,
}

/// Starts `program` with these options and waits until it responds.
pub fn start(
    lab: &Lab,
    ns: Ns,
    program: Program,
    host: &str,
    port: u16,
    own: &[&str],
    stack: &StackOptions,
) -> Result<Server> {
    let mut command = program.command(lab, ns)?;
    let listen = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    command.args(["--listen", &listen]).args(own).args(stack.arguments(&[devices(ns)]));
    let mut proc = lab.spawn(program.name(), &mut command)?;
    let from = if ns == Ns::Client { Ns::Host } else { Ns::Client };
    proc.wait_for("answer", READY_LIMIT, || lab.reaches(from, host, port))?;
    Ok(Server { proc })
}

impl Server {
    /// Sends SIGTERM; an error unless it ends soon, with status 0.
    pub fn stop(&mut self) -> Result<()> {
        let status = self.proc.terminate(READY_LIMIT)?;
        ensure!(status.success(), "the server ended with {status} after SIGTERM:\n{}", self.proc.log());
        Ok(())
    }
}

/// Starts benches/tools/httpd, which responds with `body` bytes.
pub fn httpd(lab: &Lab, ns: Ns, host: &str, body: usize, stack: &StackOptions) -> Result<Server> {
    start(lab, ns, Program::Httpd, host, HTTPD_PORT, &["--body", &body.to_string()], stack)
}

/// Starts benches/tools/echo with these options (`--sink`, `--source`).
pub fn echo(lab: &Lab, ns: Ns, host: &str, own: &[&str], stack: &StackOptions) -> Result<Server> {
    start(lab, ns, Program::Echo, host, ECHO_PORT, own, stack)
}

/// Returns the open connections that a server with `--print-memory` last reported (every second).
pub fn connections_open(server: &Server) -> u64 {
    let log = server.proc.log();
    let last = log.lines().rev().find_map(|line| line.strip_prefix("memory: ")?.split(", ").nth(1));
    last.and_then(|text| text.split(' ').next()?.parse().ok()).unwrap_or(0)
}

/// Returns the device of a namespace that faces its peer, with its addresses. The host's faces the
/// client.
pub fn devices(ns: Ns) -> (&'static str, &'static str) {
    match ns {
        Ns::Client => ("client0", "10.77.1.2/24,fd77:1::2/64"),
        Ns::Host => ("front0", "10.77.1.1/24,fd77:1::1/64"),
        Ns::Backend => ("backend0", "10.77.2.2/24,fd77:2::2/64"),
    }
}
