//! The program `local_pair` at both ends: latency, rates and connections of sockets without an
//! application.

use crate::{Cpus, ONE, Sides, TWO};
use anyhow::{Context, Result, anyhow};
use fs_benches::parts::Plan;
use fs_benches::report::{Goal, Row};
use fs_tests::apps::programs_dir;
use fs_tests::unmodified::Stage;
use fs_tests::unmodified::programs::Server;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// A work of the program, its name, its unit, units of the program's figure per unit, and the goal.
type Work = (&'static str, &'static str, &'static str, f64, Goal);

/// Goals are ratios to the kernel's loopback, except where a unit is named.
const TWO_CORES: [Work; 14] = [
    ("round-trip", "8-byte round trip", "µs", 1e3, Goal::AtMost(1.0 / 20.0)),
    ("trip:4096", "4 KiB round trip", "µs", 1e3, Goal::AtMost(0.5)),
    ("trip:65536", "64 KiB round trip", "µs", 1e3, Goal::AtMost(0.5)),
    ("trip:262144", "256 KiB round trip", "µs", 1e3, Goal::AtMost(0.5)),
    ("trip:1048576", "1 MiB round trip", "µs", 1e3, Goal::AtMost(0.5)),
    ("short", "8-byte messages one way", "million/s", 1e6, Goal::AtLeast(10.0)),
    ("long", "64 KiB messages one way", "GB/s", 1e9, Goal::AtLeast(2.0)),
    ("slow", "to a reader slower than its writer", "GB/s", 1e9, Goal::AtLeast(0.97)),
    ("think:100", "peers that work 100 µs: time", "µs", 1e3, Goal::AtMost(1.03)),
    ("think-cpu:100", "peers that work 100 µs: CPU", "µs", 1e3, Goal::AtMost(1.03)),
    ("think-cpu:1000", "peers that work 1 ms: CPU", "µs", 1e3, Goal::AtMost(1.03)),
    ("sleep-cpu:1000", "a client that sleeps 1 ms: CPU", "µs", 1e3, Goal::AtMost(1.03)),
    ("connect", "connect, a byte each way, close", "/s", 1.0, Goal::AtLeast(2.5)),
    ("visits", "a process that connects, asks once, ends: CPU", "ms", 1e6, Goal::AtMost(1.05)),
];

const ONE_CORE: [Work; 4] = [
    ("round-trip", "8-byte round trip", "µs", 1e3, Goal::AtMost(1.0)),
    ("short", "8-byte messages one way", "million/s", 1e6, Goal::AtLeast(1.0)),
    ("long", "64 KiB messages one way", "GB/s", 1e9, Goal::AtLeast(1.0)),
    ("connect", "connect, a byte each way, close", "/s", 1.0, Goal::AtLeast(1.1)),
];

fn program() -> String {
    programs_dir().join("local_pair").display().to_string()
}

fn server(stage: &Stage, port: u16) -> Result<Server> {
    let mut command = stage.server(&program());
    command.args(["serve", &format!("{}:{port}", stage.host)]);
    stage.serve(&format!("pair-{port}"), &mut command, port).map(Server::from)
}

fn measure(stage: &Stage, port: u16, work: &str, plan: &Plan) -> Result<f64> {
    // Half of a round: there are many works, and their figures are steady.
    let ms = (plan.seconds * 500).to_string();
    let text = stage.run(&program(), &[work, &format!("{}:{port}", stage.host), &ms])?;
    text.trim().parse().with_context(|| format!("local_pair printed {text}"))
}

pub(crate) fn run(plan: &Plan) -> Result<Vec<Row>> {
    Sides::with(|sides| {
        let two = TWO_CORES.iter().map(|work| (work, "two cores", TWO));
        let one = ONE_CORE.iter().map(|work| (work, "one core", ONE));
        let rows = two.chain(one).map(|(work, cores, cpus)| row(sides, plan, cpus, work, cores));
        let mut rows = rows.collect::<Result<Vec<Row>>>()?;
        rows.insert(1, beside_memory(sides, plan)?);
        Ok(rows)
    })
}

/// The round trip beside one of two words in memory, which is the least that two processors can do:
/// 0.1 µs or 0.5 on one virtual machine, by where its host runs the two.
fn beside_memory(sides: &mut Sides, plan: &Plan) -> Result<Row> {
    let [figures, _kernel] = sides.compare(plan, server, TWO, true, |stage, port| {
        let before = memory_round_trip()?;
        let ours = measure(stage, port, "round-trip", plan)?;
        Ok((ours / 1e3, f64::midpoint(before, memory_round_trip()?) / 1e3))
    })?;
    let (ours, memory): (Vec<_>, Vec<_>) = figures.into_iter().unzip();
    Ok(Row::new("8-byte round trip, two cores", "µs", &ours, "two words of memory", &memory, Goal::AtMost(3.0)))
}

/// Returns the nanoseconds in which two processors answer each other by a word each.
fn memory_round_trip() -> Result<f64> {
    /// A cache line and its neighbour, which processors fetch with it.
    #[repr(align(128))]
    struct Line(AtomicU64);
    const TRIPS: u64 = 200_000;
    fn pin(cpu: Option<usize>) -> Result<()> {
        let mut set = CpuSet::new();
        set.set(cpu.context("no CPU of its own")?);
        Ok(sched_setaffinity(None, &set)?)
    }
    fn wait(line: &Line, trip: u64) {
        while line.0.load(Ordering::Acquire) != trip {
            std::hint::spin_loop();
        }
    }
    let [to, back] = [const { Line(AtomicU64::new(0)) }; 2];
    std::thread::scope(|scope| {
        let peer = scope.spawn(|| {
            let pinned = pin(TWO.server);
            (1..=TRIPS).for_each(|trip| {
                wait(&to, trip);
                back.0.store(trip, Ordering::Release);
            });
            pinned
        });
        let client = scope.spawn(|| {
            let pinned = pin(TWO.client);
            let start = Instant::now();
            (1..=TRIPS).for_each(|trip| {
                to.0.store(trip, Ordering::Release);
                wait(&back, trip);
            });
            pinned.map(|()| start.elapsed().as_nanos() as f64 / TRIPS as f64)
        });
        let panicked = |_| anyhow!("a thread has panicked");
        peer.join().map_err(panicked)??;
        client.join().map_err(panicked)?
    })
}

fn row(sides: &mut Sides, plan: &Plan, cpus: Cpus, work: &Work, cores: &str) -> Result<Row> {
    let &(work, what, unit, one, goal) = work;
    // Connections with one message are too short for a ring, and peers that sleep are left to the kernel.
    let is_proven = matches!(work, "round-trip" | "short" | "long") || work.starts_with("trip");
    let figures = sides.compare(plan, server, cpus, is_proven, |stage, port| measure(stage, port, work, plan))?;
    let [ours, kernel] = figures.map(|figures| figures.into_iter().map(|figure| figure / one).collect::<Vec<_>>());
    Ok(Row::new(&format!("{what}, {cores}"), unit, &ours, "kernel", &kernel, goal))
}
