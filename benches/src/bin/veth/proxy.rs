//! The proxy: requests per CPU second, against the same program on kernel sockets, HAProxy and nginx.
//!
//! The proxy's own CPU seconds do not contain interrupts that run for it on the sender's core. They
//! contain those that its sends cause at the receivers. Both hold on both stacks, so the report
//! also has the whole machine's CPU seconds.
//!
//! Latency is measured by our load generator on kernel sockets, with each answer counted once.
//! wrk's percentiles are of time, not of requests: for a late answer it adds those that would have
//! been requested in the same time (`stats_correct`). One stall of 20 ms in a round of 2 s then
//! becomes the 99th percentile, whatever the other 150,000 answers took.

use crate::{peers, with_logs};
use anyhow::{Context, Result};
use fs_benches::parts::{Plan, in_turns};
use fs_benches::report::{Goal, Row};
use fs_tests::apps::StackOptions;
use fs_tests::body;
use fs_tests::clients::{self, WrkOptions};
use fs_tests::lab::{BACKEND, BACKEND6, FRONT};
use fs_tests::loadgen::{self, Load};
use fs_tests::proxy::{Certificate, HTTP_PORT, Mode, Proxy, ProxyOptions, TCP_PORT};
use fs_tests::{Lab, Nginx, Ns, Proc, Stack};

/// Connections of wrk.
const CONNECTIONS: u32 = 64;

struct Round {
    per_cpu_second: f64,
    per_machine_second: f64,
    rate: f64,
    p50_us: f64,
    p99_us: f64,
    wrk_p99_us: f64,
}

/// A proxy, on one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Fastsock,
    Kernel,
    Haproxy,
    Nginx,
}

impl Side {
    /// Starts it in front of the web server. With a certificate, its HTTP port speaks TLS.
    pub(crate) fn start(self, lab: &Lab, tls: Option<&Certificate>) -> Result<Proc> {
        let ours = |stack| {
            let certificate = tls.cloned();
            let options = ProxyOptions { cores: vec![0], certificate, ..ProxyOptions::new(stack) };
            Ok(Proxy::start(lab, &options)?.proc)
        };
        match self {
            Side::Fastsock => ours(Stack::Fastsock),
            Side::Kernel => ours(Stack::Kernel),
            Side::Haproxy => peers::haproxy(lab, peers::USUAL_BUFFER, &peers::OUR_PORTS, tls),
            Side::Nginx => peers::nginx(lab, tls),
        }
    }
}

/// nginx may lack TCP proxying (`stream`).
pub(crate) const SIDES: [Side; 4] = [Side::Fastsock, Side::Kernel, Side::Haproxy, Side::Nginx];

/// What is reported of a round, and the least ratios: of fastsock to HAProxy, and of kernel sockets to it.
struct Goals {
    proxy_cpu: [Goal; 2],
    machine_cpu: Goal,
}

fn goals(mode: Mode, close: bool) -> Goals {
    use Goal::{AtLeast, None};
    let (proxy_cpu, machine_cpu) = match (mode, close) {
        (Mode::Http, false) => ([AtLeast(1.5), AtLeast(1.3)], AtLeast(1.4)),
        (Mode::Http, true) => ([AtLeast(1.3), AtLeast(1.15)], AtLeast(1.4)),
        (Mode::Tcp, false) => ([AtLeast(1.4), None], None),
        (Mode::Tcp, true) => ([None, None], None),
    };
    Goals { proxy_cpu, machine_cpu }
}

type Figure = (&'static str, &'static str, fn(&Round) -> f64);

const FIGURES: [Figure; 6] = [
    ("per proxy CPU s", "requests/CPU s", |round| round.per_cpu_second),
    ("per machine CPU s", "requests/CPU s", |round| round.per_machine_second),
    ("rate", "requests/s", |round| round.rate),
    ("p50", "µs", |round| round.p50_us),
    ("p99", "µs", |round| round.p99_us),
    ("p99 of time (wrk)", "µs", |round| round.wrk_p99_us),
];

pub(crate) fn run(plan: &Plan) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for mode in [Mode::Http, Mode::Tcp] {
        let sides = if mode == Mode::Http { &SIDES[..] } else { &SIDES[..3] };
        for close in [false, true] {
            let figures = in_turns(plan, sides, |side| round(plan, side, mode, close))?;
            let name = match mode {
                Mode::Http => "HTTP proxy",
                Mode::Tcp => "TCP proxy",
            };
            let load = if close { "short" } else { "keep-alive" };
            for (number, (what, unit, value)) in FIGURES.into_iter().enumerate() {
                let of = |side: usize| figures[side].iter().map(value).collect::<Vec<_>>();
                let [ours, kernel, haproxy] = [0, 1, 2].map(of);
                let Goals { proxy_cpu: [of_ours, of_kernel], machine_cpu } = goals(mode, close);
                let (twin, first, second) = match number {
                    0 => (Goal::AtLeast(1.0), of_ours, of_kernel),
                    1 => (Goal::None, machine_cpu, Goal::None),
                    _ => (Goal::None, Goal::None, Goal::None),
                };
                let own = format!("{name}, {load}: {what}");
                rows.push(Row::new(&own, unit, &ours, "kernel", &kernel, twin));
                rows.push(Row::new(&own, unit, &ours, "HAProxy", &haproxy, first));
                if mode == Mode::Http {
                    rows.push(Row::new(&own, unit, &ours, "nginx", &of(3), Goal::None));
                }
                let other = format!("{name} on kernel sockets, {load}: {what}");
                rows.push(Row::new(&other, unit, &kernel, "HAProxy", &haproxy, second));
            }
        }
    }
    Ok(rows)
}

fn round(plan: &Plan, side: Side, mode: Mode, close: bool) -> Result<Round> {
    let lab = crate::lab(&[])?;
    with_logs(&lab, |lab| {
        let _nginx = backend(lab)?;
        let proxy = side.start(lab, None)?;
        let port = if mode == Mode::Http { HTTP_PORT } else { TCP_PORT };
        let (cpu, machine) = (proxy.cpu_seconds()?, machine_seconds()?);
        let wrk = clients::wrk(lab, &format!("http://{FRONT}:{port}/64"), &load(plan, close))?;
        let (cpu, machine) = (proxy.cpu_seconds()? - cpu, machine_seconds()? - machine);
        wrk.clean().with_context(|| format!("{side:?}, {mode:?}, close: {close}"))?;
        let latency = latencies(plan.seconds, mode, close, &[]).run(lab, Ns::Client)?;
        let requests = wrk.requests as f64;
        Ok(Round {
            per_cpu_second: requests / cpu.max(0.01),
            per_machine_second: requests / machine.max(0.01),
            rate: wrk.rate(),
            p50_us: latency.p50_us,
            p99_us: latency.p99_us,
            wrk_p99_us: wrk.p99_us,
        })
    })
}

/// Starts the server of 64 bytes, next to the load.
pub(crate) fn backend(lab: &Lab) -> Result<Nginx> {
    let small = body::body(body::SMALL)?;
    let listen = [format!("{BACKEND}:80"), format!("[{BACKEND6}]:80")];
    let nginx = Nginx::start(lab, Ns::Backend, "nginx", &listen, &[&small])?;
    nginx.proc.pin("1")?;
    Ok(nginx)
}

/// wrk's load of a round.
pub(crate) fn load(plan: &Plan, close: bool) -> WrkOptions {
    WrkOptions { threads: 1, connections: CONNECTIONS, cpus: Some("1".into()), ..WrkOptions::new(plan.seconds, close) }
}

/// The same load by our load generator, which measures the latency of each answer.
pub(crate) fn latencies(seconds: u32, mode: Mode, close: bool, more: &[&str]) -> Load {
    let client = StackOptions { cores: vec![1], ..StackOptions::new(Stack::Kernel) };
    let port = if mode == Mode::Http { HTTP_PORT } else { TCP_PORT };
    let load = if close { loadgen::Mode::Short } else { loadgen::Mode::KeepAlive };
    Load {
        connections: CONNECTIONS as usize,
        seconds,
        more: [&["--path", "/64"], more].concat().into_iter().map(str::to_owned).collect(),
        ..Load::new(load, FRONT, port, client)
    }
}

/// Returns the CPU seconds for which the machine was busy: user, nice, system, irq, softirq of
/// `/proc/stat`.
pub(crate) fn machine_seconds() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().context("/proc/stat")?;
    let fields: Vec<u64> = line.split_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
    let busy = [0, 1, 2, 5, 6].iter().filter_map(|&i: &usize| fields.get(i)).sum::<u64>();
    Ok(busy as f64 / 100.0)
}
