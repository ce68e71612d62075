//! nginx (a master and two workers) and wrk, with files of 612 bytes (the size of nginx's default
//! page) and of 16 KiB (the largest that a ring carries).

use crate::{ANY, Cpus, ONE, Sides, Start};
use anyhow::{Context, Result};
use fs_benches::parts::Plan;
use fs_benches::report::{Goal, Row};
use fs_tests::apps::workspace;
use fs_tests::clients::Wrk;
use fs_tests::unmodified::Stage;
use fs_tests::unmodified::programs::{self, Server};

/// A figure's name, its unit, and its value in wrk's results.
type Figure = (&'static str, &'static str, fn(&Wrk) -> f64);

/// A load's name, its server, bytes of the file, connections, CPUs, and goals for the median, the
/// 99th percentile and the rate.
type Load = (&'static str, Start, u32, u32, Cpus, [Goal; 3]);

/// nginx's own default.
fn plain(stage: &Stage, port: u16) -> Result<Server> {
    server(stage, port, "; tcp_nopush off")
}

/// As Debian configures it: TCP_CORK around each answer with a file.
fn corked(stage: &Stage, port: u16) -> Result<Server> {
    server(stage, port, "; tcp_nopush on")
}

fn server(stage: &Stage, port: u16, lines: &str) -> Result<Server> {
    for size in [612, 16 << 10] {
        std::fs::write(stage.files().join(size.to_string()), vec![b'x'; size])?;
    }
    programs::nginx(stage, port, lines)
}

fn wrk(stage: &Stage, port: u16, connections: u32, size: u32, plan: &Plan) -> Result<Wrk> {
    let script = workspace().join("lab/wrk.lua").display().to_string();
    let (connections, time) = (format!("-c{connections}"), format!("-d{}", plan.seconds));
    let url = format!("http://{}:{port}/{size}", stage.host);
    let text = stage.run("wrk", &["-t1", &connections, &time, "-s", &script, &url])?;
    let line = text.lines().rev().find(|line| line.starts_with('{')).context("wrk printed no result")?;
    let result: Wrk = serde_json::from_str(line)?;
    result.clean()?;
    Ok(result)
}

pub(crate) fn run(plan: &Plan) -> Result<Vec<Row>> {
    const NONE: [Goal; 3] = [Goal::None; 3];
    let kept = [Goal::None, Goal::AtMost(1.0), Goal::AtLeast(2.5)];
    let one_core = [Goal::AtMost(1.0), Goal::None, Goal::AtLeast(1.0)];
    let loads: [Load; 5] = [
        ("612 B, 1 connection", plain, 612, 1, ANY, [Goal::None, Goal::None, Goal::AtLeast(10.0)]),
        ("612 B, 8 connections", plain, 612, 8, ANY, kept),
        ("612 B, 8 connections, one core", plain, 612, 8, ONE, one_core),
        ("612 B, tcp_nopush, 8 connections", corked, 612, 8, ANY, kept),
        ("16 KiB, 8 connections", plain, 16 << 10, 8, ANY, NONE),
    ];
    Sides::with(|sides| {
        let mut rows = Vec::new();
        for (load, start, size, connections, cpus, goals) in loads {
            let [ours, kernel] =
                sides.compare(plan, start, cpus, true, |stage, port| wrk(stage, port, connections, size, plan))?;
            let values: [Figure; 3] =
                [("p50", "µs", |wrk| wrk.p50_us), ("p99", "µs", |wrk| wrk.p99_us), ("rate", "/s", Wrk::rate)];
            for ((name, unit, value), goal) in values.into_iter().zip(goals) {
                let of = |side: &[Wrk]| side.iter().map(value).collect::<Vec<_>>();
                let what = format!("nginx {load}: {name}");
                rows.push(Row::new(&what, unit, &of(&ours), "kernel", &of(&kernel), goal));
            }
        }
        Ok(rows)
    })
}
