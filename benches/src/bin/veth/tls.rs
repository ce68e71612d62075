//! TLS with clients: kept connections, handshakes, and HTTP/2, per CPU second, against the same proxy on
//! kernel sockets, HAProxy and nginx. Servers get HTTP/1.1 without TLS.

use crate::proxy::{SIDES, Side, backend, load, machine_seconds};
use crate::with_logs;
use anyhow::{Context, Result, ensure};
use fs_benches::parts::{Plan, in_turns};
use fs_benches::report::{Goal, Row};
use fs_tests::lab::FRONT;
use fs_tests::proxy::{Certificate, HTTP_PORT};
use fs_tests::{Lab, Ns, clients};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    KeepAlive,
    /// A connection with a full handshake for each request.
    Handshakes,
    Http2,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::KeepAlive => "TLS, keep-alive",
            Kind::Handshakes => "TLS, handshakes",
            Kind::Http2 => "HTTP/2, 8 × 8 streams",
        }
    }
}

struct Round {
    per_cpu_second: f64,
    per_machine_second: f64,
    rate: f64,
}

pub(crate) fn run(plan: &Plan) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for kind in [Kind::KeepAlive, Kind::Handshakes, Kind::Http2] {
        let figures = in_turns(plan, &SIDES, |side| round(plan, side, kind))?;
        let mut row = |what: &str, unit: &'static str, goal: Goal, value: fn(&Round) -> f64| {
            let of = |side: usize| figures[side].iter().map(value).collect::<Vec<_>>();
            let [ours, kernel, haproxy, nginx] = [0, 1, 2, 3].map(of);
            let own = format!("{}: {what}", kind.name());
            rows.push(Row::new(&own, unit, &ours, "HAProxy", &haproxy, goal));
            rows.push(Row::new(&own, unit, &ours, "nginx", &nginx, Goal::None));
            rows.push(Row::new(&own, unit, &ours, "kernel", &kernel, Goal::None));
            rows.push(Row::new(&format!("{own}, on kernel sockets"), unit, &kernel, "HAProxy", &haproxy, Goal::None));
        };
        let goal = if kind == Kind::KeepAlive { Goal::AtLeast(1.2) } else { Goal::None };
        row("per proxy CPU s", "requests/CPU s", goal, |round| round.per_cpu_second);
        row("per machine CPU s", "requests/CPU s", Goal::None, |round| round.per_machine_second);
        row("rate", "requests/s", Goal::None, |round| round.rate);
    }
    Ok(rows)
}

fn round(plan: &Plan, side: Side, kind: Kind) -> Result<Round> {
    let lab = crate::lab(&[])?;
    with_logs(&lab, |lab| {
        let _nginx = backend(lab)?;
        let certificate = Certificate::new(lab)?;
        let proxy = side.start(lab, Some(&certificate))?;
        let url = format!("https://{FRONT}:{HTTP_PORT}/64");
        let (cpu, machine) = (proxy.cpu_seconds()?, machine_seconds()?);
        let (requests, rate) = match kind {
            Kind::Http2 => h2load(lab, &url, plan.seconds)?,
            _ => {
                let wrk = clients::wrk(lab, &url, &load(plan, kind == Kind::Handshakes))?;
                wrk.clean().with_context(|| format!("{side:?}, {kind:?}"))?;
                (wrk.requests as f64, wrk.rate())
            }
        };
        let (cpu, machine) = (proxy.cpu_seconds()? - cpu, machine_seconds()? - machine);
        Ok(Round { per_cpu_second: requests / cpu.max(0.01), per_machine_second: requests / machine.max(0.01), rate })
    })
}

/// Loads with 8 connections of 8 streams. Returns requests, and requests per second.
fn h2load(lab: &Lab, url: &str, seconds: u32) -> Result<(f64, f64)> {
    let duration = seconds.to_string();
    let load = ["-c", "1", "h2load", "-t", "1", "-c", "8", "-m", "8", "-D", &duration, url];
    let text = lab.run(Ns::Client, "taskset", &load)?;
    let field = |before: &str, after: &str| {
        let end = text.find(after)?;
        text[..end].rsplit(before).next()?.trim().parse::<f64>().ok()
    };
    ensure!(text.contains("Application protocol: h2"), "h2load spoke no HTTP/2:\n{text}");
    let succeeded = field(",", " succeeded").context("h2load")?;
    ensure!(succeeded > 0.0 && field(",", " failed") == Some(0.0), "h2load printed:\n{text}");
    let rate = field(",", " req/s").with_context(|| format!("h2load printed:\n{text}"))?;
    Ok((succeeded, rate))
}
