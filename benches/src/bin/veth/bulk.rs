//! Bulk: one connection at full speed, at both MTUs. The peers are the kernel with its offloads off
//! (the same work per packet), the kernel with them on (a user's default), and raw AF_XDP with
//! full-size frames. The raw frames are not copied, or copied at both ends as sockets must
//! (decision 0017).

use crate::{raw, with_logs};
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
    Fastsock,
    KernelPlain,
    KernelOffloads,
}

pub(crate) fn run(plan: &Plan) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for mtu in [1500, 9000] {
        let sides = [Side::Fastsock, Side::KernelPlain, Side::KernelOffloads];
        let figures = in_turns(plan, &sides, |side| round(plan, side, mtu))?;
        let [ours, plain, offloads] = [0, 1, 2]
            .map(|side: usize| figures[side].iter().map(|r: &LoadResult| r.gigabits_per_second).collect::<Vec<_>>());
        let raw = raw::one_way_gigabits(plan, mtu, false)?;
        let copied = raw::one_way_gigabits(plan, mtu, true)?;
        let what = format!("bulk, MTU {mtu}");
        rows.push(Row::new(&what, "Gb/s", &ours, "raw AF_XDP", &raw, Goal::AtLeast(0.85)));
        rows.push(Row::new(&what, "Gb/s", &ours, "raw AF_XDP, copied", &copied, Goal::None));
        rows.push(Row::new(&what, "Gb/s", &ours, "kernel, offloads off", &plain, Goal::AtLeast(1.0)));
        rows.push(Row::new(&what, "Gb/s", &ours, "kernel, offloads on", &offloads, Goal::None));
    }
    Ok(rows)
}

fn round(plan: &Plan, side: Side, mtu: u32) -> Result<LoadResult> {
    let (stack, offload) = match side {
        Side::Fastsock => (Stack::Fastsock, "on"),
        Side::KernelPlain => (Stack::Kernel, "off"),
        Side::KernelOffloads => (Stack::Kernel, "on"),
    };
    let lab = crate::lab(&["--mtu", &mtu.to_string(), "--offload", offload])?;
    with_logs(&lab, |lab| {
        let on = |cpu: usize| StackOptions { cores: vec![cpu], ..StackOptions::new(stack) };
        let mut server = servers::echo(lab, Ns::Host, FRONT, &["--sink"], &on(0))?;
        let load = Load { seconds: plan.seconds, ..Load::new(Mode::Bulk, FRONT, ECHO_PORT, on(1)) };
        let result = load.run(lab, Ns::Client)?;
        server.stop()?;
        Ok(result)
    })
}
