//! Latency at half and quarter load: requests at that part of the rate that HAProxy reaches, in the same
//! run. A request is due at its time whether or not the ones before it are answered, and its latency
//! counts from then. On a machine of two CPUs, at half load the server and the load generator use all of
//! the CPU that is not the proxy's, so their queue is measured; at a quarter it is the proxy's.

use crate::proxy::{SIDES, Side, backend, latencies, load};
use crate::with_logs;
use anyhow::{Result, ensure};
use fs_benches::parts::{Plan, in_turns};
use fs_benches::report::{Goal, Row};
use fs_tests::lab::FRONT;
use fs_tests::loadgen::LoadResult;
use fs_tests::proxy::{HTTP_PORT, Mode, TCP_PORT};
use fs_tests::{Ns, clients};

const LOADS: [(&str, Mode, bool); 3] =
    [("HTTP, keep-alive", Mode::Http, false), ("HTTP, new", Mode::Http, true), ("TCP, keep-alive", Mode::Tcp, false)];

pub(crate) fn run(plan: &Plan) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (name, mode, close) in LOADS {
        let most = most(plan, mode, close)?;
        for (part, load_part) in [(2.0, "half"), (4.0, "quarter")] {
            let rate = (most / part) as u32;
            println!("  {name}, {load_part} load: {rate} requests/s");
            let figures = in_turns(plan, &SIDES[..3], |side| round(plan, side, mode, close, rate))?;
            let mut row = |what: &str, value: fn(&LoadResult) -> f64, goal: Goal| {
                let of = |side: usize| figures[side].iter().map(value).collect::<Vec<_>>();
                let [ours, kernel, haproxy] = [0, 1, 2].map(of);
                let own = format!("{name}, {load_part} load: {what}");
                rows.push(Row::new(&own, "µs", &ours, "HAProxy", &haproxy, goal));
                rows.push(Row::new(&format!("{own}, on kernel sockets"), "µs", &kernel, "HAProxy", &haproxy, goal));
            };
            row("p50", |load| load.p50_us, Goal::None);
            row("p99", |load| load.p99_us, Goal::AtMost(1.0));
        }
    }
    Ok(rows)
}

fn port(mode: Mode) -> u16 {
    if mode == Mode::Http { HTTP_PORT } else { TCP_PORT }
}

/// The rate that HAProxy reaches.
fn most(plan: &Plan, mode: Mode, close: bool) -> Result<f64> {
    let lab = crate::lab(&[])?;
    with_logs(&lab, |lab| {
        let _nginx = backend(lab)?;
        let _proxy = Side::Haproxy.start(lab, None)?;
        Ok(clients::wrk(lab, &format!("http://{FRONT}:{}/64", port(mode)), &load(plan, close))?.rate())
    })
}

fn round(plan: &Plan, side: Side, mode: Mode, close: bool, rate: u32) -> Result<LoadResult> {
    let lab = crate::lab(&[])?;
    with_logs(&lab, |lab| {
        let _nginx = backend(lab)?;
        let _proxy = side.start(lab, None)?;
        // In its first second a program opens its connections and touches its memory first.
        latencies(1, mode, close, &["--rate", &rate.to_string()]).run(lab, Ns::Client)?;
        let result = latencies(plan.seconds, mode, close, &["--rate", &rate.to_string()]).run(lab, Ns::Client)?;
        let reached = result.requests_per_second;
        ensure!(reached > 0.995 * f64::from(rate), "{side:?} served {reached:.0} of {rate} requests/s");
        Ok(result)
    })
}
