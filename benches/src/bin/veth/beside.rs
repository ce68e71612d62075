//! Small messages beside bulk: the ping-pong of one connection, while the same core sends to other
//! connections as fast as it can. The clients are the kernel's, both on the other CPU.

use crate::{BOTH, with_logs};
use anyhow::Result;
use fs_benches::parts::{Plan, in_turns};
use fs_benches::report::{Goal, Row};
use fs_tests::apps::StackOptions;
use fs_tests::lab::FRONT;
use fs_tests::loadgen::{Load, LoadResult, Mode};
use fs_tests::servers::{self, ECHO_PORT};
use fs_tests::{Ns, Stack};

/// Where small messages are echoed; the source of bulk has [`ECHO_PORT`].
const SMALL_PORT: u16 = ECHO_PORT + 1;
/// Numbers of bulk connections, and the goal of the small messages' 99th percentile.
const FLOWS: [(usize, Goal); 3] = [(0, Goal::None), (1, Goal::AtMost(1.0)), (4, Goal::None)];

struct Round {
    small: LoadResult,
    gigabits_per_second: f64,
}

pub(crate) fn run(plan: &Plan) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (flows, goal) in FLOWS {
        let figures = in_turns(plan, &BOTH, |stack| round(plan, stack, flows))?;
        let mut row = |what: &str, unit: &'static str, goal: Goal, value: fn(&Round) -> f64| {
            let [ours, kernel] = [0, 1].map(|side: usize| figures[side].iter().map(value).collect::<Vec<_>>());
            rows.push(Row::new(
                &format!("ping-pong beside {flows} bulk flows: {what}"),
                unit,
                &ours,
                "kernel",
                &kernel,
                goal,
            ));
        };
        row("p50", "µs", Goal::None, |round| round.small.p50_us);
        row("p99", "µs", goal, |round| round.small.p99_us);
        if flows > 0 {
            row("bulk", "Gb/s", Goal::None, |round| round.gigabits_per_second);
        }
    }
    Ok(rows)
}

fn round(plan: &Plan, stack: Stack, flows: usize) -> Result<Round> {
    let lab = crate::lab(&[])?;
    with_logs(&lab, |lab| {
        let server = StackOptions { cores: vec![0], ..StackOptions::new(stack) };
        let client = || StackOptions { cores: vec![1], ..StackOptions::new(Stack::Kernel) };
        let small_at = format!("{FRONT}:{SMALL_PORT}");
        let mut server = servers::echo(lab, Ns::Host, FRONT, &["--source", "--echo", &small_at], &server)?;
        let bulk = Load {
            connections: flows,
            // Begins before the small messages and ends after them.
            seconds: plan.seconds + 2,
            more: vec!["--reverse".into()],
            ..Load::new(Mode::Bulk, FRONT, ECHO_PORT, client())
        };
        let bulk = match flows {
            0 => None,
            _ => Some(lab.spawn("bulk", &mut bulk.command(lab, Ns::Client)?)?),
        };
        std::thread::sleep(std::time::Duration::from_secs(1));
        let small =
            Load { seconds: plan.seconds, body: Some(64), ..Load::new(Mode::PingPong, FRONT, SMALL_PORT, client()) };
        let small = small.run(lab, Ns::Client)?;
        let gigabits_per_second = match bulk {
            None => 0.0,
            Some(bulk) => Load::end(bulk, plan.seconds + 2)?.gigabits_per_second,
        };
        server.stop()?;
        Ok(Round { small, gigabits_per_second })
    })
}
