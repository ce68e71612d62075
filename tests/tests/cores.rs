//! One connection, one core: packets are handled on their connection's core, and other cores help a
//! core without its own listener.

use anyhow::{Context, Result, ensure};
use fs_tests::apps::{Program, READY_LIMIT, StackOptions};
use fs_tests::body;
use fs_tests::clients::{self, WrkOptions};
use fs_tests::lab::{BACKEND, BACKEND6, FRONT};
use fs_tests::loadgen::{Load, Mode as LoadMode};
use fs_tests::proxy::{Metric, Mode, Proxy, ProxyOptions};
use fs_tests::{Lab, Nginx, Ns, Stack};
use serde_json::Value;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PORT: u16 = 7100;

/// Lock waits in 2 s that messages between threads may cause: a core takes an inbox's lock when a
/// neighbour's address changes. A lock in the path of each packet would cause hundreds.
const CONTROL_WAITS: usize = 4;

/// Returns a counter of the proxy's stack for each core.
fn counter(all: &[Metric], name: &str) -> Result<Vec<f64>> {
    let full = format!("fs_proxy_stack_{name}_total");
    let values: Vec<f64> = all.iter().filter(|metric| metric.name == full).map(|metric| metric.value).collect();
    ensure!(!values.is_empty(), "no metric {full}");
    Ok(values)
}

/// Returns how often threads of the process waited for a lock within `seconds`: contention causes
/// futex waits.
fn lock_waits(lab: &Lab, proxy: &Proxy, seconds: u32) -> Result<usize> {
    let trace = lab.dir().join("futex");
    let pid = proxy.proc.pid().to_string();
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))?;
    let threads: Vec<String> = tasks.flatten().map(|task| task.file_name().to_string_lossy().into_owned()).collect();
    let seconds = seconds.to_string();
    let strace = ["strace", "-f", "-qq", "-e", "trace=futex", "-o"];
    let output = lab
        .command(Ns::Host, "timeout")
        .args(["-s", "INT", &seconds])
        .args(strace)
        .arg(&trace)
        .args(["-p", &pid])
        .output()
        .context("cannot run strace")?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let text = std::fs::read_to_string(&trace).with_context(|| format!("strace: {said}"))?;
    // A thread that joins another one waits for the value of that thread's id.
    let joins = |line: &str| line.split(", ").nth(2).is_some_and(|value| threads.iter().any(|id| id == value));
    let name = |line: &str| {
        let thread = line.split(' ').next().unwrap_or_default();
        std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/comm")).unwrap_or_default().trim().to_owned()
    };
    // A thread that holds reserved ports waits for the runtime's end.
    let keeps_ports = |line: &str| name(line) == "fs-ports";
    let waits = text.lines().filter(|line| line.contains("FUTEX_WAIT") && !joins(line) && !keeps_ports(line));
    let waits: Vec<&str> = waits.collect();
    for wait in waits.iter().take(5) {
        println!("{} waits: {wait}", name(wait));
    }
    Ok(waits.len())
}

#[test]
#[ignore = "counts contended locks: make proof"]
fn each_packet_is_handled_on_its_connections_core() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "2"])? else { return Ok(()) };
    lab.check(|lab| {
        if Stack::under_test()? == Stack::Kernel {
            println!("skipped: each_packet_is_handled_on_its_connections_core: the kernel has no such counters");
            return Ok(());
        }
        let small = body::body(body::SMALL)?;
        let _nginx =
            Nginx::start(lab, Ns::Backend, "nginx", &[format!("{BACKEND}:80"), format!("[{BACKEND6}]:80")], &[&small])?;
        // Incoming connections from wrk, outgoing ones to nginx: two per request, on two devices.
        let mut proxy = Proxy::start(lab, &ProxyOptions::new(Stack::Fastsock))?;
        for mode in [Mode::Tcp, Mode::Http] {
            let url = format!("{}/64", proxy.url(mode));
            clients::answered(1, || clients::wrk(lab, &url, &WrkOptions::new(3, true)))?;
            // If a lock's holder is preempted, others wait for it, which is rare: in one of several
            // runs none waits.
            let mut waits = usize::MAX;
            for _ in 0..5 {
                let now = std::thread::scope(|scope| {
                    let load = scope.spawn(|| clients::wrk(lab, &url, &WrkOptions::new(4, false)));
                    std::thread::sleep(Duration::from_millis(1000));
                    let waits = lock_waits(lab, &proxy, 2)?;
                    load.join().map_err(|_| anyhow::anyhow!("wrk panicked"))??.clean()?;
                    anyhow::Ok(waits)
                })?;
                println!("{mode:?}: {now} contended locks in 2 s under load");
                waits = waits.min(now);
                if waits <= CONTROL_WAITS {
                    break;
                }
            }
            ensure!(waits <= CONTROL_WAITS, "{waits} contended locks under load");
        }
        std::thread::sleep(Duration::from_millis(300));
        let all = proxy.metrics(lab)?;
        for name in [
            "packets_local",
            "packets_forwarded",
            "packets_asked",
            "packets_from_cores",
            "handovers",
            "listen_global",
            "accepted",
            "connected",
            "resets_sent",
            "retransmits",
        ] {
            println!("{name}: {:?}", counter(&all, name)?);
        }
        let sum = |name: &str| -> Result<f64> { Ok(counter(&all, name)?.iter().sum()) };
        let cores = counter(&all, "accepted")?;
        ensure!(cores.len() == 2, "metrics of {} cores instead of 2", cores.len());
        ensure!(cores.iter().all(|accepted| *accepted > 100.0), "a core accepted next to nothing: {cores:?}");
        let connected = counter(&all, "connected")?;
        ensure!(
            connected.iter().all(|connected| *connected > 100.0),
            "a core connected next to nothing: {connected:?}"
        );
        // Messages between cores arrive. Cores publish their counters one after the other, so the
        // numbers are not exact.
        let sent = sum("packets_forwarded")? + sum("packets_asked")? + sum("listen_global")?;
        let came = sum("packets_from_cores")?;
        ensure!((sent - came).abs() <= 0.001 * sent + 10.0, "{sent} packets went from core to core and {came} came");
        // veth has no RSS table to read, so active connections' replies are spread by hash: about
        // half are forwarded.
        ensure!(sum("packets_local")? > sum("packets_forwarded")?, "most packets are handled by the wrong core");
        proxy.stop()
    })
}

#[test]
fn core_that_stops_accepting_loses_no_client() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "2"])? else { return Ok(()) };
    lab.check(|lab| {
        if Stack::under_test()? == Stack::Kernel {
            println!("skipped: core_that_stops_accepting_loses_no_client: about our own listen tables");
            return Ok(());
        }
        let mut command = Program::Workers.command(lab, Ns::Host)?;
        command.args(["--device", "front0", "--listen", &format!("{FRONT}:{PORT}"), "--leaving", "0"]);
        let mut workers = lab.spawn("workers", &mut command)?;
        workers.wait_for("answer", READY_LIMIT, || lab.reaches(Ns::Client, FRONT, PORT))?;
        let mut load = Load::new(LoadMode::Short, FRONT, PORT, StackOptions::new(Stack::Kernel));
        (load.connections, load.seconds) = (256, 2);
        load.more = ["--timeout", "60"].map(str::to_owned).to_vec();
        let log = workers.log_path().to_owned();
        let says = |what: &str| std::fs::read_to_string(&log).is_ok_and(|text| text.contains(what));
        // The load generator takes each response to the end: a reset or a silence is its error. Its
        // kernel uses a port again while the server's core still has it in TIME-WAIT.
        let loading = AtomicBool::new(true);
        std::thread::scope(|scope| {
            let loads = scope.spawn(|| -> Result<()> {
                while loading.load(Ordering::SeqCst) {
                    load.run(lab, Ns::Client)?;
                }
                Ok(())
            });
            let both = || says("core 0: accepted many") && says("core 1: accepted many");
            let left = workers
                .wait_for("connections at both cores", READY_LIMIT, both)
                .and_then(|()| workers.signal("USR1"))
                .and_then(|()| {
                    workers.wait_for("end of a listener", READY_LIMIT, || says("core 0: closed its listener"))
                });
            loading.store(false, Ordering::SeqCst);
            loads.join().map_err(|_| anyhow::anyhow!("the load generators' thread panicked"))??;
            left
        })?;
        // Core 0 has no listener now. Half of these SYNs reach it.
        let mut opened = 0;
        while opened < 400 {
            let load = load.run(lab, Ns::Client)?;
            println!("{:.0} connections/s after core 0 stopped accepting", load.connections_per_second);
            opened += load.connections;
        }
        let status = workers.terminate(READY_LIMIT)?;
        ensure!(status.success(), "workers ended with {status}");
        let log = workers.log();
        let line = log.lines().rev().find(|line| line.starts_with('[')).context("workers printed no counters")?;
        let cores: Vec<Value> = serde_json::from_str(line)?;
        let number = |core: usize, name: &str| cores[core][name].as_u64().with_context(|| format!("no {name}"));
        println!(
            "core 0: accepted {}, listen_global {}, RSTs {}; core 1: accepted {}, RSTs {}",
            number(0, "accepted")?,
            number(0, "listen_global")?,
            number(0, "resets_sent")?,
            number(1, "accepted")?,
            number(1, "resets_sent")?
        );
        ensure!(number(0, "listen_global")? > 100, "core 0 answered no SYN through the global listen table: {line}");
        for core in 0..2 {
            ensure!(number(core, "accepted")? > 100, "core {core} accepted next to nothing: {line}");
        }
        Ok(())
    })
}
