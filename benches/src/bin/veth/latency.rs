//! Ping-pong: one connection, one small message each way; the median of the round trip.

use crate::with_logs;
use anyhow::Result;
use fs_benches::parts::{Plan, in_turns};
use fs_benches::report::{Goal, Row};
use fs_tests::apps::StackOptions;
use fs_tests::lab::FRONT;
use fs_tests::loadgen::{Load, LoadResult, Mode};
use fs_tests::servers::{self, ECHO_PORT};
use fs_tests::{Ns, Stack};

#[derive(Clone, Copy)]
enum Side {
    Spinning,
    Sleeping,
    Kernel,
}

pub(crate) fn run(plan: &Plan) -> Result<Vec<Row>> {
    let figures = in_turns(plan, &[Side::Spinning, Side::Sleeping, Side::Kernel], |side| round(plan, side))?;
    let rounds = |side: usize, value: fn(&LoadResult) -> f64| figures[side].iter().map(value).collect::<Vec<_>>();
    let p50 = |result: &LoadResult| result.p50_us;
    let p99 = |result: &LoadResult| result.p99_us;
    let row = |what: &str, side: usize, value: fn(&LoadResult) -> f64, goal| {
        Row::new(what, "µs", &rounds(side, value), "kernel", &rounds(2, value), goal)
    };
    Ok(vec![
        row("ping-pong, spinning: p50", 0, p50, Goal::AtMost(0.25)),
        row("ping-pong, sleeping: p50", 1, p50, Goal::AtMost(1.0)),
        row("ping-pong, spinning: p99", 0, p99, Goal::None),
        row("ping-pong, sleeping: p99", 1, p99, Goal::None),
    ])
}

fn round(plan: &Plan, side: Side) -> Result<LoadResult> {
    let (stack, busy_poll) = match side {
        Side::Spinning => (Stack::Fastsock, true),
        Side::Sleeping => (Stack::Fastsock, false),
        Side::Kernel => (Stack::Kernel, false),
    };
    let lab = crate::lab(&[])?;
    with_logs(&lab, |lab| {
        let on = |cpu: usize| StackOptions { cores: vec![cpu], busy_poll, ..StackOptions::new(stack) };
        let mut server = servers::echo(lab, Ns::Host, FRONT, &[], &on(0))?;
        let load = Load { seconds: plan.seconds, body: Some(64), ..Load::new(Mode::PingPong, FRONT, ECHO_PORT, on(1)) };
        let result = load.run(lab, Ns::Client)?;
        server.stop()?;
        Ok(result)
    })
}
