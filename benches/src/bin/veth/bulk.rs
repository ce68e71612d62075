//! Bulk: one connection at full speed, at both MTUs: between two of ours, to the kernel and from the
//! kernel. The peers are the kernel at both ends with its offloads off
//! (the same work per packet), the kernel with them on (a user's default), and raw AF_XDP with
//! full-size frames. The raw frames are not copied, or copied at both ends as sockets must
//! (decision 0017).

use crate::proxy::machine_seconds;
use crate::{raw, with_logs};
use anyhow::Result;
use fs_benches::parts::{Plan, in_turns};
use fs_benches::report::{Goal, Row};
use fs_tests::apps::StackOptions;
use fs_tests::lab::FRONT;
use fs_tests::loadgen::{Load, LoadResult, Mode};
use fs_tests::servers::{self, ECHO_PORT};
use fs_tests::{Ns, Stack};

/// The two ends of a transfer, and the kernel's offloads.
#[derive(Clone, Copy)]
struct Side {
    from: Stack,
    to: Stack,
    offload: &'static str,
}

const fn side(from: Stack, to: Stack, offload: &'static str) -> Side {
    Side { from, to, offload }
}

const SIDES: [Side; 5] = [
    side(Stack::Fastsock, Stack::Fastsock, "on"),
    side(Stack::Fastsock, Stack::Kernel, "on"),
    side(Stack::Kernel, Stack::Fastsock, "on"),
    side(Stack::Kernel, Stack::Kernel, "off"),
    side(Stack::Kernel, Stack::Kernel, "on"),
];

pub(crate) fn run(plan: &Plan) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for mtu in [1500, 9000] {
        let figures = in_turns(plan, &SIDES, |side| round(plan, side, mtu))?;
        let [ours, to_kernel, from_kernel, plain, offloads] = [0, 1, 2, 3, 4]
            .map(|side: usize| figures[side].iter().map(|r: &Round| r.load.gigabits_per_second).collect::<Vec<_>>());
        let cpu = |side: usize| figures[side].iter().map(Round::seconds_per_gigabyte).collect::<Vec<_>>();
        let raw = raw::one_way_gigabits(plan, mtu, false)?;
        let copied = raw::one_way_gigabits(plan, mtu, true)?;
        let what = format!("bulk, MTU {mtu}");
        rows.push(Row::new(&what, "Gb/s", &ours, "raw AF_XDP", &raw, Goal::AtLeast(0.85)));
        rows.push(Row::new(&what, "Gb/s", &ours, "raw AF_XDP, copied", &copied, Goal::None));
        rows.push(Row::new(&what, "Gb/s", &ours, "kernel, offloads off", &plain, Goal::AtLeast(1.0)));
        rows.push(Row::new(&what, "Gb/s", &ours, "kernel, offloads on", &offloads, Goal::AtLeast(0.9)));
        for (direction, rates, goal) in [("to the kernel", to_kernel, 1.0), ("from the kernel", from_kernel, 0.9)] {
            let what = format!("{what}, {direction}");
            rows.push(Row::new(&what, "Gb/s", &rates, "kernel, offloads on", &offloads, Goal::AtLeast(goal)));
        }
        for (direction, side) in [("", 0), (", to the kernel", 1), (", from the kernel", 2)] {
            let what = format!("{what}{direction}: machine CPU");
            rows.push(Row::new(&what, "s/GB", &cpu(side), "kernel, offloads on", &cpu(4), Goal::AtMost(1.0)));
        }
    }
    Ok(rows)
}

struct Round {
    load: LoadResult,
    /// CPU time of the whole machine.
    machine_seconds: f64,
}

impl Round {
    fn seconds_per_gigabyte(&self) -> f64 {
        self.machine_seconds / (self.load.gigabits_per_second * self.load.seconds / 8.0)
    }
}

fn round(plan: &Plan, side: Side, mtu: u32) -> Result<Round> {
    let lab = crate::lab(&["--mtu", &mtu.to_string(), "--offload", side.offload])?;
    with_logs(&lab, |lab| {
        let on = |cpu: usize, stack| StackOptions { cores: vec![cpu], ..StackOptions::new(stack) };
        let mut server = servers::echo(lab, Ns::Host, FRONT, &["--sink"], &on(0, side.to))?;
        let load = Load { seconds: plan.seconds, ..Load::new(Mode::Bulk, FRONT, ECHO_PORT, on(1, side.from)) };
        let before = machine_seconds()?;
        let load = load.run(lab, Ns::Client)?;
        let machine_seconds = machine_seconds()? - before;
        server.stop()?;
        Ok(Round { load, machine_seconds })
    })
}
