//! Answers of 1 MiB through a proxy, to 64 clients and to one, against HAProxy, against the same
//! program on kernel sockets, and against no proxy: the host forwards packets.
//!
//! HAProxy gets buffers of 64 KiB, as much as our proxy reads at once. With its default of 16 KiB it
//! costs several times as much.

use crate::peers;
use crate::proxy::machine_seconds;
use crate::with_logs;
use anyhow::{Context, Result};
use fs_benches::parts::{Plan, in_turns};
use fs_benches::report::{Goal, Row};
use fs_tests::body;
use fs_tests::clients::{self, WrkOptions};
use fs_tests::lab::{BACKEND, BACKEND6, FRONT};
use fs_tests::proxy::{HTTP_PORT, Proxy, ProxyOptions};
use fs_tests::{Nginx, Ns, Stack};

#[derive(Clone, Copy)]
enum Side {
    Fastsock,
    Kernel,
    Haproxy,
    NoProxy,
}

const SIDES: [Side; 4] = [Side::Fastsock, Side::Kernel, Side::Haproxy, Side::NoProxy];

/// Connections, and what the goals are against HAProxy: the machine's CPU, and the rate.
const LOADS: [(u32, Goal, Goal); 2] = [(64, Goal::AtMost(0.8), Goal::None), (1, Goal::None, Goal::AtLeast(1.5))];

struct Round {
    machine_ms: f64,
    gigabits_per_second: f64,
}

pub(crate) fn run(plan: &Plan) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (connections, cpu_goal, rate_goal) in LOADS {
        let figures = in_turns(plan, &SIDES, |side| round(plan, side, connections))?;
        let mut row = |what: &str, unit: &'static str, goal: Goal, value: fn(&Round) -> f64| {
            let [ours, kernel, haproxy, none] =
                [0, 1, 2, 3].map(|side: usize| figures[side].iter().map(value).collect::<Vec<_>>());
            let name = format!("1 MiB through the proxy, {connections} at once: {what}");
            rows.push(Row::new(&name, unit, &ours, "HAProxy", &haproxy, goal));
            rows.push(Row::new(&name, unit, &ours, "kernel", &kernel, Goal::None));
            rows.push(Row::new(&name, unit, &ours, "no proxy", &none, Goal::None));
        };
        row("machine CPU", "ms/answer", cpu_goal, |round| round.machine_ms);
        row("rate", "Gb/s", rate_goal, |round| round.gigabits_per_second);
    }
    Ok(rows)
}

fn round(plan: &Plan, side: Side, connections: u32) -> Result<Round> {
    let lab = crate::lab(&[])?;
    with_logs(&lab, |lab| {
        let mib = body::body(body::MIB)?;
        let listen = [format!("{BACKEND}:80"), format!("[{BACKEND6}]:80")];
        let nginx = Nginx::start(lab, Ns::Backend, "nginx", &listen, &[&mib])?;
        nginx.proc.pin("1")?;
        let of = |stack| ProxyOptions { cores: vec![0], ..ProxyOptions::new(stack) };
        // Stopped when dropped.
        let _proxy = match side {
            Side::Fastsock => Some(Proxy::start(lab, &of(Stack::Fastsock))?.proc),
            Side::Kernel => Some(Proxy::start(lab, &of(Stack::Kernel))?.proc),
            Side::Haproxy => Some(peers::haproxy(lab, 64 << 10, &peers::OUR_PORTS, None)?),
            Side::NoProxy => None,
        };
        let server = match side {
            Side::NoProxy => crate::forward(lab).map(|()| format!("{BACKEND}:80"))?,
            _ => format!("{FRONT}:{HTTP_PORT}"),
        };
        let options =
            WrkOptions { threads: 1, connections, cpus: Some("1".into()), ..WrkOptions::new(plan.seconds, false) };
        let machine = machine_seconds()?;
        let wrk = clients::wrk(lab, &format!("http://{server}/{}", mib.name), &options)?;
        let machine = machine_seconds()? - machine;
        wrk.clean().context("1 MiB through the proxy")?;
        Ok(Round {
            machine_ms: machine * 1e3 / wrk.requests.max(1) as f64,
            gigabits_per_second: wrk.bytes as f64 * 8e-3 / wrk.duration_us.max(1) as f64,
        })
    })
}
