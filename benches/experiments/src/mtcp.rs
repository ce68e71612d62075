//! mTCP's figures: many connections over the wire.

use crate::Run;
use crate::clients::Flows;
use crate::outcome::{self, Figure, Goal, Item, Series, Table, number, times};
use anyhow::{Context, Result, ensure};
use fs_memory::Server as _;
use fs_memory::ours::{App, Closer, Ours, Setup};
use fs_tests::Stack;
use fs_tests::apps::{StackOptions, target_dir};
use fs_tests::lab::{FRONT, Lab, Ns};
use fs_tests::loadgen::{Load, LoadResult, Mode};
use fs_tests::servers::{self, ECHO_PORT, HTTPD_PORT};
use std::time::Duration;

pub(crate) const ABOUT: &str = "\
Over veth, one core for the server and one for the client. Connections: both ends on ours beside both ends on the kernel's (`fs-httpd`, `fs-loadgen`). Fairness: many receivers
on the kernel's sockets, sent to by `fs-echo --source` on ours or on the kernel's. Batching: the engine alone in memory (`benches/memory`). Paper: on eight cores with a 10 Gb/s card, messages of 64 bytes on
short connections are answered 25 times as fast as by Linux 3.10 and 3 times as fast as by the best research system known then; applications gain 33 % (SSLShader) to 320 % (lighttpd).";

const BOTH: [(&str, Stack); 2] = [("fastsock", Stack::Fastsock), ("kernel", Stack::Kernel)];

pub(crate) fn run(run: &mut Run) -> Result<()> {
    by_size(run);
    by_messages(run);
    fairness(run);
    batching(run);
    Ok(())
}

/// Returns the rates with both ends on one stack.
fn load(stack: Stack, mode: Mode, body: usize, seconds: u32, more: &[String]) -> Result<LoadResult> {
    let lab = Lab::require(&["--queues", "1"])?;
    let mut result = None;
    lab.check(|lab| {
        let on = |cpu: usize| StackOptions { cores: vec![cpu], ..StackOptions::new(stack) };
        let mut server = servers::httpd(lab, Ns::Host, FRONT, body, &on(0))?;
        let load = Load {
            connections: 256,
            seconds,
            body: Some(body),
            more: more.to_vec(),
            ..Load::new(mode, FRONT, HTTPD_PORT, on(1))
        };
        result = Some(load.run(lab, Ns::Client)?);
        server.stop()
    })?;
    result.context("nothing was measured")
}

fn pair(
    run: &mut Run,
    categories: Vec<String>,
    mut measure: impl FnMut(&mut Run, usize, Stack) -> Result<f64>,
) -> Vec<Series> {
    let mut series = BOTH.map(|(name, _)| Series { name: name.into(), values: Vec::new() });
    for (at, category) in categories.iter().enumerate() {
        for ((name, stack), series) in BOTH.iter().zip(&mut series) {
            let measured = measure(run, at, *stack);
            series.values.push(run.attempt(&format!("{category}, {name}"), measured));
        }
    }
    series.to_vec()
}

fn by_size(run: &mut Run) {
    let sizes = run.few(run.choose(&[64usize, 8192][..], &[64, 256, 1024, 4096, 8192][..]));
    let seconds = run.choose(1, 3);
    let categories: Vec<String> = sizes.iter().map(|&size| outcome::size(size)).collect();
    let series = pair(run, categories.clone(), |_, at, stack| {
        Ok(load(stack, Mode::Short, sizes[at], seconds, &[])?.connections_per_second)
    });
    let mut figure = Figure {
        name: "mtcp-size".into(),
        title: "Short connections by size of the answer".into(),
        paper: "Paper, figures 7 and 8: messages a second by size, on connections of one message.".into(),
        means: String::new(),
        over: "answer".into(),
        categories,
        unit: "connections/s".into(),
        log: false,
        series,
    };
    let ratios = figure.ratios("fastsock", "kernel");
    figure.means = format!("Ours opens and serves {} the kernel's connections on the same two cores.", times(ratios));
    run.items.push(Item::Figure(figure));
    run.items.push(Item::Goal(Goal {
        goal: "short connections ahead of the kernel at every size of answer".into(),
        measured: times(ratios),
        met: ratios.is_some_and(|(least, _)| least > 1.0),
    }));
}

fn by_messages(run: &mut Run) {
    let counts = run.few(run.choose(&[1u32, 8, 64][..], &[1, 2, 8, 32, 64, 128][..]));
    let seconds = run.choose(1, 3);
    let series = pair(run, counts.iter().map(ToString::to_string).collect(), |_, at, stack| {
        let more = ["--per-connection".to_owned(), counts[at].to_string()];
        Ok(load(stack, Mode::KeepAlive, 64, seconds, &more)?.requests_per_second)
    });
    let mut figure = Figure {
        name: "mtcp-messages".into(),
        title: "Messages of 64 bytes by messages on a connection".into(),
        paper: "Paper, figures 7 and 8: messages a second grow with messages per connection; mTCP is ahead most where connections are short.".into(),
        means: String::new(),
        over: "messages on a connection".into(),
        categories: counts.iter().map(ToString::to_string).collect(),
        unit: "messages/s".into(),
        log: false,
        series,
    };
    figure.means = format!("Ours answers {} the kernel's messages.", times(figure.ratios("fastsock", "kernel")));
    run.items.push(Item::Figure(figure));
}

fn fairness(run: &mut Run) {
    let counts = run.choose(&[200usize][..], &[1_000, 10_000][..]);
    let seconds = run.choose(3.0, 12.0);
    let mut rows = Vec::new();
    for &count in counts {
        for (name, stack) in BOTH {
            let what = format!("{count} bulk flows, {name}");
            if let Some(flows) = run.attempt(&what, receive(stack, count, seconds)) {
                rows.push(vec![
                    count.to_string(),
                    name.to_owned(),
                    number(flows.jain),
                    number(flows.bytes as f64 * 8.0 / (seconds * 2.0 / 3.0) / 1e9),
                ]);
            }
        }
    }
    run.items.push(Item::Table(Table {
        title: "Fairness of bulk flows".into(),
        paper: "The paper measures Jain's index over thousands of bulk flows and finds mTCP's shares more even than Linux'.".into(),
        means: "Jain's index of what each flow got in the last two thirds of the time: 1 when all got the same.".into(),
        head: ["flows", "sender", "Jain's index", "Gb/s"].map(String::from).to_vec(),
        rows,
    }));
}

fn receive(stack: Stack, count: usize, seconds: f64) -> Result<Flows> {
    let lab = Lab::require(&["--queues", "1"])?;
    let mut flows = None;
    lab.check(|lab| {
        let on = StackOptions { cores: vec![0], ..StackOptions::new(stack) };
        let mut server = servers::echo(lab, Ns::Host, FRONT, &["--source"], &on)?;
        let program = target_dir().join("release/fs-experiments");
        let mut command = lab.command(Ns::Client, "taskset");
        command.args(["-c", "1"]).arg(&program);
        command.args(["flows", &format!("{FRONT}:{ECHO_PORT}"), &count.to_string(), &seconds.to_string()]);
        let mut proc = lab.spawn("flows", &mut command)?;
        let status = proc.wait_end(Duration::from_secs_f64(seconds + 60.0))?;
        let log = proc.log();
        ensure!(status.success(), "the receivers ended with {status}:\n{log}");
        let line = log.lines().rev().find(|line| line.starts_with('{')).context("the receivers printed nothing")?;
        flows = Some(serde_json::from_str(line)?);
        server.stop()
    })?;
    flows.context("nothing was received")
}

/// Measures the packets per turn against the cost of a packet and the length of a turn.
fn batching(run: &mut Run) {
    let pieces = run.choose(40_000, 400_000);
    let mut rows = Vec::new();
    for batch in [1usize, 2, 4, 8, 16, 32, 64] {
        let setup = Setup { open: 4096, timestamps: true, v6: false, app: App::Echo(Closer::Client), batch };
        let mut server = Ours::with(setup);
        server.transactions(pieces / 10, 64);
        let each = server.transactions(pieces, 64).as_nanos() as f64 / pieces as f64;
        rows.push(vec![batch.to_string(), number(1e3 / each), number(each), number(each * batch as f64 / 1e3)]);
    }
    run.items.push(Item::Table(Table {
        title: "Batching: packets in a turn of the engine".into(),
        paper: "Paper, section 3: batches of packets and of events are what takes the system call's cost away; the rest is the stack's own.".into(),
        means: "Requests and responses of 64 bytes on 4,096 connections, the engine and its application alone: what a turn saves by having more in it, and the least that a packet waits for its \
                turn's end. The system calls that a batch saves beside it are in the figures over veth."
            .into(),
        head: ["packets in a turn", "million requests/s", "ns a request", "µs a turn"].map(String::from).to_vec(),
        rows,
    }));
}
