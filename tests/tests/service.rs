//! The match service ends, is killed or is exchanged while programs use their connections: no
//! request fails, connections with a ring keep it, and new ones get a ring from the next service.

use anyhow::{Context, Result, ensure};
use fs_tests::process::Proc;
use fs_tests::unmodified::load::Load;
use fs_tests::unmodified::programs::group;
use fs_tests::unmodified::stage::finish;
use fs_tests::unmodified::{Daemon, Placement, Stage};
use fs_tests::{Lab, Ns};
use std::process::Command;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(150);

fn until(what: &str, mut so: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !so()? {
        ensure!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// A redis client with one connection. It compares every response, and prints how many it got.
const COUNTS: &str = "import socket, sys, time
s = socket.create_connection(('127.0.0.1', int(sys.argv[1])), 30)
count = 0
while True:
    count += 1
    s.sendall(b'ECHO %08d\\r\\n' % count)
    answer = b''
    while len(answer) < 14:
        piece = s.recv(100)
        assert piece, f'closed after {count}'
        answer += piece
    assert answer == b'$8\\r\\n%08d\\r\\n' % count, (count, answer)
    if count % 100 == 0: print(count, flush=True)
";

/// Waits until the client has got 300 more responses.
fn goes_on(client: &mut Proc) -> Result<()> {
    let log = client.log_path().to_owned();
    let count = || std::fs::read_to_string(&log).unwrap_or_default().lines().count();
    let before = count();
    client.wait_for("responses", PATIENCE, || count() >= before + 3)
}

/// redis with a busy client, an idle one, and nginx under a load of old and new connections, while
/// the service is killed, stopped and started, twice each.
#[test]
fn no_request_fails_while_the_service_is_exchanged() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut stage = Stage::set(lab, Placement::OneHost)?.yielding();
        let dir = stage.folder("redis")?;
        let mut redis = stage.server("redis-server");
        redis.args(["--save", "", "--appendonly", "no", "--port", "7401", "--bind", stage.host, "--dir"]).arg(&dir);
        let mut redis = stage.serve("redis", &mut redis, 7401)?;
        let web = (group("nginx")?.server)(&stage, 7402)?;
        let client = |name: &str, program: &str, arguments: &[&str]| {
            lab.spawn(name, stage.endless_client(program).args(arguments))
        };
        let mut busy = client("busy", "/usr/bin/python3", &["-c", COUNTS, "7401"])?;
        goes_on(&mut busy)?;
        let mut idle = client("idle", "redis-cli", &["-h", stage.host, "-p", "7401", "subscribe", "news"])?;
        let log = idle.log_path().to_owned();
        let heard = |what: &str| std::fs::read_to_string(&log).is_ok_and(|text| text.contains(what));
        idle.wait_for("subscription", PATIENCE, || heard("subscribe"))?;
        let mut load = Load::start(&stage, 7402, "/10k")?;
        // The probes and both clients are promoted by the first service.
        for (round, signal) in ["KILL", "TERM", "KILL", "TERM"].into_iter().enumerate() {
            let daemon = stage.daemon().context("a daemon")?;
            until("connections with a ring", || Ok(!daemon.with_ring(lab, 7401)?.is_empty() || round > 0))?;
            until("new connections with a ring", || Ok(!daemon.with_ring(lab, 7402)?.is_empty()))?;
            daemon.proc.signal(signal)?;
            daemon.proc.wait_end(PATIENCE).context(signal)?;
            goes_on(&mut busy).with_context(|| format!("{round}: without a service"))?;
            load.goes_on(50)?;
            let next = Daemon::start(lab, daemon.ns())?.yielding();
            *stage.daemon().context("a daemon")? = next;
            goes_on(&mut busy).with_context(|| format!("{round}: with the next service"))?;
            load.goes_on(50)?;
            let said =
                stage.run("redis-cli", &["-h", stage.host, "-p", "7401", "publish", "news", &format!("n{round}")])?;
            ensure!(said.trim() == "1", "the subscriber is lost: {said}");
            idle.wait_for("news", PATIENCE, || heard(&format!("n{round}")))?;
        }
        let daemon = stage.daemon().context("a daemon")?;
        until("new connections with a ring", || Ok(!daemon.with_ring(lab, 7402)?.is_empty()))?;
        let met = load.end()?;
        println!("{met:?}");
        ensure!(met.errors.is_empty(), "the load met errors: {met:?}");
        // nginx closes none of them, so that no exchange of the service may end one.
        ensure!(met.stale == 0, "kept connections ended: {met:?}");
        ensure!(stage.reported().ring_sends > 0, "the load sent nothing by a ring");
        for (name, proc) in [("busy", &mut busy), ("idle", &mut idle), ("redis", &mut redis)] {
            ensure!(proc.ended()?.is_none(), "{name} ended:\n{}", proc.log());
        }
        web.end()?;
        stage.end()
    })
}

/// A client and a server under the library when no service has ever run there. One that starts
/// later is found by both, without a restart.
#[test]
fn programs_find_a_service_that_starts_later() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut first = Daemon::start(lab, Ns::Host)?.yielding();
        first.stop()?;
        let python =
            |name: &str, arguments: &[&str]| lab.spawn(name, first.command(lab, "redis-server").args(arguments));
        let mut redis =
            python("redis", &["--save", "", "--appendonly", "no", "--port", "7403", "--bind", "127.0.0.1"])?;
        redis.wait_for("answer", PATIENCE, || lab.reaches(Ns::Host, "127.0.0.1", 7403))?;
        let mut busy = lab.spawn("busy", first.command(lab, "/usr/bin/python3").args(["-c", COUNTS, "7403"]))?;
        goes_on(&mut busy)?;
        let mut second = Daemon::start(lab, Ns::Host)?;
        until("a ring", || {
            goes_on(&mut busy)?;
            Ok(second.with_ring(lab, 7403)?.iter().any(|pair| pair.ring_bytes > 0))
        })?;
        redis.kill()?;
        second.stop()
    })
}

/// A program without sockets behaves the same with the library, and prints nothing more.
#[test]
fn program_without_sockets_is_not_disturbed() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Backend)?;
        for arguments in
            [&["sh", "-c", "ls -l /usr/bin | sort -r | head -n 50 | sha256sum"][..], &["cat", "/proc/version"]]
        {
            let run = |mut command: Command| finish(command.args(&arguments[1..]), arguments[0]);
            let plain = run(lab.command(Ns::Backend, arguments[0]))?;
            let ours = run(daemon.command(lab, arguments[0]))?;
            ensure!(plain == ours, "{arguments:?}: {plain:?}, with the library {ours:?}");
        }
        daemon.stop()
    })
}
