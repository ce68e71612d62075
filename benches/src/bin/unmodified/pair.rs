//! The program `local_pair` at both ends: latency, rates and connections of sockets without an
//! application.

use crate::{Cpus, ONE, Sides, TWO};
use anyhow::{Context, Result};
use fs_benches::parts::Plan;
use fs_benches::report::{Goal, Row};
use fs_tests::apps::programs_dir;
use fs_tests::unmodified::Stage;
use fs_tests::unmodified::programs::Server;

/// Work, name, unit, units of the program's figure per unit, and the goals on two cores and on one.
const WORKS: [(&str, &str, &str, f64, [Goal; 2]); 4] = [
    ("round-trip", "8-byte round trip", "µs", 1e3, [Goal::AtMost(1.0 / 20.0), Goal::AtMost(1.0)]),
    ("short", "8-byte messages one way", "million/s", 1e6, [Goal::AtLeast(10.0), Goal::AtLeast(1.0)]),
    ("long", "64 KiB messages one way", "GB/s", 1e9, [Goal::AtLeast(2.0), Goal::AtLeast(1.0)]),
    ("connect", "connect, a byte each way, close", "/s", 1.0, [Goal::AtLeast(5.0), Goal::AtLeast(1.0)]),
];

fn program() -> String {
    programs_dir().join("local_pair").display().to_string()
}

fn server(stage: &Stage, port: u16) -> Result<Server> {
    let mut command = stage.server(&program());
    command.args(["serve", &format!("{}:{port}", stage.host)]);
    stage.serve(&format!("pair-{port}"), &mut command, port).map(Server::from)
}

fn measure(stage: &Stage, port: u16, work: &str, plan: &Plan) -> Result<f64> {
    // Half of a round: there are eight works, and their figures are steady.
    let ms = (plan.seconds * 500).to_string();
    let text = stage.run(&program(), &[work, &format!("{}:{port}", stage.host), &ms])?;
    text.trim().parse().with_context(|| format!("local_pair printed {text}"))
}

pub(crate) fn run(plan: &Plan) -> Result<Vec<Row>> {
    Sides::with(|sides| {
        let mut rows = Vec::new();
        for (at, (cores, cpus)) in [("two cores", TWO), ("one core", ONE)].into_iter().enumerate() {
            for (work, what, unit, one, goals) in WORKS {
                rows.push(row(sides, plan, cpus, work, &format!("{what}, {cores}"), unit, one, goals[at])?);
            }
        }
        Ok(rows)
    })
}

#[allow(clippy::too_many_arguments, reason = "a row of the table above, and where it is measured")]
fn row(
    sides: &mut Sides,
    plan: &Plan,
    cpus: Cpus,
    work: &str,
    what: &str,
    unit: &'static str,
    one: f64,
    goal: Goal,
) -> Result<Row> {
    // A connection with one message is too short for a ring.
    let is_proven = work != "connect";
    let figures = sides.compare(plan, server, cpus, is_proven, |stage, port| measure(stage, port, work, plan))?;
    let [ours, kernel] = figures.map(|figures| figures.into_iter().map(|figure| figure / one).collect::<Vec<_>>());
    Ok(Row::new(what, unit, &ours, "kernel", &kernel, goal))
}
