//! A server on a shared device next to the same server on a device of its own. The client has its
//! own device, which nobody shares, in both.

use crate::daemon::{self, Daemon};
use anyhow::Result;
use fs_benches::parts::{Plan, in_turns};
use fs_benches::report::{Goal, Row};
use fs_tests::apps::{Program, StackOptions};
use fs_tests::lab::FRONT;
use fs_tests::loadgen::{Load, LoadResult, Mode};
use fs_tests::{Lab, Ns, Stack};

const PORT: u16 = 7100;

#[derive(Clone, Copy)]
struct Side {
    shared: bool,
    mode: Mode,
    spins: bool,
    reverse: bool,
}

pub(crate) fn run(plan: &Plan) -> Result<Vec<Row>> {
    let both = |mode, spins, reverse| [true, false].map(|shared| Side { shared, mode, spins, reverse });
    let measure = |mode, spins, reverse, value: fn(&LoadResult) -> f64| -> Result<[Vec<f64>; 2]> {
        let figures = in_turns(plan, &both(mode, spins, reverse), |side| round(plan, side))?;
        Ok([0, 1].map(|side: usize| figures[side].iter().map(value).collect()))
    };
    let row =
        |what: &str, unit, [ours, alone]: &[Vec<f64>; 2], goal| Row::new(what, unit, ours, "exclusive", alone, goal);
    let short = measure(Mode::Short, false, false, |result| result.connections_per_second)?;
    let spinning = measure(Mode::PingPong, true, false, |result| result.p50_us)?;
    let sleeping = measure(Mode::PingPong, false, false, |result| result.p50_us)?;
    let inwards = measure(Mode::Bulk, false, false, |result| result.gigabits_per_second)?;
    let outwards = measure(Mode::Bulk, false, true, |result| result.gigabits_per_second)?;
    Ok(vec![
        row("shared device: short connections", "connections/s", &short, Goal::AtLeast(0.85)),
        row("shared device: ping-pong, spinning: p50", "µs", &spinning, Goal::Plus(1.5)),
        row("shared device: ping-pong, sleeping: p50", "µs", &sleeping, Goal::Plus(1.5)),
        row("shared device: bulk, received", "Gb/s", &inwards, Goal::AtLeast(0.95)),
        row("shared device: bulk, sent", "Gb/s", &outwards, Goal::AtLeast(0.95)),
    ])
}

fn round(plan: &Plan, side: Side) -> Result<LoadResult> {
    let lab = Lab::require(&["--queues", "1"])?;
    lab_round(&lab, plan, side).inspect_err(|_| lab.print_logs())
}

fn lab_round(lab: &Lab, plan: &Plan, side: Side) -> Result<LoadResult> {
    let daemon = side.shared.then(|| Daemon::start(lab, Ns::Host)).transpose()?;
    let on = |cpu| StackOptions { cores: vec![cpu], busy_poll: side.spins, ..StackOptions::new(Stack::Fastsock) };
    let (program, own, body): (_, &[&str], _) = match (side.mode, side.reverse) {
        (Mode::Short, _) => (Program::Httpd, &["--body", "64"], Some(64)),
        (Mode::Bulk, false) => (Program::Echo, &["--sink"], None),
        (Mode::Bulk, true) => (Program::Echo, &["--source"], None),
        _ => (Program::Echo, &[], Some(64)),
    };
    let listen = format!("{FRONT}:{PORT}");
    let server = daemon::serve(lab, program, &listen, own, &on(0), daemon.as_ref())?;
    let connections = if side.mode == Mode::Short { 256 } else { 1 };
    let more = if side.reverse { vec!["--reverse".into()] } else { Vec::new() };
    let load = Load { connections, seconds: plan.seconds, body, more, ..Load::new(side.mode, FRONT, PORT, on(1)) };
    let result = daemon::result(daemon::load(lab, &load, "loadgen", None)?, plan.seconds);
    drop(server);
    result
}
