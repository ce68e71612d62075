//! The memory of a connection that has been served once and is idle: the proxy's resident set, and
//! what the machine lacks (with the client's socket, which is the same for all).

use crate::proxy::{SIDES, Side, backend};
use crate::with_logs;
use anyhow::{Context, Result, ensure};
use fs_benches::parts::{Plan, in_turns};
use fs_benches::report::{Goal, Row};
use fs_tests::apps::{READY_LIMIT, Stack, StackOptions};
use fs_tests::lab::FRONT;
use fs_tests::loadgen::{Load, Mode};
use fs_tests::proxy::HTTP_PORT;
use fs_tests::{Ns, Proc};

const CONNECTIONS: usize = 8000;

struct Round {
    resident: f64,
    machine: f64,
}

pub(crate) fn run(plan: &Plan) -> Result<Vec<Row>> {
    let figures = in_turns(plan, &SIDES[..3], round)?;
    let mut rows = Vec::new();
    let mut row = |what: &str, value: fn(&Round) -> f64| {
        let of = |side: usize| figures[side].iter().map(value).collect::<Vec<_>>();
        let [ours, kernel, haproxy] = [0, 1, 2].map(of);
        let own = format!("an idle connection: {what}");
        rows.push(Row::new(&own, "bytes", &ours, "HAProxy", &haproxy, Goal::None));
        rows.push(Row::new(&format!("{own}, on kernel sockets"), "bytes", &kernel, "HAProxy", &haproxy, Goal::None));
    };
    row("proxy's memory", |round| round.resident);
    row("machine's memory", |round| round.machine);
    Ok(rows)
}

fn round(side: Side) -> Result<Round> {
    let lab = crate::lab(&[])?;
    with_logs(&lab, |lab| {
        let _nginx = backend(lab)?;
        let proxy = side.start(lab, None)?;
        let client = StackOptions { cores: vec![1], ..StackOptions::new(Stack::Kernel) };
        // What the proxy needs once, it has after these.
        hold(200, 1, &client).run(lab, Ns::Client)?;
        let before = memory(&proxy)?;
        let holder = hold(CONNECTIONS, 5, &client);
        let mut holding = lab.spawn("hold", &mut holder.command(lab, Ns::Client)?)?;
        let log = holding.log_path().to_owned();
        let opened = || std::fs::read_to_string(&log).is_ok_and(|text| text.contains("connections open"));
        holding.wait_for("opened its connections", READY_LIMIT, opened)?;
        let after = memory(&proxy)?;
        let result = Load::end(holding, holder.seconds)?;
        ensure!(result.requests >= 2 * CONNECTIONS as u64, "{side:?}: {} requests", result.requests);
        let each = |more: f64| more / CONNECTIONS as f64;
        Ok(Round { resident: each(after.resident - before.resident), machine: each(after.machine - before.machine) })
    })
}

fn hold(connections: usize, seconds: u32, client: &StackOptions) -> Load {
    Load {
        connections,
        seconds,
        more: ["--path", "/64"].map(str::to_owned).to_vec(),
        ..Load::new(Mode::Hold, FRONT, HTTP_PORT, client.clone())
    }
}

/// Bytes in use, by the proxy and by all.
fn memory(proxy: &Proc) -> Result<Round> {
    let info = std::fs::read_to_string("/proc/meminfo")?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:")).context("/proc/meminfo")?;
    let available: f64 = line.trim().trim_end_matches(" kB").parse().context("/proc/meminfo")?;
    Ok(Round { resident: proxy.resident()? as f64, machine: -available * 1024.0 })
}
