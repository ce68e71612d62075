//! SocksDirect's figures: messages between two processes of one host.

use crate::Run;
use crate::outcome::{Figure, Goal, Item, Series, number, size, times};
use anyhow::{Context, Result, ensure};
use fs_tests::apps::target_dir;
use fs_tests::lab::Lab;
use fs_tests::unmodified::programs::Server;
use fs_tests::unmodified::{Placement, Stage};
use std::process::Command;
use std::time::Duration;

pub(crate) const ABOUT: &str = "\
Two processes of one host, one connection, a CPU for each unless said. `fastsock` is a program on `std::net` under `fastsock run` (`local_pair`), `kernel TCP` the same
program on loopback; AF_UNIX streams and pipes are the kernel's; the raw ring has one producer, one consumer, 256 KiB and
nothing else that a socket has (`transports`). The paper's kernel module moved large messages by remapping their pages; here bytes are copied at every size. `pages` is the least that a
process could do instead, from 16 KiB on: one mmap of the whole message over the sender's buffer and one over the receiver's, into buffers that begin with a page, nothing copied, nothing else that a socket has.
Pairs, connections and the chain are `experiments-host`, a program on blocking `std` streams; each is run as it is and under `fastsock run`.";

const SIZES: [usize; 8] = [8, 64, 512, 4096, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
const FEW: [usize; 4] = [8, 1024, 64 << 10, 1 << 20];
/// GB/s of 64 KiB messages in the kept benches when the goal of twice the rate was set:
/// benches/results/2026-11-24T0702.
const LONG_BEFORE: f64 = 13.8;

const LINES: [(&str, &str); 5] =
    [("fastsock", "preload"), ("kernel TCP", "kernel"), ("AF_UNIX", "unix"), ("pipe", "pipe"), ("raw ring", "ring")];
/// The size from which page remapping is compared, as in the paper.
const PAGES_FROM: usize = 16 << 10;

/// One host with servers on both stacks.
struct Sides<'a> {
    ours: Stage<'a>,
    kernel: Stage<'a>,
    servers: Vec<Server>,
}

const PORT: u16 = 7500;
/// The work of [`connects`].
const CONNECT: &str = "connect";

fn pair() -> String {
    target_dir().join("release/local_pair").display().to_string()
}

impl Sides<'_> {
    fn start<'a>(run: &Run, lab: &'a Lab, server: usize, client: usize) -> Result<Sides<'a>> {
        let mut ours = run.stage(Stage::set(lab, Placement::OneHost)?);
        let mut kernel = Stage::set(lab, Placement::Kernel)?;
        let mut servers = Vec::new();
        for stage in [&mut ours, &mut kernel] {
            stage.cpu = Some(server);
            let mut command = stage.server(&pair());
            command.args(["serve", &format!("{}:{PORT}", stage.host)]);
            servers.push(stage.serve(&format!("pair-{}", servers.len()), &mut command, PORT)?.into());
            stage.cpu = Some(client);
        }
        Ok(Sides { ours, kernel, servers })
    }

    fn measure(&self, ours: bool, work: &str, ms: u32) -> Result<f64> {
        let stage = if ours { &self.ours } else { &self.kernel };
        let before = stage.reported();
        let text = stage.run(&pair(), &[work, &format!("{}:{PORT}", stage.host), &ms.to_string()])?;
        // A connection with a byte each way stays the kernel's.
        if ours && work != CONNECT {
            stage.proven(before)?;
        }
        text.trim().parse().with_context(|| format!("local_pair printed {text}"))
    }

    fn end(self) -> Result<()> {
        self.servers.into_iter().try_for_each(Server::end)?;
        self.ours.end()?;
        self.kernel.end()
    }
}

/// Runs `body` with both sides of one lab.
fn with_sides<T>(
    run: &mut Run,
    server: usize,
    client: usize,
    body: impl FnOnce(&mut Run, &Sides) -> Result<T>,
) -> Result<T> {
    let lab = Lab::require(&["--queues", "1"])?;
    let mut result = None;
    lab.check(|lab| {
        let sides = Sides::start(run, lab, server, client)?;
        result = Some(body(run, &sides)?);
        sides.end()
    })?;
    result.context("nothing was measured")
}

fn transport(work: &str, transport: &str, bytes: usize, ms: u32) -> Result<f64> {
    let program = target_dir().join("release/transports");
    let output = Command::new("timeout")
        .arg("60")
        .arg(&program)
        .args([work, transport, &bytes.to_string(), "0,1", &ms.to_string()])
        .output()
        .with_context(|| program.display().to_string())?;
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "transports {work} {transport} {bytes}: {} {errors}", output.status);
    text.trim().parse().with_context(|| format!("transports printed {text}"))
}

fn measure(run: &mut Run, sides: &Sides, rate: bool) -> Figure {
    let sizes = run.few(run.choose(&FEW[..], &SIZES[..]));
    let ms = run.choose(100, 500);
    let mut series: Vec<Series> =
        LINES.iter().map(|(name, _)| Series { name: (*name).to_owned(), values: Vec::new() }).collect();
    for &bytes in sizes {
        for ((name, how), series) in LINES.iter().zip(&mut series) {
            let figure = match *how {
                "preload" | "kernel" => {
                    let work = if rate { format!("way:{bytes}") } else { format!("trip:{bytes}") };
                    sides.measure(*how == "preload", &work, ms)
                }
                other => transport(if rate { "one-way" } else { "round-trip" }, other, bytes, ms),
            };
            let what = format!("{name}, {}", size(bytes));
            let figure = run.attempt(&what, figure);
            series.values.push(if rate { figure } else { figure.map(|ns| ns / 1e3) });
        }
    }
    if rate {
        let moved =
            |&bytes: &usize| (bytes >= PAGES_FROM).then(|| transport("one-way", "pages", bytes, ms)).transpose();
        let values = sizes.iter().map(|bytes| run.attempt("pages", moved(bytes)).flatten()).collect();
        series.push(Series { name: "pages".into(), values });
    }
    Figure {
        name: if rate { "messages-rate" } else { "messages-latency" }.into(),
        title: if rate { "Messages one way by size" } else { "Round trip by size" }.into(),
        paper: String::new(),
        means: String::new(),
        over: "message".into(),
        categories: sizes.iter().map(|&bytes| size(bytes)).collect(),
        unit: if rate { "messages/s" } else { "µs" }.into(),
        log: true,
        series,
    }
}

pub(crate) fn run(run: &mut Run) -> Result<()> {
    let (rates, trips) =
        with_sides(run, 1, 0, |run, sides| Ok((measure(run, sides, true), measure(run, sides, false))))?;
    let ratio = |figure: &Figure, of, to, size| Some(figure.value(of, size)? / figure.value(to, size)?);
    let said =
        |ratio: Option<f64>| ratio.map_or_else(|| "not measured".to_owned(), |ratio| format!("{} ×", number(ratio)));

    let mut goals = Vec::new();
    let share = ratio(&rates, "fastsock", "raw ring", "8 B");
    let eight = rates.value("fastsock", "8 B").unwrap_or(0.0);
    goals.push(Goal {
        goal: "8-byte messages one way ≥ 23 million/s or ≥ 0.85 of a raw ring".into(),
        measured: format!("{} million/s, {} of the raw ring", number(eight / 1e6), said(share)),
        met: eight >= 23e6 || share.is_some_and(|share| share >= 0.85),
    });
    let long = rates.value("fastsock", "64 KiB").unwrap_or(0.0) * 65536.0 / 1e9;
    goals.push(Goal {
        goal: format!("64 KiB messages ≥ 2 × {LONG_BEFORE} GB/s"),
        measured: format!("{} GB/s", number(long)),
        met: long >= 2.0 * LONG_BEFORE,
    });
    let mib = |name| rates.value(name, "1 MiB").unwrap_or(0.0) * (1 << 20) as f64 / 1e9;
    goals.push(Goal {
        goal: "messages of 1 MiB bounded by page operations, not by copies".into(),
        measured: format!(
            "{} GB/s by copies, {} by moving pages (the raw ring's copies {})",
            number(mib("fastsock")),
            number(mib("pages")),
            number(mib("raw ring"))
        ),
        met: false,
    });
    let raw = run.attempt("a round trip in raw memory", transport("round-trip", "raw", 8, run.choose(100, 500)));
    let trip = trips.value("fastsock", "8 B").zip(raw).map(|(us, raw)| us * 1e3 / raw);
    goals.push(Goal {
        goal: "8-byte round trip ≤ 1.3 × raw memory".into(),
        measured: said(trip),
        met: trip.is_some_and(|ratio| ratio <= 1.3),
    });

    let mut rates = rates;
    rates.paper = "Paper, figures 7 and 9 (intra-host): 7 to 20 times the messages of Linux' sockets, over all sizes; from 16 KiB on pages move instead of bytes.".into();
    rates.means = format!(
        "Under the C library ours carries {} the messages of loopback TCP, {} those of AF_UNIX and {} those of a pipe.",
        times(rates.ratios("fastsock", "kernel TCP")),
        times(rates.ratios("fastsock", "AF_UNIX")),
        times(rates.ratios("fastsock", "pipe"))
    );
    let mut trips = trips;
    trips.paper = "Paper, figures 7 and 8 (intra-host): latency 17 to 35 times better than Linux'.".into();
    trips.means = format!(
        "A round trip takes {} of loopback TCP's time, and {} of the raw ring's.",
        times(trips.ratios("fastsock", "kernel TCP")),
        times(trips.ratios("fastsock", "raw ring"))
    );
    run.items.extend([Item::Figure(rates), Item::Figure(trips)]);
    connects(run, &mut goals)?;
    crate::one_host::run(run)?;
    run.items.extend(goals.into_iter().map(Item::Goal));
    Ok(())
}

/// Measures connect, one byte each way, close.
fn connects(run: &mut Run, goals: &mut Vec<Goal>) -> Result<()> {
    let ms = run.choose(200, 1000);
    let names = ["fastsock", "kernel TCP", "AF_UNIX"];
    let mut values = [const { Vec::new() }; 3];
    for (cpus, wanted) in [((1, 0), 12.0), ((0, 0), 3.0)] {
        let three = with_sides(run, cpus.0, cpus.1, |_, sides| {
            Ok([sides.measure(true, CONNECT, ms)?, sides.measure(false, CONNECT, ms)?, unix_connects(cpus, ms)?])
        })?;
        three.iter().zip(&mut values).for_each(|(value, values)| values.push(Some(*value)));
        let ratio = three[0] / three[1];
        goals.push(Goal {
            goal: format!(
                "connects ≥ {wanted} × the kernel's, {}",
                if cpus.0 == cpus.1 { "one CPU" } else { "two CPUs" }
            ),
            measured: format!("{} ×", number(ratio)),
            met: ratio >= wanted,
        });
    }
    let series = names.iter().zip(values).map(|(name, values)| Series { name: (*name).to_owned(), values });
    let mut figure = Figure {
        name: "messages-connects".into(),
        title: "Connections: connect, a byte each way, close".into(),
        paper: "Paper: connections are set up 20 times as fast as by Linux.".into(),
        means: String::new(),
        over: "CPUs".into(),
        categories: ["two CPUs", "one CPU"].map(String::from).to_vec(),
        unit: "connections/s".into(),
        log: false,
        series: series.collect(),
    };
    figure.means = format!(
        "Connections between two processes are {} as many as the kernel's and {} as many as AF_UNIX's.",
        times(figure.ratios("fastsock", "kernel TCP")),
        times(figure.ratios("fastsock", "AF_UNIX"))
    );
    run.items.push(Item::Figure(figure));
    Ok(())
}

fn unix_connects((server, client): (usize, usize), ms: u32) -> Result<f64> {
    let path = std::env::temp_dir().join(format!("fs-pair-{}", std::process::id()));
    let _absent = std::fs::remove_file(&path);
    let on = |cpu: usize| {
        let mut command = Command::new("taskset");
        command.args(["-c", &cpu.to_string(), &pair()]);
        command
    };
    let log = std::env::temp_dir().join(format!("fs-pair-{}.log", std::process::id()));
    let mut command = on(server);
    command.arg("serve").arg(&path);
    let mut proc = fs_tests::process::Proc::spawn("local_pair", &log, &mut command)?;
    proc.wait_for("socket", Duration::from_secs(10), || path.exists())?;
    let output = on(client).arg("connect").arg(&path).arg(ms.to_string()).output()?;
    proc.kill()?;
    std::fs::remove_file(&path)?;
    std::fs::remove_file(&log)?;
    ensure!(output.status.success(), "connect: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().with_context(|| format!("local_pair printed {text}"))
}
