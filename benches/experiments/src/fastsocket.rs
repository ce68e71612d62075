//! Fastsocket's figures: local packets, lock contention, balance over workers.

use crate::Run;
use crate::outcome::{Figure, Goal, Item, Series, Table, number};
use anyhow::{Context, Result, ensure};
use fs_core::{Duration, Instant, TcpOptions};
use fs_sim::host::{HostConfig, ipv4};
use fs_sim::measure::jain;
use fs_sim::plan::{Kind, Plan, Step};
use fs_sim::rss::Rss;
use fs_sim::{World, WorldConfig};
use fs_tests::lab::{BACKEND, BACKEND6, Lab, Ns};
use fs_tests::proxy::{Mode, Proxy, ProxyOptions};
use fs_tests::unmodified::{Placement, Stage};
use fs_tests::{Nginx, Stack, body, clients};
use std::collections::BTreeMap;
use std::process::Command;

pub(crate) const ABOUT: &str = "\
Where a packet meets its connection is shown by simulation (`fs-sim`): a host whose cores connect to others, as a proxy's do, with a device that hashes flows (RSS). Locks are counted under load on this
machine: threads of `fs-proxy` that wait for a futex, and what the kernel's tracepoint `lock:contention_begin` sees while the same proxy runs on its sockets, where `perf` can ask it. Balance is that of nginx's workers by
its access log.";

pub(crate) fn run(run: &mut Run) -> Result<()> {
    locality(run)?;
    locks(run);
    balance(run);
    Ok(())
}

/// Returns the percentage of a host's packets that arrived on their connection's core.
fn local(cores: u16, rss: Rss, active: bool, connections: u32) -> Result<f64> {
    const PORT: u16 = 80;
    // The host under test is 0 where it connects, 1 where it listens. The other host has one core.
    let under_test = HostConfig { cores, rss, frames: 2048, ..HostConfig::plain() };
    let other = HostConfig { frames: 8192, ..HostConfig::plain() };
    let hosts = if active { vec![under_test, other] } else { vec![other, under_test] };
    let plans = (0..connections).map(|id| Plan {
        id,
        kind: Kind::ClientCloses,
        client: 0,
        server: 1,
        to: (ipv4(1), PORT).into(),
        from: None,
        options: TcpOptions::default(),
        client_script: vec![Step::Exchange(200, 600), Step::Close],
        server_script: vec![Step::Exchange(600, 200), Step::ExpectEof, Step::Close],
        seed: u64::from(id),
    });
    let config = WorldConfig {
        listen: vec![(PORT, TcpOptions::default())],
        plans: plans.collect(),
        concurrency: 64,
        time_max: Duration::from_secs(3600),
        ..WorldConfig::new(1, hosts)
    };
    let failed = |error| anyhow::anyhow!("{cores} cores: {error}");
    let mut world = World::new(config).map_err(failed)?;
    world.run_until(Instant::ZERO + Duration::from_secs(3600)).map_err(failed)?;
    let stats = world.host_stats(usize::from(!active));
    let opened = stats.connected + stats.accepted;
    ensure!(opened == u64::from(connections), "{opened} of {connections} connections");
    // A packet that another core handed over counts as local too, on its connection's core.
    let away = (stats.packets_forwarded + stats.packets_asked) as f64;
    Ok(100.0 * (1.0 - away / stats.rx_packets as f64))
}

fn locality(run: &mut Run) -> Result<()> {
    let cores = [16u16, 1, 2, 4, 8, 24];
    let mut cores = run.few(&cores).to_vec();
    cores.sort_unstable();
    let connections = run.choose(400, 4000);
    let mut series = Vec::new();
    for (name, active) in [("connections it makes", true), ("connections it accepts", false)] {
        let values = cores.iter().map(|&cores| Ok(Some(local(cores, Rss::Flow, active, connections)?)));
        series.push(Series { name: name.into(), values: values.collect::<Result<_>>()? });
    }
    let figure = Figure {
        name: "fastsocket-local".into(),
        title: "Packets that arrive on their connection's core, RSS alone".into(),
        paper: "Paper, figure 5: with RSS alone about one in 16 packets of active connections is local on 16 cores; with RFD all are \
                processed locally, delivered by software or by the card's filters."
            .into(),
        means: String::new(),
        over: "cores".into(),
        categories: cores.iter().map(ToString::to_string).collect(),
        unit: "% of packets".into(),
        log: false,
        series,
    };
    let last = figure.value("connections it makes", "16").unwrap_or(f64::NAN);
    let passive = figure.value("connections it accepts", "16").unwrap_or(f64::NAN);
    let figure = Figure {
        means: format!(
            "On 16 cores {} % of the packets of connections that the host makes come in on their own core, {} % of those it accepts; RFD, which is always on in ours, hands the others to the core \
             whose number is in the port by a message, so all are processed locally and none needs a lock.",
            number(last),
            number(passive)
        ),
        ..figure
    };
    run.items.push(Item::Figure(figure));
    run.items.push(Item::Goal(Goal {
        goal: "all packets of accepted connections are local with RSS alone, 16 cores".into(),
        measured: format!("{} %", number(passive)),
        met: passive > 99.5,
    }));
    Ok(())
}

fn locks(run: &mut Run) {
    let mut rows = Vec::new();
    for (name, stack) in [("fastsock", Stack::Fastsock), ("kernel", Stack::Kernel)] {
        let measured = locks_of(stack);
        if let Some((requests, futex, kernel)) = run.attempt(&format!("locks, fs-proxy on {name}"), measured) {
            let kernel = match kernel {
                Ok(count) => number(1000.0 * count as f64 / requests),
                Err(why) => {
                    if !run.missing.iter().any(|line| line.starts_with("lock:contention_begin")) {
                        run.missing.push(format!("lock:contention_begin: {why}."));
                    }
                    "–".into()
                }
            };
            rows.push(vec![name.to_owned(), number(requests), futex.to_string(), kernel]);
        }
    }
    run.items.push(Item::Table(Table {
        title: "Locks that were waited for under load: fs-proxy with two cores, 64 connections".into(),
        paper: "Paper, table 1 (HAProxy, 24 cores): Linux waits for the locks of the file system's caches, of sockets, epoll, timers and the table of connections; with all of Fastsocket none of them is contended any more.".into(),
        means: "Futexes are the program's own locks. The tracepoint counts those of the kernel on the whole machine, for the device's work under ours as well.".into(),
        head: ["sockets", "requests in 2 s", "futex waits", "kernel's contended locks for 1,000 requests"].map(String::from).to_vec(),
        rows,
    }));
}

/// Returns the requests in two seconds, the futex waits of the proxy's threads in that time, and
/// the kernel's contended locks if available.
fn locks_of(stack: Stack) -> Result<(f64, usize, Result<u64, String>)> {
    let lab = Lab::require(&["--queues", "2"])?;
    let mut result = None;
    lab.check(|lab| {
        let small = body::body(body::SMALL)?;
        let listen = [format!("{BACKEND}:80"), format!("[{BACKEND6}]:80")];
        let _nginx = Nginx::start(lab, Ns::Backend, "nginx", &listen, &[&small])?;
        let mut proxy = Proxy::start(lab, &ProxyOptions::new(stack))?;
        let url = format!("{}/64", proxy.url(Mode::Http));
        let options = clients::WrkOptions { connections: 64, ..clients::WrkOptions::new(3, false) };
        clients::wrk(lab, &url, &clients::WrkOptions { seconds: 1, ..options.clone() })?.clean()?;
        let measured = std::thread::scope(|scope| -> Result<_> {
            let load = scope.spawn(|| clients::wrk(lab, &url, &options));
            std::thread::sleep(std::time::Duration::from_millis(500));
            let contended = scope.spawn(contended);
            let futex = futex_waits(lab, proxy.proc.pid(), 2)?;
            let contended = contended.join().map_err(|_| anyhow::anyhow!("perf's thread panicked"))?;
            let wrk = load.join().map_err(|_| anyhow::anyhow!("wrk's thread panicked"))??;
            Ok((wrk.rate() * 2.0, futex, contended))
        })?;
        result = Some(measured);
        proxy.stop()
    })?;
    result.context("nothing was measured")
}

/// Returns the kernel's contended locks in two seconds.
fn contended() -> Result<u64, String> {
    let output = Command::new("perf")
        .args(["stat", "-a", "-x", ",", "-e", "lock:contention_begin", "sleep", "2"])
        .output()
        .map_err(|error| format!("perf: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let count = said
        .lines()
        .find(|line| line.contains("contention_begin"))
        .and_then(|line| line.split(',').next()?.parse().ok());
    count.ok_or_else(|| said.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("no answer").to_owned())
}

/// Returns the waits of the proxy's threads for a lock, without waits for a thread's end, as
/// tests/tests/cores.rs does.
fn futex_waits(lab: &Lab, pid: u32, seconds: u32) -> Result<usize> {
    let trace = lab.dir().join("futex");
    let threads: Vec<String> = std::fs::read_dir(format!("/proc/{pid}/task"))?
        .flatten()
        .map(|task| task.file_name().to_string_lossy().into_owned())
        .collect();
    let output = lab
        .command(Ns::Host, "timeout")
        .args(["-s", "INT", &seconds.to_string(), "strace", "-f", "-qq", "-e", "trace=futex", "-o"])
        .arg(&trace)
        .args(["-p", &pid.to_string()])
        .output()
        .context("strace")?;
    let text = std::fs::read_to_string(&trace)
        .with_context(|| format!("strace: {}", String::from_utf8_lossy(&output.stderr)))?;
    let joins = |line: &str| line.split(", ").nth(2).is_some_and(|value| threads.iter().any(|id| id == value));
    let keeps_ports = |line: &str| {
        let thread = line.split(' ').next().unwrap_or_default();
        std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/comm")).is_ok_and(|name| name.trim() == "fs-ports")
    };
    Ok(text.lines().filter(|line| line.contains("FUTEX_WAIT") && !joins(line) && !keeps_ports(line)).count())
}

fn balance(run: &mut Run) {
    let mut rows = Vec::new();
    for (name, placement) in [("fastsock", Placement::OneHost), ("kernel", Placement::Kernel)] {
        for (how, listen) in run.few(&[("reuseport", "reuseport"), ("one listener", "")]).to_vec() {
            let what = format!("nginx's workers, {how}, {name}");
            if let Some(shares) = run.attempt(&what, workers(placement, listen)) {
                let parts: Vec<String> = shares.iter().map(|share| number(*share)).collect();
                rows.push(vec![
                    format!("nginx, 4 workers, {how}"),
                    name.to_owned(),
                    number(jain(&shares)),
                    parts.join(", "),
                ]);
            }
        }
    }
    run.items.push(Item::Table(Table {
        title: "Balance over workers: connections of ab, each with one request".into(),
        paper: "Paper, section 4: with Fastsocket's local listen tables cores are loaded alike, where Linux' accept lets some starve and others run full.".into(),
        means: "Jain's index of the requests that each worker has logged: 1 when all have as many, 0.25 when one has all. HAProxy's threads do not say how many each served.".into(),
        head: ["server", "sockets", "Jain's index", "requests by worker"].map(String::from).to_vec(),
        rows,
    }));
}

/// Returns the requests that each of nginx's four workers has answered.
fn workers(placement: Placement, listen: &str) -> Result<Vec<f64>> {
    const PORT: u16 = 7700;
    let lab = Lab::require(&["--queues", "1"])?;
    let mut shares = None;
    lab.check(|lab| {
        let stage = Stage::set(lab, placement)?;
        let dir = stage.folder("balance")?;
        let (d, files, host) = (dir.display(), stage.files().display(), stage.host);
        let config = dir.join("nginx.conf");
        std::fs::write(
            &config,
            format!(
                "user root;\nworker_processes 4;\ndaemon off;\npid {d}/pid;\nerror_log {d}/error.log;\nevents {{ worker_connections 1024; }}\n\
                 http {{\n  log_format worker $pid;\n  access_log {d}/access.log worker;\n  client_body_temp_path {d}/body;\n  proxy_temp_path {d}/t1;\n\
                 fastcgi_temp_path {d}/t2;\n  uwsgi_temp_path {d}/t3;\n  scgi_temp_path {d}/t4;\n\
                 server {{ listen {host}:{PORT} {listen}; root {files}; }}\n}}\n"
            ),
        )?;
        let mut command = stage.server("nginx");
        command.arg("-e").arg(dir.join("error.log")).arg("-c").arg(&config);
        let server = stage.serve("balance", &mut command, PORT)?;
        stage.run("ab", &["-q", "-n", "8000", "-c", "64", &format!("http://{host}:{PORT}/64")])?;
        fs_tests::unmodified::programs::Server::from(server).end()?;
        let mut by_worker: BTreeMap<String, f64> = BTreeMap::new();
        for line in std::fs::read_to_string(dir.join("access.log"))?.lines() {
            *by_worker.entry(line.to_owned()).or_default() += 1.0;
        }
        let mut found: Vec<f64> = by_worker.into_values().collect();
        ensure!(!found.is_empty() && found.len() <= 4, "{} workers in the log", found.len());
        found.resize(4, 0.0);
        found.sort_by(|a, b| b.total_cmp(a));
        shares = Some(found);
        stage.end()
    })?;
    shares.context("nothing was logged")
}
