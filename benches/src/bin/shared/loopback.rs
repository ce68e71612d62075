//! A program without a device (`FASTSOCK_LINK=kernel`) next to the same program on tokio's sockets,
//! both by loopback.

use crate::daemon;
use anyhow::{Context, Result, ensure};
use fs_benches::parts::{Plan, in_turns};
use fs_benches::report::{Goal, Row};
use fs_tests::apps::{Program, StackOptions};
use fs_tests::loadgen::{Load, LoadResult, Mode};
use fs_tests::process::Proc;
use fs_tests::{Lab, Ns, Stack};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const PORT: u16 = 7104;

type Side = (Stack, Mode);

pub(crate) fn run(plan: &Plan) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (mode, what, rate) in [
        (Mode::KeepAlive, "loopback, kept", (|r| r.requests_per_second) as fn(&LoadResult) -> f64),
        (Mode::Short, "loopback, short", |r| r.connections_per_second),
    ] {
        let figures = in_turns(plan, &[(Stack::Fastsock, mode), (Stack::Kernel, mode)], |side| round(plan, side))?;
        let of = |value: fn(&LoadResult) -> f64| [0, 1].map(|side: usize| figures[side].iter().map(value).collect());
        let [ours, tokios]: [Vec<f64>; 2] = of(rate);
        let [our_p99, tokios_p99]: [Vec<f64>; 2] = of(|result| result.p99_us);
        let unit = if mode == Mode::Short { "connections/s" } else { "requests/s" };
        rows.push(Row::new(what, unit, &ours, "tokio", &tokios, Goal::AtLeast(0.97)));
        rows.push(Row::new(&format!("{what}: p99"), "µs", &our_p99, "tokio", &tokios_p99, Goal::AtMost(1.1)));
    }
    Ok(rows)
}

/// Starts a server that has no device.
fn server(lab: &Lab, program: Program, stack: Stack) -> Result<Proc> {
    let mut command = daemon::enter(lab, Ns::Host);
    let on = StackOptions::new(stack);
    command.arg(program.path()?).args(["--listen", &format!("127.0.0.1:{PORT}")]);
    command.args(on.arguments(&[fs_tests::servers::devices(Ns::Host)])).env("FASTSOCK_LINK", "kernel");
    lab.spawn(program.name(), &mut command)
}

fn round(plan: &Plan, (stack, mode): Side) -> Result<LoadResult> {
    let lab = Lab::require(&["--queues", "1"])?;
    let measure = || {
        let mut server = server(&lab, Program::Httpd, stack)?;
        let log = server.log_path().to_owned();
        let says = || std::fs::read_to_string(&log).is_ok_and(|text| text.lines().any(|line| line == "ready"));
        server.wait_for("ready", fs_tests::apps::READY_LIMIT, says)?;
        let client = StackOptions { cores: vec![1], ..StackOptions::new(Stack::Kernel) };
        let load = Load {
            connections: 64,
            seconds: plan.seconds,
            body: Some(64),
            ..Load::new(mode, "127.0.0.1", PORT, client)
        };
        let load = lab.spawn("loadgen", &mut load.command(&lab, Ns::Host)?)?;
        daemon::result(load, plan.seconds)
    };
    measure().inspect_err(|_| lab.print_logs())
}

/// Measures the time from the start of a process to its first answer.
pub(crate) fn first_accept(plan: &Plan) -> Result<Vec<Row>> {
    let lab = Lab::require(&["--queues", "1"])?;
    let times = Plan { rounds: plan.rounds * 4, ..*plan };
    let figures = in_turns(&times, &[Stack::Fastsock, Stack::Kernel], |stack| accepts_after(&lab, stack));
    let [ours, tokios]: [Vec<f64>; 2] =
        figures.inspect_err(|_| lab.print_logs())?.try_into().map_err(|_| anyhow::anyhow!("two sides"))?;
    Ok(vec![
        Row::new("start to first accept", "ms", &ours, "limit", &[20.0], Goal::AtMost(1.0)),
        Row::new("start to first accept", "ms", &ours, "tokio", &tokios, Goal::None),
    ])
}

fn accepts_after(lab: &Lab, stack: Stack) -> Result<f64> {
    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
    use std::os::fd::AsFd;
    let file = std::fs::File::open(format!("/run/netns/{}", lab.ns(Ns::Host)))?;
    std::thread::scope(|scope| {
        let within = scope.spawn(|| {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
            let began = Instant::now();
            let _server = server(lab, Program::Echo, stack)?;
            let mut stream = loop {
                match TcpStream::connect(("127.0.0.1", PORT)) {
                    Ok(stream) => break stream,
                    Err(_) => std::thread::sleep(Duration::from_micros(100)),
                }
                ensure!(began.elapsed() < Duration::from_secs(20), "the server does not accept");
            };
            stream.write_all(&[1])?;
            stream.read_exact(&mut [0])?;
            Ok(began.elapsed().as_secs_f64() * 1e3)
        });
        within.join().ok().context("a thread panicked")?
    })
}
