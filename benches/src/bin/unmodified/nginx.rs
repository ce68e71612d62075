//! nginx as installed (a master and two workers) and wrk, with a file of 612 bytes (the size of
//! nginx's default page).

use crate::{ANY, Cpus, ONE, Sides};
use anyhow::{Context, Result};
use fs_benches::parts::Plan;
use fs_benches::report::{Goal, Row};
use fs_tests::apps::workspace;
use fs_tests::clients::Wrk;
use fs_tests::unmodified::Stage;
use fs_tests::unmodified::programs::{Server, group};

/// A figure's name, its unit, and its value in wrk's results.
type Figure = (&'static str, &'static str, fn(&Wrk) -> f64);

fn server(stage: &Stage, port: u16) -> Result<Server> {
    std::fs::write(stage.files().join("612"), [b'x'; 612])?;
    (group("nginx")?.server)(stage, port)
}

fn wrk(stage: &Stage, port: u16, connections: u32, plan: &Plan) -> Result<Wrk> {
    let script = workspace().join("lab/wrk.lua").display().to_string();
    let (connections, time) = (format!("-c{connections}"), format!("-d{}", plan.seconds));
    let url = format!("http://{}:{port}/612", stage.host);
    let text = stage.run("wrk", &["-t1", &connections, &time, "-s", &script, &url])?;
    let line = text.lines().rev().find(|line| line.starts_with('{')).context("wrk printed no result")?;
    let result: Wrk = serde_json::from_str(line)?;
    result.clean()?;
    Ok(result)
}

pub(crate) fn run(plan: &Plan) -> Result<Vec<Row>> {
    // Goals for the median, the 99th percentile, the rate.
    let loads: [(&str, u32, Cpus, [Goal; 3]); 3] = [
        ("1 connection", 1, ANY, [Goal::None, Goal::None, Goal::AtLeast(10.0)]),
        ("8 connections", 8, ANY, [Goal::None, Goal::AtMost(1.0), Goal::AtLeast(2.5)]),
        ("8 connections, one core", 8, ONE, [Goal::AtMost(1.0), Goal::None, Goal::AtLeast(1.0)]),
    ];
    Sides::with(|sides| {
        let mut rows = Vec::new();
        for (load, connections, cpus, goals) in loads {
            let [ours, kernel] =
                sides.compare(plan, server, cpus, true, |stage, port| wrk(stage, port, connections, plan))?;
            let values: [Figure; 3] =
                [("p50", "µs", |wrk| wrk.p50_us), ("p99", "µs", |wrk| wrk.p99_us), ("rate", "/s", Wrk::rate)];
            for ((name, unit, value), goal) in values.into_iter().zip(goals) {
                let of = |side: &[Wrk]| side.iter().map(value).collect::<Vec<_>>();
                let what = format!("nginx 612 B, {load}: {name}");
                rows.push(Row::new(&what, unit, &of(&ours), "kernel", &of(&kernel), goal));
            }
        }
        Ok(rows)
    })
}
