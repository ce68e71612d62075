//! SocksDirect's figures beyond one connection of two processes: pairs of processes, many
//! connections, an RPC library, a chain of network functions. The programs are `experiments-host`
//! and `rpc-peer`, on `std` streams and on libtirpc.

use crate::Run;
use crate::outcome::{self, Figure, Item, Series, Table, number, times};
use anyhow::{Context, Result, ensure};
use fs_benches::parts::median;
use fs_tests::apps::{target_dir, workspace};
use fs_tests::lab::Lab;
use fs_tests::process::Proc;
use fs_tests::unmodified::stage::finish;
use fs_tests::unmodified::{Placement, Stage};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

/// The transport of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Ours,
    Kernel,
    Unix,
    Pipe,
}

/// The transports in the order of the page.
const SOCKETS: [(&str, By); 3] = [("fastsock", By::Ours), ("kernel TCP", By::Kernel), ("AF_UNIX", By::Unix)];
const CARRIERS: [(&str, By); 4] =
    [("fastsock", By::Ours), ("kernel TCP", By::Kernel), ("AF_UNIX", By::Unix), ("pipe", By::Pipe)];

/// The limit after which a measurement counts as hung.
const LIMIT: Duration = Duration::from_secs(60);
/// Rounds of each measurement.
const ROUNDS: usize = 3;
/// The time until all clients have connected, plus [`EACH`] for each of their connections.
const BEGIN: Duration = Duration::from_millis(400);
const EACH: Duration = Duration::from_millis(2);
/// Bytes of a message, unless a size is given.
const MESSAGE: usize = 8;

const PAIRS: [usize; 3] = [1, 2, 4];
const CONNECTIONS: [usize; 4] = [1, 16, 256, 1024];
const CHAINS: [usize; 4] = [1, 2, 4, 8];
/// Packets per buffer of a network function: one, as in the paper, and 64 KiB.
const CALLS: [(usize, &str, &str); 2] =
    [(1, "messages-chain", "a read and a write for each"), (1024, "messages-chain-buffers", "buffers of 64 KiB")];
const CALL_BYTES: [usize; 2] = [64, 1024];

pub(crate) fn run(run: &mut Run) -> Result<()> {
    let rpc = run.attempt("rpc-peer", rpc_peer());
    let lab = Lab::require(&["--queues", "1"])?;
    lab.check(|lab| {
        let mut host = Host::start(run, lab)?;
        pairs(run, &mut host);
        connections(run, &mut host);
        if let Some(program) = rpc {
            calls(run, &mut host, &program);
        }
        chains(run, &mut host);
        host.end()
    })
}

/// One host with a daemon, another without.
struct Host<'a> {
    lab: &'a Lab,
    ours: Stage<'a>,
    kernel: Stage<'a>,
    /// Number of addresses in use so far: each is used once.
    given: u16,
}

impl<'a> Host<'a> {
    fn start(run: &Run, lab: &'a Lab) -> Result<Host<'a>> {
        let (ours, kernel) = (run.stage(Stage::set(lab, Placement::OneHost)?), Stage::set(lab, Placement::Kernel)?);
        Ok(Host { lab, ours, kernel, given: 0 })
    }

    fn end(self) -> Result<()> {
        self.ours.end()?;
        self.kernel.end()
    }

    /// Returns a new address and port, or a path.
    fn place(&mut self, by: By) -> (String, u16) {
        self.given += 1;
        let port = 8000 + self.given;
        match by {
            By::Ours => (self.ours.host.to_owned(), port),
            By::Kernel => (self.kernel.host.to_owned(), port),
            By::Unix | By::Pipe => (self.lab.dir().join(format!("at-{port}")).display().to_string(), port),
        }
    }

    /// Like [`Host::place`], in the format of `experiments-host`.
    fn at(&mut self, by: By) -> String {
        match self.place(by) {
            (path, _) if path.starts_with('/') => path,
            (host, port) => format!("{host}:{port}"),
        }
    }

    /// Returns the command of a program on this CPU.
    fn on(&mut self, by: By, cpu: usize, program: &Path) -> Command {
        let stage = if by == By::Ours { &mut self.ours } else { &mut self.kernel };
        stage.cpu = Some(cpu);
        stage.server(&program.display().to_string())
    }

    fn spawn(&mut self, command: &mut Command) -> Result<Proc> {
        self.given += 1;
        self.lab.spawn(&format!("one-host-{}", self.given), command)
    }

    /// Starts a program and waits until it reports that it listens.
    fn serve(&mut self, command: &mut Command) -> Result<Proc> {
        let mut proc = self.spawn(command)?;
        fs_tests::wire::ready(&mut proc)?;
        Ok(proc)
    }

    /// Returns the result of `body`. Returns an error if bytes of fastsock's run used the kernel.
    fn proven<T>(&mut self, by: By, body: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let before = self.ours.reported();
        let value = body(self)?;
        if by == By::Ours {
            self.ours.proven(before)?;
        }
        Ok(value)
    }
}

/// Returns the path of this package's program.
fn program() -> Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name("experiments-host");
    ensure!(path.exists(), "{} is not built", path.display());
    Ok(path)
}

/// Waits for a process to end. Returns the last line of its output.
fn last_line(proc: &mut Proc) -> Result<String> {
    let status = proc.wait_end(LIMIT)?;
    let log = proc.log();
    ensure!(status.success(), "{status}: {log}");
    Ok(log.lines().last().context("it printed nothing")?.to_owned())
}

/// Returns the values of each transport for each count: the median of rounds, each of which
/// measures every transport.
fn values(
    run: &mut Run,
    carriers: &[(&str, By)],
    counts: &[usize],
    over: &str,
    mut one: impl FnMut(By, usize) -> Result<f64>,
) -> Vec<Series> {
    let mut series: Vec<Series> =
        carriers.iter().map(|(name, _)| Series { name: (*name).to_owned(), values: Vec::new() }).collect();
    for &count in counts {
        let mut found = vec![Vec::new(); carriers.len()];
        for _ in 0..run.choose(1, ROUNDS) {
            for ((name, by), found) in carriers.iter().zip(&mut found) {
                found.extend(run.attempt(&format!("{name}, {count} {over}"), one(*by, count)));
            }
        }
        for (series, found) in series.iter_mut().zip(found) {
            series.values.push((!found.is_empty()).then(|| median(found)));
        }
    }
    series
}

/// Runs `pairs` pairs at once, each with `many` connections. Returns the sum of their results.
fn exchange(host: &mut Host, by: By, work: &str, pairs: usize, many: usize, ms: u32) -> Result<f64> {
    let (program, connections) = (program()?, many.to_string());
    host.proven(by, |host| {
        let mut servers = Vec::new();
        for pair in 0..pairs {
            let at = host.at(by);
            let mut command = host.on(by, 1 - pair % 2, &program);
            servers.push((host.serve(command.args(["serve", &at, &connections]))?, at));
        }
        let mut clients = Vec::new();
        let begin =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)? + BEGIN + EACH * u32::try_from(pairs + many)?;
        for (pair, (_, at)) in servers.iter().enumerate() {
            let mut command = host.on(by, pair % 2, &program);
            command.args([work, at, &connections, &MESSAGE.to_string(), &ms.to_string()]);
            command.args((work == "way").then(|| begin.as_millis().to_string()));
            clients.push(host.spawn(&mut command)?);
        }
        let mut sum = 0.0;
        for client in &mut clients {
            let line = last_line(client)?;
            sum += line.parse::<f64>().with_context(|| line.clone())?;
        }
        for (server, _) in &mut servers {
            let status = server.wait_end(LIMIT)?;
            ensure!(status.success(), "{status}: {}", server.log());
        }
        Ok(sum)
    })
}

fn pairs(run: &mut Run, host: &mut Host) {
    let (counts, ms) = (run.few(run.choose(&PAIRS[..2], &PAIRS[..])), run.choose(100, 300));
    let series = values(run, &SOCKETS, counts, "pairs", |by, count| exchange(host, by, "way", count, 1, ms));
    let mut figure = Figure {
        name: "messages-pairs".into(),
        title: "Messages of 8 bytes by pairs of processes".into(),
        paper: "Paper, figure 9 (intra-host), two cores for each pair: 306 million messages/s between 16 pairs, 40 times Linux'; its plot's data have 23.7 million (Linux 1.18) for one pair, 45.4 (2.72) for two.".into(),
        means: String::new(),
        over: "pairs".into(),
        categories: counts.iter().map(ToString::to_string).collect(),
        unit: "messages/s".into(),
        log: true,
        series,
    };
    figure.means = format!(
        "One pair has a CPU for each of its two processes; more pairs than one are more processes than CPUs and show what sharing costs, not how it scales. All pairs together carry {} the messages of loopback TCP, {} those of AF_UNIX.",
        times(figure.ratios("fastsock", "kernel TCP")),
        times(figure.ratios("fastsock", "AF_UNIX"))
    );
    run.items.push(Item::Figure(figure));
}

fn connections(run: &mut Run, host: &mut Host) {
    let few = [CONNECTIONS[0], CONNECTIONS[2]];
    let (counts, ms) = (run.few(run.choose(&few[..], &CONNECTIONS[..])).to_vec(), run.choose(100, 300));
    for (work, name, title, unit) in [
        ("way", "messages-connections", "Messages of 8 bytes by connections, taken in turn", "messages/s"),
        ("trip", "messages-connections-latency", "Round trip of 8 bytes by connections, taken in turn", "µs"),
    ] {
        let trip = work == "trip";
        let series = values(run, &SOCKETS, &counts, &format!("connections, {work}"), |by, count| {
            exchange(host, by, work, 1, count, ms).map(|value| if trip { value / 1e3 } else { value })
        });
        let mut figure = Figure {
            name: name.into(),
            title: title.into(),
            paper: "The paper prints no figure of it; one that its authors' sources keep has 23.3 million messages/s with one connection and 23.4 with 1,000 (one queue for all), Linux 1.37 and 1.54.".into(),
            means: String::new(),
            over: "connections".into(),
            categories: counts.iter().map(ToString::to_string).collect(),
            unit: unit.into(),
            log: true,
            series,
        };
        let ratios = times(figure.ratios("fastsock", "kernel TCP"));
        figure.means = if trip {
            format!("A round trip takes {ratios} of loopback TCP's time.")
        } else {
            format!(
                "Two processes, one message on each connection after the other, read in the same order: {ratios} the messages of loopback TCP. TCP_NODELAY is set."
            )
        };
        run.items.push(Item::Figure(figure));
    }
}

/// Compiles the RPC program.
fn rpc_peer() -> Result<PathBuf> {
    let source = workspace().join("benches/experiments/rpc-peer/rpc-peer.c");
    let program = target_dir().join("experiments/rpc-peer");
    let mut command = Command::new("cc");
    command.args(["-O2", "-Wall", "-I/usr/include/tirpc", "-o"]).arg(&program).arg(&source).arg("-ltirpc");
    finish(&mut command, "cc (lab/install experiments)")?;
    Ok(program)
}

/// Returns calls per second, and µs of a call: the median, the 99th percentile.
fn call(host: &mut Host, by: By, program: &Path, bytes: usize, ms: u32) -> Result<[f64; 3]> {
    host.proven(by, |host| {
        let (at, port) = host.place(by);
        let mut command = host.on(by, 1, program);
        let mut server = host.serve(command.arg("serve").args([&at, &port.to_string()]))?;
        let mut command = host.on(by, 0, program);
        command.args(["call", &at, &port.to_string(), &bytes.to_string(), &ms.to_string()]);
        let line = last_line(&mut host.spawn(&mut command)?)?;
        server.kill()?;
        let values: Vec<f64> = line.split(' ').filter_map(|value| value.parse().ok()).collect();
        let [rate, median, p99] = values[..] else { anyhow::bail!("rpc-peer printed {line}") };
        Ok([rate, median / 1e3, p99 / 1e3])
    })
}

fn calls(run: &mut Run, host: &mut Host, program: &Path) {
    let (sizes, ms) = (run.few(&CALL_BYTES).to_vec(), run.choose(100, 500));
    let mut found: Vec<(usize, By, [f64; 3])> = Vec::new();
    let series = values(run, &SOCKETS, &sizes, "bytes, RPC", |by, bytes| {
        let values = call(host, by, program, bytes, ms)?;
        found.push((bytes, by, values));
        Ok(values[1])
    });
    let mut rows = Vec::new();
    for &bytes in &sizes {
        for (name, by) in SOCKETS {
            let of = |at: usize| {
                let all = found.iter().filter(|(size, carrier, _)| (*size, *carrier) == (bytes, by));
                let all: Vec<f64> = all.map(|(.., values)| values[at]).collect();
                if all.is_empty() { String::new() } else { number(median(all)) }
            };
            rows.push(vec![format!("{name}, {}", outcome::size(bytes)), of(0), of(1), of(2)]);
        }
    }
    let mut figure = Figure {
        name: "messages-rpc".into(),
        title: "A call of an unmodified RPC library".into(),
        paper: "Paper, section 5 (RPClib's example, 1 KiB): 45 µs on Linux; its authors' sources say 21 µs on SocksDirect, 53 % less.".into(),
        means: String::new(),
        over: "message".into(),
        categories: sizes.iter().map(|&bytes| outcome::size(bytes)).collect(),
        unit: "µs, median".into(),
        log: true,
        series,
    };
    figure.means = format!(
        "The library is libtirpc (ONC RPC) as Debian has it, a call that returns its bytes: a call takes {} of loopback TCP's time, {} of AF_UNIX's.",
        times(figure.ratios("fastsock", "kernel TCP")),
        times(figure.ratios("fastsock", "AF_UNIX"))
    );
    run.items.push(Item::Figure(figure));
    run.items.push(Item::Table(Table {
        title: "Calls, one after the other".into(),
        paper: "The same run.".into(),
        means: "One client, one call at a time.".into(),
        head: ["", "calls/s", "median, µs", "p99, µs"].map(String::from).to_vec(),
        rows,
    }));
}

/// Returns packets per second at the end of a chain of `functions` functions. Neighbours run on
/// different CPUs.
fn chain(host: &mut Host, by: By, functions: usize, room: usize, ms: u32) -> Result<f64> {
    let (program, room, ms) = (program()?, room.to_string(), ms.to_string());
    if by == By::Pipe {
        let on = |at: usize, words: &str| format!("taskset -c {} {} {words}", at % 2, program.display());
        let all: Vec<String> = std::iter::once(on(0, &format!("source - {room} {ms}")))
            .chain((1..=functions).map(|at| on(at, &format!("function - - {room}"))))
            .chain([on(functions + 1, &format!("sink - {room}"))])
            .collect();
        let text = finish(Command::new("timeout").args(["60", "sh", "-c", &all.join(" | ")]), "the chain")?;
        return text.trim().parse().with_context(|| format!("the sink printed {text}"));
    }
    host.proven(by, |host| {
        let mut next = host.at(by);
        let mut command = host.on(by, (functions + 1) % 2, &program);
        let mut sink = host.serve(command.args(["sink", &next, &room]))?;
        let mut all = Vec::new();
        for at in (1..=functions).rev() {
            let from = host.at(by);
            let mut command = host.on(by, at % 2, &program);
            all.push(host.serve(command.args(["function", &from, &next, &room]))?);
            next = from;
        }
        let mut command = host.on(by, 0, &program);
        all.push(host.spawn(command.args(["source", &next, &room, &ms]))?);
        let line = last_line(&mut sink)?;
        for proc in &mut all {
            let status = proc.wait_end(LIMIT)?;
            ensure!(status.success(), "{status}: {}", proc.log());
        }
        line.parse().with_context(|| format!("the sink printed {line}"))
    })
}

fn chains(run: &mut Run, host: &mut Host) {
    let few = [CHAINS[0], CHAINS[2]];
    let (counts, ms) = (run.few(run.choose(&few[..], &CHAINS[..])).to_vec(), run.choose(100, 300));
    for (room, name, how) in CALLS {
        let series = values(run, &CARRIERS, &counts, &format!("functions, {how}"), |by, functions| {
            chain(host, by, functions, room, ms)
        });
        let mut figure = Figure {
            name: name.into(),
            title: format!("A chain of network functions: packets of 64 bytes, {how}"),
            paper: "Paper, figure 12, a core for each function: 15 times the packets of Linux' pipes, 20 times those of TCP sockets; its plot's data have 23.7 million/s with one function and 19.2 with eight, pipes 1.5 and 1.2, TCP 1.2 and 0.9.".into(),
            means: String::new(),
            over: "functions".into(),
            categories: counts.iter().map(ToString::to_string).collect(),
            unit: "packets/s".into(),
            log: true,
            series,
        };
        figure.means = format!(
            "A source, the functions and a sink are processes, neighbours on different ones of the two CPUs: what a longer chain costs here is that they share them, too. Ours carries {} the packets of loopback TCP, {} those of pipes. A ring that only spins is not shown: it has no turn to give up.",
            times(figure.ratios("fastsock", "kernel TCP")),
            times(figure.ratios("fastsock", "pipe"))
        );
        run.items.push(Item::Figure(figure));
    }
}
