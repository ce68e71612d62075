//! Many connections that nobody uses, and one that is used: an epoll set of each end has all of them.

use crate::{Cpus, Sides, TWO};
use anyhow::{Context, Result};
use fs_benches::parts::Plan;
use fs_benches::report::{Goal, Row};
use fs_tests::apps::workspace;
use fs_tests::unmodified::Stage;
use fs_tests::unmodified::programs::Server;

/// Connections. The usual limit of 20,000 descriptors has room for them.
const CONNECTIONS: &str = "10000";
const CPUS: Cpus = TWO;

/// `idle.py`, by the C library's epoll(7), which the library replaces.
fn script() -> String {
    workspace().join("benches/src/bin/unmodified/idle.py").display().to_string()
}

fn server(stage: &Stage, port: u16) -> Result<Server> {
    let mut command = stage.server("python3");
    command.args([&script(), "serve", stage.host, &port.to_string()]);
    stage.serve(&format!("idle-{port}"), &mut command, port).map(Server::from)
}

/// Returns µs of CPU of both ends for a round trip, and KiB of both ends for a connection.
fn measure(stage: &Stage, port: u16, plan: &Plan) -> Result<[f64; 2]> {
    let (port, seconds) = (port.to_string(), plan.seconds.to_string());
    let text = stage.run("python3", &[&script(), "load", stage.host, &port, CONNECTIONS, &seconds])?;
    let (cpu, memory) = text.trim().split_once(' ').with_context(|| format!("idle.py printed {text}"))?;
    Ok([cpu.parse()?, memory.parse()?])
}

pub(crate) fn run(plan: &Plan) -> Result<Vec<Row>> {
    Sides::with(|sides| {
        let [ours, kernel] = sides.compare(plan, server, CPUS, true, |stage, port| measure(stage, port, plan))?;
        let rows = [
            ("a round trip next to 10,000 idle connections: CPU", "µs", Goal::AtMost(1.1)),
            ("an idle connection with a ring: memory of both ends", "KiB", Goal::Plus(16.0)),
        ];
        Ok(rows
            .into_iter()
            .enumerate()
            .map(|(i, (what, unit, goal))| {
                let of = |side: &[[f64; 2]]| side.iter().map(|figures| figures[i]).collect::<Vec<_>>();
                Row::new(what, unit, &of(&ours), "kernel", &of(&kernel), goal)
            })
            .collect())
    })
}
