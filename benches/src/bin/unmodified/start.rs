//! The time that `fastsock run` adds to the start of a program.

use anyhow::{Result, ensure};
use fs_benches::parts::Plan;
use fs_benches::report::{Goal, Row};
use fs_tests::lab::{Lab, Ns};
use fs_tests::unmodified::daemon::{Daemon, program};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Starts per side and round.
const STARTS: usize = 10;

fn milliseconds(mut command: Command) -> Result<f64> {
    let start = Instant::now();
    ensure!(command.stderr(Stdio::null()).status()?.success(), "{command:?} failed");
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

/// Measures both in turns, each started through "ip netns exec".
pub(crate) fn run(plan: &Plan) -> Result<Vec<Row>> {
    let lab = Lab::require(&["--queues", "1"])?;
    let (mut ours, mut plain) = (Vec::new(), Vec::new());
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Client)?;
        for _ in 0..plan.rounds * STARTS {
            let mut command = lab.command(Ns::Client, program());
            command.env("FASTSOCK_CONTROL", daemon.control()).args(["run", "-q", "--", "true"]);
            ours.push(milliseconds(command)?);
            plain.push(milliseconds(lab.command(Ns::Client, "true"))?);
        }
        daemon.stop()
    })?;
    Ok(vec![Row::new("fastsock run -- true", "ms", &ours, "true", &plain, Goal::AtMost(1.2))])
}
