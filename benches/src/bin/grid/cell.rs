//! One transfer over one path.

use anyhow::{Context, Result, ensure};
use fs_tests::apps::READY_LIMIT;
use fs_tests::apps::{Program, StackOptions};
use fs_tests::lab::FRONT;
use fs_tests::servers::{ECHO_PORT, devices};
use fs_tests::wire;
use fs_tests::{Lab, Ns, Proc, Stack};
use std::time::Duration;

/// Rate of the path in Mb/s.
const RATE: f64 = 1000.0;

/// Sender and receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    /// The kernel at both ends.
    Kernel,
    /// fastsock sends, the kernel receives.
    FromFastsock,
    /// The kernel sends, fastsock receives.
    ToFastsock,
}

impl Ends {
    pub(crate) const ALL: [Ends; 3] = [Ends::Kernel, Ends::FromFastsock, Ends::ToFastsock];
}

/// A path and its congestion control.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell<'a> {
    pub(crate) congestion: &'a str,
    /// Loss in percent, each way.
    pub(crate) loss: f64,
    /// Round-trip time in milliseconds.
    pub(crate) rtt: f64,
}

/// The result of a transfer.
pub(crate) struct Carried {
    pub(crate) megabits: f64,
    /// Packets that the relay received too late: caused by the machine, not by the path.
    pub(crate) missed: u64,
}

/// Runs a transfer. The backend serves and sends, except where fastsock receives.
pub(crate) fn run(lab: &Lab, ends: Ends, cell: Cell<'_>, seed: u64, time: Duration) -> Result<Carried> {
    let mut relay = relay(lab, cell, seed)?;
    let stack = if ends == Ends::Kernel { Stack::Kernel } else { Stack::Fastsock };
    let options = StackOptions {
        cores: vec![1],
        more: vec!["--congestion".into(), cell.congestion.into()],
        ..StackOptions::new(stack)
    };
    let mut command = Program::Echo.command(lab, Ns::Backend)?;
    let role = if ends == Ends::ToFastsock { "--sink" } else { "--source" };
    command.args(["--listen", &format!("{FRONT}:{ECHO_PORT}"), role, "--drain", "0"]);
    command.args(options.arguments(&[devices(Ns::Backend)]));
    if stack == Stack::Kernel {
        command.args(&options.more);
    }
    let mut server = lab.spawn("server", &mut command)?;
    wire::ready(&mut server)?;
    // Resolves addresses before the measurement.
    lab.run(Ns::Client, "ping", &["-c", "1", "-W", "5", FRONT])?;
    let addr = format!("{FRONT}:{ECHO_PORT}");
    let seconds = time.as_secs_f64().to_string();
    let mut client = lab.command(Ns::Client, std::env::current_exe()?);
    match ends {
        Ends::ToFastsock => client.args(["send", &addr, &seconds, &cell.rtt.to_string(), cell.congestion]),
        _ => client.args(["receive", &addr, &seconds]),
    };
    let mut client = lab.spawn("client", &mut client)?;
    let status = client.wait_end(time + READY_LIMIT)?;
    ensure!(status.success(), "the kernel's end: {}", client.log());
    let log = client.log();
    let (bytes, seconds) = log.trim().split_once(' ').with_context(|| format!("bytes and seconds in {log:?}"))?;
    let megabits = bytes.parse::<f64>()? * 8.0 / seconds.parse::<f64>()? / 1e6;
    server.kill()?;
    relay.kill()?;
    let missed = relay.log().lines().last().map_or(0, missed);
    Ok(Carried { megabits, missed })
}

fn relay(lab: &Lab, cell: Cell<'_>, seed: u64) -> Result<Proc> {
    let product = RATE * 1e6 / 8.0 * cell.rtt / 1000.0;
    let queue = format!("{:.0}", product.max(131_072.0));
    let (rate, delay) = (RATE.to_string(), (cell.rtt / 2.0).to_string());
    let (loss, seed) = ((cell.loss / 100.0).to_string(), seed.to_string());
    let options = ["--rate", &rate, "--delay", &delay, "--loss", &loss, "--seed", &seed, "--queue", &queue];
    wire::relay(lab, &options)
}

/// Returns the sum of the numbers before "missed".
fn missed(line: &str) -> u64 {
    line.split(['|', ',']).filter_map(|part| part.trim().strip_suffix(" missed")?.parse::<u64>().ok()).sum()
}
