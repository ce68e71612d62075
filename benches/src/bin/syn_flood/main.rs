//! A SYN flood and the legitimate clients that connect during it: fastsock over AF_XDP, then the
//! kernel's listener on the same wire.
//!
//! `syn_flood [--quick] [--rate N]` makes a lab for each and floods the server from random
//! addresses. It opens connections with kernel sockets during the flood and prints the results,
//! then the memory cost of a SYN in the engine. It starts the roles `flood`, `visit` and `memory`
//! in the namespaces.

mod flood;
mod memory;
mod visit;

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use fs_benches::parts::Plan;
use fs_benches::report::{self, Goal, Row};
use fs_tests::apps::StackOptions;
use fs_tests::lab::FRONT;
use fs_tests::servers::{self, HTTPD_PORT};
use fs_tests::{Lab, Ns, Stack};
use serde::{Deserialize, Serialize};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// Requested SYNs per second.
const RATE: u64 = 210_000;
const SECONDS: u64 = 10;

/// The generator's results.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Flooded {
    pub(crate) syns: u64,
    pub(crate) seconds: f64,
}

/// The legitimate clients' results.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Visited {
    pub(crate) tried: u64,
    /// Connections that were opened, and answered within a second.
    pub(crate) served: u64,
    pub(crate) median_ms: f64,
    pub(crate) worst_ms: f64,
}

/// The results of one stack under the flood.
#[derive(Clone, Debug, Serialize)]
struct Report {
    stack: &'static str,
    flooded: Flooded,
    visited: Visited,
    /// Packets received in return, nearly all of them SYN-ACKs.
    answered: u64,
    /// Packets that the server's device dropped on arrival for lack of room.
    dropped: u64,
    /// Resident memory of the server in KiB: before, maximum during, after.
    resident_kib: [u64; 3],
    /// Microseconds of CPU per SYN: the server's process, and the whole machine with the generator.
    server_us: f64,
    machine_us: f64,
    /// CPUs that other work kept busy before the flood; part of the machine's microseconds.
    others: f64,
}

/// Measures a server under a flood of SYNs, on fastsock and on the kernel.
#[derive(Debug, Parser)]
#[command(name = "syn_flood", args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    role: Option<Role>,
    /// Measures for 3 seconds.
    #[arg(long)]
    quick: bool,
    /// Parses the arguments only.
    #[arg(long)]
    dry_run: bool,
    /// SYNs per second.
    #[arg(long, value_name = "N", default_value_t = RATE)]
    rate: u64,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Sends the flood, for the bench.
    #[command(hide = true)]
    Flood { device: String, mac: String, own: String, to: String, rate: String, seconds: String },
    /// Connects as legitimate clients, for the bench.
    #[command(hide = true)]
    Visit { to: String, each: String, seconds: String },
    /// Measures the engine alone, in memory.
    Memory,
}

fn main() -> ExitCode {
    fs_benches::run(|arguments| run(arguments).map(|()| true))
}

fn run(arguments: Arguments) -> Result<()> {
    match arguments.role {
        Some(Role::Flood { device, mac, own, to, rate, seconds }) => {
            flood::run(&device, &mac, &own, &to, &rate, &seconds)
        }
        Some(Role::Visit { to, each, seconds }) => visit::run(&to, &each, &seconds),
        Some(Role::Memory) => memory::run().map(|ns| println!("{ns:.0} ns a SYN in memory (cookie and answer built)")),
        None if arguments.dry_run => Ok(()),
        None => bench(arguments.rate, if arguments.quick { 3 } else { SECONDS }),
    }
}

fn bench(rate: u64, seconds: u64) -> Result<()> {
    println!(
        "SYN flood: {rate} SYN/s from random addresses for {seconds} s; 100 legitimate connections per second at the same time"
    );
    let reports = [measure(Stack::Fastsock, rate, seconds)?, measure(Stack::Kernel, rate, seconds)?];
    for report in &reports {
        print(report);
    }
    let [ours, kernel] = &reports;
    println!("  CPU of the machine a SYN, ours / kernel: {:.2}", ours.machine_us / kernel.machine_us);
    let ns = memory::run()?;
    println!("  the engine alone, in memory: {ns:.0} ns a SYN (parsed, cookie made, answer built)");
    let folder = fs_tests::apps::target_dir().join("bench");
    std::fs::create_dir_all(&folder)?;
    let json = serde_json::json!({ "reports": reports, "memory_ns_per_syn": ns, "rate": rate, "seconds": seconds });
    std::fs::write(folder.join("syn_flood_reports.json"), serde_json::to_vec_pretty(&json)?)?;
    let row = |what: &str, unit, of: &dyn Fn(&Report) -> f64, goal| {
        Row::new(&format!("{what} under {rate} SYN/s"), unit, &[of(ours)], "kernel", &[of(kernel)], goal)
    };
    let served = |report: &Report| report.visited.served as f64 * 100.0 / report.visited.tried.max(1) as f64;
    let rows = [
        row("connections served within 1 s", "%", &served, Goal::None),
        row("CPU of the machine a SYN", "µs", &|report| report.machine_us, Goal::None),
    ];
    let plan = Plan { rounds: 1, seconds: u32::try_from(seconds)? };
    report::save(&folder.join("syn_flood.json"), &rows, &plan)?;
    let share = ours.visited.served as f64 / ours.visited.tried.max(1) as f64;
    println!("  goal, ≥ 99.9 % served within a second: {}", if share >= 0.999 { "reached" } else { "MISSED" });
    Ok(())
}

fn print(report: &Report) {
    let Report { stack, flooded, visited, answered, dropped, resident_kib, server_us, machine_us, others } = report;
    let [before, during, after] = resident_kib;
    println!(
        "  {stack}: {:.0} SYN/s sent, {:.0} % answered, {dropped} dropped on arrival; legitimate: {} of {} served within 1 s ({:.2} %), median {:.2} ms, worst {:.1} ms",
        flooded.syns as f64 / flooded.seconds,
        *answered as f64 * 100.0 / flooded.syns as f64,
        visited.served,
        visited.tried,
        visited.served as f64 * 100.0 / visited.tried.max(1) as f64,
        visited.median_ms,
        visited.worst_ms,
    );
    println!(
        "  {:width$}  resident {before} / {during} / {after} KiB before, during, after; CPU a SYN: {server_us:.2} µs of the server's process, {machine_us:.2} µs of the machine (with other work, {others:.2} CPUs beforehand)",
        "",
        width = stack.len()
    );
}

fn measure(stack: Stack, rate: u64, seconds: u64) -> Result<Report> {
    let lab = Lab::require(&["--queues", "1"])?;
    let report = under_flood(&lab, stack, rate, seconds);
    if report.is_err() {
        lab.print_logs();
    }
    report
}

fn under_flood(lab: &Lab, stack: Stack, rate: u64, seconds: u64) -> Result<Report> {
    // Answers to random addresses leave through the client, which drops them.
    lab.run(Ns::Host, "ip", &["route", "add", "default", "via", fs_tests::lab::CLIENT])?;
    lab.run(Ns::Host, "sh", &["-c", "for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 >$f; done"])?;
    let options = StackOptions { cores: vec![0], ..StackOptions::new(stack) };
    let mut server = servers::httpd(lab, Ns::Host, FRONT, 64, &options)?;
    let mac = lab.run(Ns::Host, "cat", &["/sys/class/net/front0/address"])?;
    let own = std::env::current_exe()?;
    let role = |words: &[&str]| -> Command {
        // Runs in a session of its own, as on another machine. The scheduler gives each session one
        // share of all CPUs (sched(7), autogrouping), mostly on the CPU where its threads are
        // busiest, which would be this one.
        let mut command = lab.command(Ns::Client, "setsid");
        command.args(["--wait", "taskset", "-c", "1"]).arg(&own).args(words);
        command
    };
    let flood = |name: &str, seconds: &str| {
        let words = ["flood", "client0", mac.trim(), fs_tests::lab::CLIENT, FRONT, &rate.to_string(), seconds];
        lab.spawn(name, &mut role(&words))
    };
    // One second of flood in advance, so that frames and tables have been touched before memory is
    // first measured.
    let limit = Duration::from_secs(20);
    ensure!(flood("warm-up", "1")?.wait_end(limit)?.success(), "the generator failed");
    let before = server.proc.resident()?;
    let (quiet, begun) = (machine_busy()?, Instant::now());
    std::thread::sleep(Duration::from_millis(500));
    let others = (machine_busy()? - quiet) / begun.elapsed().as_secs_f64();
    let count = |ns, device: &str, what: &str| -> Result<u64> {
        let text = lab.run(ns, "cat", &[&format!("/sys/class/net/{device}/statistics/{what}")])?;
        text.trim().parse().context("a count of the device")
    };
    let received = || count(Ns::Client, "client0", "rx_packets");
    let lost = || count(Ns::Host, "front0", "rx_dropped");
    let (answered, dropped, cpu, machine) = (received()?, lost()?, server.proc.cpu_seconds()?, machine_busy()?);
    let time = seconds.to_string();
    let mut flood = flood("flood", &time)?;
    let mut visit = lab.spawn("visit", &mut role(&["visit", &format!("{FRONT}:{HTTPD_PORT}"), "100", &time]))?;
    let (begun, mut during) = (Instant::now(), before);
    while begun.elapsed() < Duration::from_secs(seconds) {
        std::thread::sleep(Duration::from_millis(250));
        during = during.max(server.proc.resident()?);
    }
    ensure!(flood.wait_end(limit)?.success(), "the generator failed:\n{}", flood.log());
    let (cpu, machine) = (server.proc.cpu_seconds()? - cpu, machine_busy()? - machine);
    let (answered, dropped) = (received()? - answered, lost()? - dropped);
    ensure!(visit.wait_end(limit)?.success(), "the clients failed:\n{}", visit.log());
    let flooded: Flooded = last_line(&flood.log())?;
    let visited: Visited = last_line(&visit.log())?;
    let after = server.proc.resident()?;
    server.stop()?;
    let each = |seconds: f64| seconds * 1e6 / flooded.syns.max(1) as f64;
    Ok(Report {
        stack: stack.name(),
        answered,
        dropped,
        resident_kib: [before, during, after].map(|bytes| bytes / 1024),
        server_us: each(cpu),
        machine_us: each(machine),
        others,
        flooded,
        visited,
    })
}

fn last_line<T: for<'a> Deserialize<'a>>(log: &str) -> Result<T> {
    let line = log.lines().rev().find(|line| line.starts_with('{')).with_context(|| format!("no result in:\n{log}"))?;
    Ok(serde_json::from_str(line)?)
}

/// Returns the seconds for which CPUs have not been idle, summed over all.
fn machine_busy() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let line = text.lines().next().context("/proc/stat")?;
    let fields: Vec<u64> = line.split_whitespace().skip(1).filter_map(|n| n.parse().ok()).collect();
    ensure!(fields.len() >= 8, "/proc/stat: {line}");
    // User, nice, system, (idle, wait for I/O), interrupts, soft interrupts, stolen: in hundredths of a second.
    let busy: u64 = fields[..3].iter().chain(&fields[5..8]).sum();
    Ok(busy as f64 / 100.0)
}
