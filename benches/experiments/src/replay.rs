//! WebReplay, as in mTCP's paper: traces of HTTP, played on many connections with their pauses.

use crate::Run;
use crate::clients::{PERCENTILES, Replayed};
use crate::outcome::{Figure, Item, Series, Table, number, times};
use crate::trace::{LONGEST, generate};
use anyhow::{Context, Result, ensure};
use fs_tests::apps::{StackOptions, target_dir};
use fs_tests::lab::{FRONT, Lab, Ns};
use fs_tests::servers::{self, HTTPD_PORT};
use fs_tests::{Program, Stack};
use std::time::Duration;

pub(crate) const ABOUT: &str = "\
A trace of HTTP requests is played from the kernel's sockets on one CPU against `fs-httpd` on the other, first on ours, then on the kernel's: each request at its time, or when the answer
before it on its connection is complete. The trace is made: sizes of answers as the paper says of its cellular network (more than half of the flows below 4 KiB, over nine tenths
below 32 KiB), starts at random, pauses between requests. `fs-experiments play ADDRESS FILE` plays a HAR file or a packet capture (`.har`, `.pcap`) as well; the paper's own trace is not public.";

/// Starts `fs-httpd`, plays the trace, and stops it.
fn play(stack: Stack, trace: &str, seconds: f64) -> Result<Replayed> {
    let lab = Lab::require(&["--queues", "1"])?;
    let mut replayed = None;
    lab.check(|lab| {
        let on = StackOptions { cores: vec![0], ..StackOptions::new(stack) };
        let by_path = LONGEST.to_string();
        let own = ["--by-path", by_path.as_str()];
        let mut server = servers::start(lab, Ns::Host, Program::Httpd, FRONT, HTTPD_PORT, &own, &on)?;
        let path = lab.dir().join("trace.json");
        std::fs::write(&path, trace)?;
        // TIME-WAIT keeps each flow's port for a minute. Without reuse, most of many flows would
        // search all ports and find none.
        lab.run(Ns::Client, "sysctl", &["-qw", "net.ipv4.ip_local_port_range=1024 65535", "net.ipv4.tcp_tw_reuse=1"])?;
        let program = target_dir().join("release/fs-experiments");
        let mut command = lab.command(Ns::Client, "taskset");
        command.args(["-c", "1"]).arg(&program).args(["play", &format!("{FRONT}:{HTTPD_PORT}")]).arg(&path);
        let mut proc = lab.spawn("replay", &mut command)?;
        let status = proc.wait_end(Duration::from_secs_f64(3.0 * seconds + 30.0))?;
        let log = proc.log();
        ensure!(status.success(), "the replayer ended with {status}:\n{log}");
        let line = log.lines().rev().find(|line| line.starts_with('{')).context("the replayer printed nothing")?;
        replayed = Some(serde_json::from_str::<Replayed>(line)?);
        server.stop()
    })?;
    replayed.context("nothing was played")
}

pub(crate) fn run(run: &mut Run) -> Result<()> {
    let (counts, seconds): (&[usize], f64) =
        run.choose((&[500usize][..], 2.0), (&[2_000usize, 10_000, 50_000][..], 10.0));
    let mut rows = Vec::new();
    for &count in counts {
        let text = serde_json::to_string(&generate(count, seconds, 1))?;
        let mut sides = Vec::new();
        for (name, stack) in [("fastsock", Stack::Fastsock), ("kernel", Stack::Kernel)] {
            let what = format!("{count} flows, {name}");
            if let Some(replayed) = run.attempt(&what, play(stack, &text, seconds)) {
                rows.push(vec![
                    count.to_string(),
                    name.to_owned(),
                    replayed.requests.to_string(),
                    replayed.concurrent.to_string(),
                    number(replayed.bytes as f64 * 8.0 / replayed.seconds / 1e9),
                    replayed.errors.to_string(),
                ]);
                sides.push((name, replayed));
            }
        }
        let figure = |kind: &str, title: &str, paper: &str, of: fn(&Replayed) -> &Vec<f64>| Figure {
            name: format!("replay-{kind}-{count}"),
            title: format!("{title}, {count} flows in {seconds:.0} s"),
            paper: paper.into(),
            means: String::new(),
            over: "percentile".into(),
            categories: PERCENTILES.iter().map(ToString::to_string).collect(),
            unit: "µs".into(),
            log: true,
            series: sides
                .iter()
                .map(|(name, side)| Series {
                    name: (*name).to_owned(),
                    values: of(side).iter().map(|&value| Some(value.max(0.1))).collect(),
                })
                .collect(),
        };
        let mut late = figure(
            "late",
            "Requests later than their time",
            "The paper's WebReplay plays on mTCP at the trace's rate with many more flows than on Linux, where requests fall behind their times.",
            |side| &side.late_us,
        );
        let ratios = times(late.ratios("fastsock", "kernel"));
        late.means = format!(
            "Lateness is the client's (a kernel's timer, one thread) and that of answers before; beside ours it is {ratios} that beside the kernel."
        );
        let mut latency = figure(
            "latency",
            "Time until an answer is complete",
            "The paper tells the distributions of the error of inter-arrival times and of latency.",
            |side| &side.latency_us,
        );
        let ratios = times(latency.ratios("fastsock", "kernel"));
        latency.means = format!("Answers of ours take {ratios} the time of the kernel's, with the same client.");
        run.items.extend([Item::Figure(late), Item::Figure(latency)]);
    }
    run.items.push(Item::Table(Table {
        title: "Replays".into(),
        paper: "A flow is a connection with one or more requests.".into(),
        means: "Errors are connections on which a request was not answered as asked.".into(),
        head: ["flows", "server", "requests", "open at once", "Gb/s", "errors"].map(String::from).to_vec(),
        rows,
    }));
    Ok(())
}
