//! One daemon for all programs of a host: Rust programs of three users on the device that it shares, one
//! of them in a container, and redis with its clients under preload. The daemon is killed and started
//! again while all of them have connections.

#[path = "../../crates/fs-xdp/tests/support/tcx_unsafe.rs"]
mod tcx_unsafe;

use anyhow::{Result, ensure};
use fs_tests::apps::{Program, READY_LIMIT};
use fs_tests::lab::FRONT;
use fs_tests::process::Proc;
use fs_tests::unmodified::Daemon;
use fs_tests::unmodified::daemon::fastsock;
use fs_tests::{Lab, Ns};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};
use tcx_unsafe::skipped_without_tcx;

const DEVICE: &str = "front0";
/// Limit for what takes seconds on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Connects to each of the ports and, for each line that it reads, sends 100,000 bytes by each connection
/// and by a new one, and compares what comes back.
const CLIENT: &str = r#"
import os, socket, sys, threading
host, ports = sys.argv[1], [int(port) for port in sys.argv[2:]]

def connect(port):
    stream = socket.create_connection((host, port), timeout=100)
    return stream

def exchange(stream):
    sent = os.urandom(100_000)
    writer = threading.Thread(target=stream.sendall, args=(sent,))
    writer.start()
    came = b""
    while len(came) < len(sent):
        more = stream.recv(1 << 16)
        if not more:
            break
        came += more
    writer.join()
    assert came == sent, f"{len(came)} bytes, or others"

kept = [connect(port) for port in ports]
print("connected", flush=True)
for line in sys.stdin:
    for stream in kept:
        exchange(stream)
    for port in ports:
        with connect(port) as stream:
            exchange(stream)
    print("right", line.strip(), flush=True)
"#;

/// A program on the shared device, without rights. `in_container`: in a namespace that has no device.
fn program(lab: &Lab, daemon: &Daemon, uid: u32, port: u16, in_container: bool) -> Result<Proc> {
    let mut command = lab.command(Ns::Host, "unshare");
    command.args(in_container.then_some("--net"));
    command.args(["setpriv", &format!("--reuid={uid}"), &format!("--regid={uid}"), "--clear-groups"]);
    command.args(["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]);
    // Other users cannot read the build's folder.
    let copy = lab.dir().join("echo");
    if !copy.exists() {
        std::fs::copy(Program::Echo.path()?, &copy)?;
        std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o755))?;
    }
    command.arg(copy).args(["--stack", "fastsock", "--device", DEVICE, "--frames", "4096", "--ephemeral-ports", "64"]);
    command.args(["--partial-checksums", "--listen", &format!("0.0.0.0:{port}")]);
    command.env("FASTSOCK_CONTROL", daemon.control());
    let mut proc = lab.spawn(&format!("program-{port}"), &mut command)?;
    proc.wait_for("answer", READY_LIMIT, || lab.reaches(Ns::Client, FRONT, port))?;
    Ok(proc)
}

/// The next answer of a program that is fed lines.
fn ask(proc: &mut Proc, line: &str, answer: &str) -> Result<()> {
    let count = |proc: &Proc| proc.log().lines().filter(|line| *line == answer).count();
    let before = count(proc);
    proc.feed(format!("{line}\n").as_bytes())?;
    let begun = Instant::now();
    while count(proc) == before {
        ensure!(proc.ended()?.is_none() && begun.elapsed() < PATIENCE, "no {answer:?}:\n{}", proc.log());
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Loads redis until clients of this run have sent by rings.
fn redis_uses_rings(lab: &Lab, daemon: &Daemon) -> Result<()> {
    let (begun, before) = (Instant::now(), daemon.reported("ring_sends"));
    while daemon.reported("ring_sends") == before {
        ensure!(begun.elapsed() < PATIENCE, "no client of redis sends by a ring:\n{}", daemon.sockets(lab));
        let mut load = daemon.command(lab, "redis-benchmark");
        let output = load.args(["-h", "127.0.0.1", "-t", "set,get", "-n", "5000", "-c", "4", "-q"]).output()?;
        ensure!(output.status.success(), "redis-benchmark: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

#[test]
fn all_programs_of_a_host_survive_their_daemon() -> Result<()> {
    if skipped_without_tcx("all_programs_of_a_host_survive_their_daemon") {
        return Ok(());
    }
    let Some(lab) = Lab::up(&[])? else { return Ok(()) };
    lab.check(|lab| {
        let up = ["--device", DEVICE];
        let mut daemon = Daemon::start_with(lab, Ns::Host, &up)?.eager();
        let mut programs = vec![
            program(lab, &daemon, 65_531, 7001, false)?,
            program(lab, &daemon, 65_532, 7002, false)?,
            program(lab, &daemon, 65_533, 7003, true)?,
        ];
        let mut command = daemon.command(lab, "redis-server");
        command.args(["--save", "", "--port", "6379", "--bind", "127.0.0.1"]);
        let mut redis = lab.spawn("redis", &mut command)?;
        redis.wait_for("answer", READY_LIMIT, || lab.reaches(Ns::Host, "127.0.0.1", 6379))?;
        let mut command = daemon.command(lab, "redis-cli");
        let mut kept = Proc::spawn_fed("redis-cli", &lab.dir().join("redis-cli.log"), &mut command)?;
        let mut command = lab.command(Ns::Client, "python3");
        command.args(["-c", CLIENT, FRONT, "7001", "7002", "7003"]);
        let mut client = Proc::spawn_fed("client", &lab.dir().join("client.log"), &mut command)?;

        ask(&mut client, "first", "right first")?;
        ask(&mut kept, "PING", "PONG")?;
        redis_uses_rings(lab, &daemon)?;

        daemon.proc.kill()?;
        ask(&mut client, "without", "right without")?;
        ask(&mut kept, "PING", "PONG")?;
        let said = lab.run(Ns::Host, "redis-cli", &["-h", "127.0.0.1", "PING"])?;
        ensure!(said.trim() == "PONG", "{said}");

        let mut daemon = Daemon::start_with(lab, Ns::Host, &up)?.eager();
        ask(&mut client, "again", "right again")?;
        ask(&mut kept, "PING", "PONG")?;
        redis_uses_rings(lab, &daemon)?;
        programs.push(program(lab, &daemon, 65_531, 7004, false)?);
        ask(&mut client, "last", "right last")?;

        let says = |verb: &str| -> Result<String> {
            let output = fastsock(lab, Ns::Host).arg(verb).output()?;
            ensure!(output.status.success(), "{verb}: {}", String::from_utf8_lossy(&output.stderr));
            Ok(String::from_utf8(output.stdout)?)
        };
        let listed = says("devices")?;
        let rows = listed.lines().filter(|line| line.starts_with(DEVICE)).count();
        ensure!(rows == 4, "not four programs:\n{listed}");
        for program in &mut programs {
            let status = program.terminate(READY_LIMIT)?;
            ensure!(status.success(), "{status}\n{}", program.log());
        }
        daemon.stop()?;
        let said = says("down")?;
        ensure!(said.starts_with("removed"), "{said}");
        Ok(())
    })
}
