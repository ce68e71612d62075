//! Spliced flows: a TCP proxy whose flows have left user space, against HAProxy in TCP mode and
//! against the same proxy without `splice`, and against no proxy: the host forwards packets.
//!
//! Requests of 64 B over 64 kept connections, and one flow at full speed. The machine's CPU is what
//! counts: interrupts that work for the proxy are not in its own time.

use crate::peers::{self, Listen};
use crate::proxy::machine_seconds;
use crate::with_logs;
use anyhow::{Context, Result, ensure};
use fs_benches::parts::{Plan, in_turns};
use fs_benches::report::{Goal, Row};
use fs_tests::apps::{Program, READY_LIMIT, StackOptions};
use fs_tests::body;
use fs_tests::clients::{self, WrkOptions};
use fs_tests::lab::{BACKEND, BACKEND6, FRONT};
use fs_tests::loadgen::{Load, Mode};
use fs_tests::proxy;
use fs_tests::servers::ECHO_PORT;
use fs_tests::{Lab, Nginx, Ns, Proc, Stack};

const CONNECTIONS: u32 = 64;
const HTTP: u16 = 8081;
const BULK: u16 = 8082;
const METRICS: u16 = 9100;
const HAPROXY_PORTS: [Listen; 2] = [
    Listen { mode: proxy::Mode::Tcp, port: HTTP, server: 80 },
    Listen { mode: proxy::Mode::Tcp, port: BULK, server: ECHO_PORT },
];
/// The proxy's clock has ticks of 10 ms.
const LEAST_SECONDS: f64 = 0.005;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Spliced,
    UserSpace,
    Haproxy,
    NoProxy,
}

const SIDES: [Side; 4] = [Side::Spliced, Side::UserSpace, Side::Haproxy, Side::NoProxy];

struct Round {
    machine_us: f64,
    /// Of no proxy, this is not a number.
    proxy_us: f64,
    rate: f64,
    gigabits_per_second: f64,
}

pub(crate) fn run(plan: &Plan) -> Result<Vec<Row>> {
    let figures = in_turns(plan, &SIDES, |side| round(plan, side))?;
    let mut rows = Vec::new();
    let mut row = |what: &str, unit: &'static str, goal: Goal, value: fn(&Round) -> f64| {
        let [spliced, plain, haproxy, none] =
            [0, 1, 2, 3].map(|side: usize| figures[side].iter().map(value).collect::<Vec<_>>());
        rows.push(Row::new(what, unit, &spliced, "HAProxy", &haproxy, goal));
        rows.push(Row::new(what, unit, &spliced, "user space", &plain, Goal::None));
        if none.iter().all(|figure| figure.is_finite()) {
            rows.push(Row::new(what, unit, &spliced, "no proxy", &none, Goal::None));
        }
    };
    row("spliced, 64 B: machine CPU", "µs/request", Goal::AtMost(0.63), |round| round.machine_us);
    row("spliced, 64 B: proxy CPU", "µs/request", Goal::AtMost(0.02), |round| round.proxy_us);
    row("spliced, 64 B: rate", "requests/s", Goal::None, |round| round.rate);
    row("spliced, one flow", "Gb/s", Goal::AtLeast(2.0), |round| round.gigabits_per_second);
    Ok(rows)
}

fn round(plan: &Plan, side: Side) -> Result<Round> {
    let lab = crate::lab(&[])?;
    with_logs(&lab, |lab| {
        let small = body::body(body::SMALL)?;
        let listen = [format!("{BACKEND}:80"), format!("[{BACKEND6}]:80")];
        let nginx = Nginx::start(lab, Ns::Backend, "nginx", &listen, &[&small])?;
        nginx.proc.pin("1")?;
        let on = |cpu: usize| StackOptions { cores: vec![cpu], ..StackOptions::new(Stack::Kernel) };
        // Stopped when dropped, as the proxy.
        let _sink = sink(lab, &on(1))?;
        let proxy = match side {
            Side::Haproxy => Some(peers::haproxy(lab, 64 << 10, &HAPROXY_PORTS, None)?),
            Side::NoProxy => None,
            _ => Some(ours(lab, side)?),
        };
        let cpu_seconds = || proxy.as_ref().map_or(Ok(f64::NAN), Proc::cpu_seconds);
        let (host, http, bulk) = match side {
            Side::NoProxy => crate::forward(lab).map(|()| (BACKEND, 80, ECHO_PORT))?,
            _ => (FRONT, HTTP, BULK),
        };
        let options = WrkOptions {
            threads: 1,
            connections: CONNECTIONS,
            cpus: Some("1".into()),
            ..WrkOptions::new(plan.seconds, false)
        };
        let (cpu, machine) = (cpu_seconds()?, machine_seconds()?);
        let wrk = clients::wrk(lab, &format!("http://{host}:{http}/64"), &options)?;
        let (cpu, machine) = (cpu_seconds()? - cpu, machine_seconds()? - machine);
        wrk.clean().context("requests through the proxy")?;
        let bulk = Load { seconds: plan.seconds, ..Load::new(Mode::Bulk, host, bulk, on(1)) }.run(lab, Ns::Client)?;
        if side == Side::Spliced {
            let flows = metric(lab, "fs_proxy_connections_spliced_total")?;
            ensure!(flows > f64::from(CONNECTIONS), "{flows} flows were spliced");
        }
        let requests = wrk.requests.max(1) as f64;
        Ok(Round {
            machine_us: machine * 1e6 / requests,
            proxy_us: if cpu.is_nan() { cpu } else { cpu.max(LEAST_SECONDS) * 1e6 / requests },
            rate: wrk.rate(),
            gigabits_per_second: bulk.gigabits_per_second,
        })
    })
}

/// Starts a server that reads all that it gets.
fn sink(lab: &Lab, stack: &StackOptions) -> Result<Proc> {
    let mut command = Program::Echo.command(lab, Ns::Backend)?;
    command.args(["--listen", &format!("{BACKEND}:{ECHO_PORT}"), "--sink"]).args(stack.arguments(&[]));
    let mut proc = lab.spawn("sink", &mut command)?;
    proc.wait_for("answer", READY_LIMIT, || lab.reaches(Ns::Host, BACKEND, ECHO_PORT))?;
    Ok(proc)
}

/// Returns the sum of a counter over all listeners.
fn metric(lab: &Lab, name: &str) -> Result<f64> {
    let text =
        lab.run(Ns::Client, "curl", &["-sS", "--max-time", "5", &format!("http://{FRONT}:{METRICS}/metrics")])?;
    let values = text.lines().filter(|line| line.starts_with(name)).filter_map(|line| line.rsplit(' ').next());
    values.map(|value| value.parse::<f64>().context("a metric")).sum()
}

fn ours(lab: &Lab, side: Side) -> Result<Proc> {
    let config = lab.dir().join("splice.toml");
    let splice = if side == Side::Spliced { "splice = \"auto\"\n" } else { "" };
    let listener = |port: u16, name: &str, server: u16| {
        format!(
            "[[listener]]\naddress = \"{FRONT}:{port}\"\nmode = \"tcp\"\nupstream = \"{name}\"\n{splice}\
             [[upstream]]\nname = \"{name}\"\nservers = [\"{BACKEND}:{server}\"]\n"
        )
    };
    let text =
        format!("metrics = \"{FRONT}:{METRICS}\"\n{}{}", listener(HTTP, "web", 80), listener(BULK, "sink", ECHO_PORT));
    std::fs::write(&config, text)?;
    let mut command = Program::Proxy.command(lab, Ns::Host)?;
    command.arg("--config").arg(&config).args(["--stack", "kernel", "--cores", "0"]);
    let mut proc = lab.spawn("proxy", &mut command)?;
    for port in [HTTP, BULK] {
        proc.wait_for("answer", READY_LIMIT, || lab.reaches(Ns::Client, FRONT, port))?;
    }
    Ok(proc)
}
