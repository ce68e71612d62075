//! Short connections: connect, one request, one answer, close. Both ends on fastsock, against both
//! ends on the kernel.

use crate::{BOTH, raw, with_logs};
use anyhow::Result;
use fs_benches::parts::{Plan, in_turns};
use fs_benches::report::{Goal, Row};
use fs_tests::apps::StackOptions;
use fs_tests::lab::FRONT;
use fs_tests::loadgen::{Load, LoadResult, Mode};
use fs_tests::servers::{self, HTTPD_PORT};
use fs_tests::{Ns, Stack};

/// Bytes of an answer's body.
const BODY: usize = 64;
/// Connections open at once.
const CONNECTIONS: usize = 256;

/// Packets of a short connection in each direction with full piggybacking: SYN, ACK + request, FIN +
/// ACK; SYN-ACK, answer + FIN, ACK.
const PACKETS_EACH_WAY: f64 = 3.0;

pub(crate) fn run(plan: &Plan) -> Result<Vec<Row>> {
    let figures = in_turns(plan, &BOTH, |stack| round(plan, stack))?;
    let value =
        |value: fn(&LoadResult) -> f64| [0, 1].map(|side: usize| figures[side].iter().map(value).collect::<Vec<_>>());
    let [ours, kernel] = value(|result| result.connections_per_second);
    let [our_p99, kernel_p99] = value(|result| result.p99_us);
    let [our_cpu, kernel_cpu] = value(|result| result.connections_per_second * result.seconds / result.cpu_seconds);
    let forward = raw::forward_rate(plan, raw::SMALL)?;
    let bound: Vec<f64> = forward.iter().map(|rate| rate / PACKETS_EACH_WAY).collect();
    Ok(vec![
        Row::new("short connections", "connections/s", &ours, "kernel", &kernel, Goal::AtLeast(3.0)),
        Row::new("short connections: p99", "µs", &our_p99, "kernel", &kernel_p99, Goal::None),
        Row::new("short connections: client's CPU", "conn/CPU s", &our_cpu, "kernel", &kernel_cpu, Goal::None),
        Row::new("short connections", "connections/s", &ours, "raw AF_XDP, 3+3 packets", &bound, Goal::None),
    ])
}

fn round(plan: &Plan, stack: Stack) -> Result<LoadResult> {
    let lab = crate::lab(&[])?;
    with_logs(&lab, |lab| {
        let mut server =
            servers::httpd(lab, Ns::Host, FRONT, BODY, &StackOptions { cores: vec![0], ..StackOptions::new(stack) })?;
        let client = StackOptions { cores: vec![1], ..StackOptions::new(stack) };
        let load = Load {
            connections: CONNECTIONS,
            seconds: plan.seconds,
            body: Some(BODY),
            ..Load::new(Mode::Short, FRONT, HTTPD_PORT, client)
        };
        let result = load.run(lab, Ns::Client)?;
        server.stop()?;
        Ok(result)
    })
}
