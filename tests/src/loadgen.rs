//! Our load generator, and its report.

use crate::apps::{Program, Stack, StackOptions};
use crate::body::Body;
use crate::lab::{Lab, Ns};
use crate::process::Proc;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

/// The mode of a load generator's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Connect, one request, one response, close.
    Short,
    /// Requests one after the other on a connection.
    KeepAlive,
    /// A message to and fro.
    PingPong,
    /// As many bytes as possible.
    Bulk,
    /// Open all, one request on each, keep them for `seconds`, one more request on each.
    Hold,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::Short => "short",
            Mode::KeepAlive => "keepalive",
            Mode::PingPong => "pingpong",
            Mode::Bulk => "bulk",
            Mode::Hold => "hold",
        }
    }
}

/// One run of the load generator.
#[derive(Clone, Debug)]
pub struct Load {
    /// See [`Mode`].
    pub mode: Mode,
    /// Where to.
    pub host: String,
    /// Where to.
    pub port: u16,
    /// Connections open at once.
    pub connections: usize,
    /// How long.
    pub seconds: u32,
    /// Bytes of a message, or of the body that every response must have.
    pub body: Option<usize>,
    /// Its stack.
    pub stack: StackOptions,
    /// Further options.
    pub more: Vec<String>,
}

impl Load {
    /// One connection for a second.
    pub fn new(mode: Mode, host: &str, port: u16, stack: StackOptions) -> Load {
        Load { mode, host: host.into(), port, connections: 1, seconds: 1, body: None, stack, more: Vec::new() }
    }

    /// The command that runs it from `ns`.
    pub fn command(&self, lab: &Lab, ns: Ns) -> Result<Command> {
        let mut command = Program::Loadgen.command(lab, ns)?;
        let to = if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        };
        command.args(["--mode", self.mode.name(), "--connect", &to, "--json"]);
        command.args(["--conns", &self.connections.to_string(), "--seconds", &self.seconds.to_string()]);
        if let Some(body) = self.body {
            command.args(["--body", &body.to_string()]);
        }
        command.args(&self.more).args(self.stack.arguments(&[crate::servers::devices(ns)]));
        Ok(command)
    }

    /// Runs it to its end. Errors that it met are an error here.
    pub fn run(&self, lab: &Lab, ns: Ns) -> Result<LoadResult> {
        // Loads of several modes may run at once, each with its own log.
        let name = format!("loadgen-{}", self.mode.name());
        Load::end(lab.spawn(&name, &mut self.command(lab, ns)?)?, self.seconds)
    }

    /// Waits for the end of a running load generator that has this many seconds. Errors that it met are
    /// an error here.
    pub fn end(mut proc: Proc, seconds: u32) -> Result<LoadResult> {
        // Opening, the load itself, closing.
        let status = proc.wait_end(Duration::from_secs(u64::from(seconds) + 240))?;
        let said = proc.log();
        ensure!(status.success(), "loadgen ended with {status}:\n{}", crate::process::tail(proc.log_path(), 20));
        LoadResult::parse(&said)
    }
}

/// Requests `body` from the HTTP server at `base` on 256 kernel connections at once, for a second or more:
/// again until responses are counted, for a minute at most, because on a busy machine all may come after
/// the second. Each connection must get its whole response, and in [`Mode::Short`] its end: a reset, an
/// early end and a silence are errors. wrk counts no silence: it ends with what it has.
pub fn every_connection_ends(lab: &Lab, base: &str, mode: Mode, body: &Body) -> Result<LoadResult> {
    let to: SocketAddr = base.trim_start_matches("http://").parse().with_context(|| base.to_owned())?;
    let mut load = Load::new(mode, &to.ip().to_string(), to.port(), StackOptions::new(Stack::Kernel));
    (load.connections, load.body) = (256, Some(body.len as usize));
    load.more = ["--timeout", "60", "--path", &format!("/{}", body.name)].map(str::to_owned).to_vec();
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let result = load.run(lab, Ns::Client)?;
        if result.requests > 0 {
            return Ok(result);
        }
        ensure!(Instant::now() < end, "no response: {result:?}");
    }
}

/// The load generator's report: the used part of its `--json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoadResult {
    /// The measured time.
    pub seconds: f64,
    /// From the start to the end.
    pub elapsed_seconds: f64,
    /// Connections that were opened.
    pub connections: u64,
    /// Requests that were answered.
    pub requests: u64,
    /// Rate of the former.
    pub connections_per_second: f64,
    /// Rate of the latter.
    pub requests_per_second: f64,
    /// Payload, one direction.
    pub gigabits_per_second: f64,
    /// Median latency.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Whatever went wrong.
    pub errors_total: u64,
    /// CPU time of the load generator.
    pub cpu_seconds: f64,
    /// Its largest resident set.
    pub peak_rss_bytes: u64,
}

impl LoadResult {
    /// Finds the report in the load generator's output.
    pub fn parse(said: &str) -> Result<LoadResult> {
        let line = said.lines().rev().find(|line| line.starts_with('{')).context("loadgen printed no result")?;
        serde_json::from_str(line).with_context(|| format!("loadgen printed {line}"))
    }
}
