//! An operator's view: `fastsock run` starts a daemon itself and always starts the program; wrong
//! arguments, low limits, and what `fuser -k` ends.

use anyhow::{Context, Result, ensure};
use fs_tests::process::Proc;
use fs_tests::unmodified::Daemon;
use fs_tests::unmodified::daemon::program;
use fs_tests::unmodified::stage::finish;
use fs_tests::{Lab, Ns};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(150);

fn fastsock(lab: &Lab, control: &Path, args: &[&str]) -> Command {
    let mut command = lab.command(Ns::Host, program());
    command.env("FASTSOCK_CONTROL", control).env_remove("LD_PRELOAD").env_remove("INVOCATION_ID").args(args);
    command
}

/// Returns what a command printed as errors.
fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

/// Runs `fastsock run` with these options and `true`. Returns what it said.
fn run(lab: &Lab, control: &Path, args: &[&str]) -> Result<String> {
    let output = fastsock(lab, control, &[&["run"], args, &["--", "true"]].concat()).output()?;
    ensure!(output.status.success(), "run {args:?}: {}: {}", output.status, said(&output));
    Ok(said(&output))
}

/// Returns the processes that serve at this socket.
fn daemons(control: &Path) -> Result<Vec<u32>> {
    let wanted = ["up", "--control", &control.display().to_string()].join("\0");
    let mut all = Vec::new();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // The process may exit in between.
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&line).contains(&wanted) {
            all.push(pid);
        }
    }
    Ok(all)
}

/// Returns the daemon that serves there.
fn daemon(control: &Path) -> Result<u32> {
    let all = daemons(control)?;
    ensure!(all.len() == 1, "not one daemon: {all:?}");
    Ok(all[0])
}

fn signal(pid: u32, name: &str) -> Result<()> {
    let done = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status()?.success();
    ensure!(done, "kill -{name} {pid}");
    Ok(())
}

fn until(what: &str, mut is: impl FnMut() -> bool) -> Result<()> {
    let begun = Instant::now();
    while !is() {
        ensure!(begun.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Ends a daemon that `run` has started: nothing is left of it.
fn end(pid: u32, control: &Path) -> Result<()> {
    signal(pid, "TERM")?;
    until("the daemon ends", || !Path::new(&format!("/proc/{pid}/exe")).exists())?;
    ensure!(!control.exists(), "{} is left", control.display());
    Ok(())
}

#[test]
fn run_starts_one_daemon_and_uses_a_running_one() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let control = lab.dir().join("run/control.sock");
        // Starts several daemons at once, without a socket and with the socket of a killed one.
        for round in 0..4 {
            let all = std::thread::scope(|scope| {
                let all = [(); 8].map(|()| scope.spawn(|| run(lab, &control, &[])));
                all.into_iter().map(|one| one.join().expect("a thread of this test")).collect::<Result<Vec<_>>>()
            })?;
            let wanted = format!("get a ring (daemon at {})", control.display());
            ensure!(all.iter().all(|said| said.contains(&wanted)), "{all:?}");
            let pid = daemon(&control).with_context(|| format!("round {round}"))?;
            // A reload of an unchanged configuration changes nothing.
            signal(pid, "HUP")?;
            ensure!(run(lab, &control, &["--quiet"])?.is_empty(), "it is not quiet");
            ensure!(daemon(&control)? == pid, "SIGHUP ended it");
            if round % 2 == 0 {
                signal(pid, "KILL")?;
                // Its leader ends before its other threads, which have the socket too.
                until("its socket is closed", || {
                    let shown = fastsock(lab, &control, &["ss"]).output();
                    shown.is_ok_and(|output| said(&output).contains("no daemon answers at"))
                })?;
                ensure!(control.exists(), "a killed daemon cannot have removed its socket");
            } else {
                end(pid, &control)?;
            }
        }
        Ok(())
    })
}

/// A daemon in a service's cgroup would end with the service, and could notify systemd through the
/// service's variables. (systemd-run is a script here that records its arguments.)
#[test]
fn run_in_a_service_starts_its_daemon_in_a_separate_scope() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let (bin, record) = (lab.dir().join("bin"), lab.dir().join("record"));
        std::fs::create_dir_all(&bin)?;
        let of_service = ["INVOCATION_ID", "NOTIFY_SOCKET", "JOURNAL_STREAM", "WATCHDOG_USEC"];
        let calls = "while [ \"$1\" != -- ]; do shift; done; shift; exec \"$@\"";
        for (name, does) in [("calls", calls), ("fails", "echo 'Failed to start transient scope unit' >&2; exit 1")] {
            let script = bin.join("systemd-run");
            std::fs::write(&script, format!("#!/bin/sh\n(echo \"$@\"; env) >{}\n{does}\n", record.display()))?;
            std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
            let control = lab.dir().join(name).join("control.sock");
            let mut command = fastsock(lab, &control, &["run", "--", "true"]);
            command.env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display()));
            for variable in of_service {
                command.env(variable, "1");
            }
            let output = command.output()?;
            ensure!(output.status.success(), "{name}: {}", said(&output));
            let pid = daemon(&control).with_context(|| said(&output))?;
            let called = std::fs::read_to_string(&record)?;
            let first = called.lines().next().unwrap_or_default();
            ensure!(first.contains("--scope") && first.contains(" up --control "), "{name}: {first}");
            let has = std::fs::read(format!("/proc/{pid}/environ"))?;
            for variable in of_service {
                let of_daemon = String::from_utf8_lossy(&has).split('\0').any(|line| line.starts_with(variable));
                ensure!(!of_daemon, "{name}: the daemon has {variable}");
                ensure!(!called.lines().any(|line| line.starts_with(variable)), "{name}: systemd-run has {variable}");
            }
            end(pid, &control)?;
            std::fs::remove_file(&record)?;
        }
        // Outside a service, systemd is not asked.
        let control = lab.dir().join("plain/control.sock");
        run(lab, &control, &[])?;
        ensure!(!record.exists());
        end(daemon(&control)?, &control)
    })
}

/// Whatever is wrong with the daemon, `run` starts the program on the kernel and says so once;
/// `run --require` fails.
#[test]
fn run_needs_no_daemon() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let dir = lab.dir();
        std::fs::write(dir.join("file"), "no socket")?;
        let silent = "import socket, sys, time
s = socket.socket(socket.AF_UNIX, int(sys.argv[1]))
s.bind(sys.argv[2])
s.listen(100)
print('ready', flush=True)
kept = []
while True: kept.append(s.accept())";
        let mut liars = Vec::new();
        for (name, kind) in [("silent", "5"), ("stream", "1")] {
            let mut liar = lab.command(Ns::Host, "/usr/bin/python3");
            let mut liar = lab.spawn(name, liar.args(["-c", silent, kind]).arg(dir.join(name)))?;
            let log = liar.log_path().to_owned();
            liar.wait_for("a socket", PATIENCE, || std::fs::metadata(&log).is_ok_and(|log| log.len() > 0))?;
            liars.push(liar);
        }
        let mut command = fastsock(lab, &dir.join("stopped"), &["up"]);
        let mut stopped = lab.spawn("stopped", &mut command)?;
        let log = stopped.log_path().to_owned();
        stopped.wait_for("ready", PATIENCE, || std::fs::metadata(&log).is_ok_and(|log| log.len() > 0))?;
        stopped.signal("STOP")?;
        let long = format!("{}/control", "long".repeat(40));
        for at in ["file", "file/below", "silent", "stream", "stopped", &long] {
            let control = dir.join(at);
            let begun = Instant::now();
            let mut shell = fastsock(lab, &control, &["run", "--", "sh", "-c", "echo ran; exit 3"]);
            let output = shell.output()?;
            let took = begun.elapsed();
            println!("{at}: {took:?}: {}", said(&output));
            ensure!(output.status.code() == Some(3) && output.stdout == b"ran\n", "{at}: {output:?}");
            ensure!(took < PATIENCE, "{at}: {took:?}");
            let ours = said(&output).lines().filter(|line| line.starts_with("fastsock: ")).count();
            ensure!(ours == 1, "{at}: {}", said(&output));
            // A client starts too, whatever process answers at the socket.
            let ask = "import socket
l = socket.create_server(('127.0.0.1', 0))
a = socket.create_connection(l.getsockname()); b, _ = l.accept()
for i in range(50):
    a.sendall(b'x'); assert b.recv(9) == b'x'; b.sendall(b'y'); assert a.recv(9) == b'y'
print('good')";
            let output = fastsock(lab, &control, &["run", "-q", "--", "/usr/bin/python3", "-c", ask]).output()?;
            ensure!(output.stdout == b"good\n", "{at}: {output:?}");
            if at != "silent" && at != "stopped" {
                let output = fastsock(lab, &control, &["run", "--require", "--", "echo", "ran"]).output()?;
                ensure!(output.status.code() == Some(1) && output.stdout.is_empty(), "{at}: {output:?}");
                ensure!(said(&output).contains("no daemon serves"), "{at}: {output:?}");
            }
        }
        ensure!(std::fs::read_to_string(dir.join("file"))? == "no socket");
        stopped.signal("CONT")?;
        ensure!(stopped.terminate(PATIENCE)?.success(), "{}", stopped.log());
        liars.iter_mut().try_for_each(Proc::kill)
    })
}

#[test]
fn errors_are_reported_once_and_leave_nothing() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let control = lab.dir().join("wrong/control.sock");
        let config = lab.dir().join("wrong.toml");
        std::fs::write(&config, "[limits]\nprocesses = -1\n")?;
        let config = config.display().to_string();
        let cases: &[(&[&str], &str)] = &[
            (&["up", "--nonesuch"], "unexpected argument '--nonesuch'"),
            (&["up", "--config", "/nonexistent.toml"], "/nonexistent.toml: No such file"),
            (&["up", "--config", &config], "line 2"),
            (&["up", "--check"], "--config"),
            (&["up", "--control", "/proc/none/c.sock"], "/proc/none/c.sock: No such file"),
            (&["ss"], "no daemon answers at"),
            (&["ss", "--json"], "start one with `fastsock up`"),
            (&["run"], "COMMAND"),
            (&["nonesuch"], "unrecognized subcommand"),
        ];
        for (args, wanted) in cases {
            let output = fastsock(lab, &control, args).output()?;
            let said = said(&output);
            println!("{args:?}: {}: {said}", output.status);
            ensure!(!output.status.success() && said.contains(wanted), "{args:?}: {}: {said}", output.status);
            ensure!(said.matches("(os error").count() <= 1, "said twice: {said}");
            ensure!(!control.exists(), "{args:?} leaves {}", control.display());
        }
        for (command, status) in [("/nonexistent", 127), ("/etc/passwd", 126)] {
            let output = fastsock(lab, &control, &["run", "-q", "--", command]).output()?;
            ensure!(output.status.code() == Some(status), "run {command}: {output:?}");
        }
        end(daemon(&control)?, &control)?;
        // Another file is not a socket that a daemon has left.
        let file = lab.dir().join("wrong/precious");
        std::fs::write(&file, "precious")?;
        let name = file.display().to_string();
        let output = fastsock(lab, &control, &["up", "--control", &name]).output()?;
        ensure!(!output.status.success() && said(&output).contains("the file there is not a socket"), "{output:?}");
        ensure!(std::fs::read_to_string(&file)? == "precious");
        Ok(())
    })
}

/// A program for Linux on x86-64 without a loader, which exits with 0.
#[cfg(target_arch = "x86_64")]
fn static_program() -> Vec<u8> {
    // mov eax, 60; xor edi, edi; syscall
    let code = [0xb8, 60, 0, 0, 0, 0x31, 0xff, 0x0f, 0x05];
    let (headers, base) = (64 + 56, 0x40_0000u64);
    let mut out = Vec::from(*b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    out.extend([2, 0, 62, 0, 1, 0, 0, 0]);
    [base + headers, 64, 0].iter().for_each(|word| out.extend(word.to_le_bytes()));
    out.extend([0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    out.extend([1, 0, 0, 0, 5, 0, 0, 0]);
    let len = headers + code.len() as u64;
    [0, base, base, len, len, 4096].iter().for_each(|word| out.extend(word.to_le_bytes()));
    out.extend(code);
    out
}

#[cfg(target_arch = "x86_64")]
#[test]
fn run_reports_programs_that_it_cannot_accelerate() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let (control, file) = (lab.dir().join("static/control.sock"), lab.dir().join("static-program"));
        std::fs::write(&file, static_program())?;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755))?;
        let name = file.display().to_string();
        for quiet in [&[][..], &["--quiet"]] {
            let args = [&["run"], quiet, &["--", &name]].concat();
            let output = fastsock(lab, &control, &args).output()?;
            ensure!(output.status.success(), "{args:?}: {}: {}", output.status, said(&output));
            let wanted =
                format!("fastsock: {name} is not accelerated: it is statically linked, so it loads no library");
            ensure!(said(&output) == wanted, "{args:?}: {}", said(&output));
        }
        end(daemon(&control)?, &control)
    })
}

/// A shell that sets a limit and becomes the command.
fn limited(lab: &Lab, control: &Path, limit: &str, command: &[&str]) -> Command {
    let mut shell = lab.command(Ns::Host, "sh");
    shell.env("FASTSOCK_CONTROL", control).env_remove("LD_PRELOAD").env("FASTSOCK_YIELDS", "2000");
    // Each connection waits for its ring: it lives for a few milliseconds.
    shell.env("FASTSOCK_CALLS", "0");
    shell.args(["-c", &format!("ulimit {limit}; exec \"$@\""), "sh"]).args(command);
    shell
}

/// Twenty connections with enough calls for a ring.
const MANY: &str = "import socket
count = 0
listener = socket.create_server(('127.0.0.1', 0))
for _ in range(20):
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    for i in range(100):
        client.sendall(b'x' * 100)
        count += len(server.recv(1000))
        server.sendall(b'y')
        assert client.recv(10) == b'y'
print(count)
";

/// Limits with which a process has no descriptor for a ring, or the daemon may make no file as large.
const NO_RING: [&str; 3] = ["-n 20", "-n 16", "-f 10"];

/// Programs with low limits work, if necessary on the kernel. A daemon with low limits gives rings
/// to some and leaves the others to the kernel.
#[test]
fn low_limits_leave_connections_to_the_kernel() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let control = lab.dir().join("limits/control.sock");
        let fastsock = program().display().to_string();
        for (of_daemon, of_programs) in [
            ("-n 4096", &["-v 2000000", "-n 100", "-n 20", "-l 0", "-f 0", "-d 100000"][..]),
            ("-n 16", &["-n 1024"]),
            ("-v 4000000", &["-n 1024"]),
            ("-f 10", &["-n 1024"]),
        ] {
            let mut command = limited(lab, &control, of_daemon, &[&fastsock, "up"]);
            let mut daemon = lab.spawn("limited", &mut command)?;
            until("ready", || daemon.log().contains("ready"))?;
            let promoted = || {
                let text = finish(Command::new(program()).arg("stat").env("FASTSOCK_CONTROL", &control), "stat")?;
                let value = text.lines().find_map(|line| line.strip_prefix("pairs_promoted ")).context("no counter")?;
                anyhow::Ok(value.parse::<u64>()?)
            };
            for limit in of_programs {
                let before = promoted()?;
                let run = [&*fastsock, "run", "-q", "--", "/usr/bin/python3", "-c", MANY];
                let output = limited(lab, &control, limit, &run).output()?;
                ensure!(output.stdout == b"200000\n", "daemon {of_daemon}, program {limit}: {output:?}");
                let rings = promoted()? - before;
                println!("daemon {of_daemon}, program {limit}: {rings} rings");
                ensure!(
                    rings > 0 || NO_RING.contains(&of_daemon) || NO_RING.contains(limit),
                    "{of_daemon}, {limit}: no ring"
                );
            }
            ensure!(daemon.terminate(PATIENCE)?.success(), "{of_daemon}: {}", daemon.log());
            ensure!(daemon.log().lines().count() <= 4, "{of_daemon}: {}", daemon.log());
        }
        Ok(())
    })
}

/// A server with an address space limit and a client without one exchange messages.
#[test]
fn server_under_an_address_space_limit_answers() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Host)?.eager();
        for (port, limit) in [("7461", "unlimited"), ("7462", "4000000"), ("7463", "400000")] {
            let mut server = daemon.command(lab, "sh");
            server.args(["-c", &format!("ulimit -v {limit}; exec redis-server --port {port} --save ''")]);
            let mut server = lab.spawn(&format!("redis-{limit}"), &mut server)?;
            server.wait_for("answer", PATIENCE, || lab.reaches(Ns::Host, "127.0.0.1", port.parse().unwrap_or(0)))?;
            let mut load = daemon.command(lab, "timeout");
            load.args(["240", "redis-benchmark", "-q", "-p", port, "-n", "5000", "-c", "20", "-t", "get,lrange_300"]);
            let output = load.output()?;
            let text = String::from_utf8_lossy(&output.stdout);
            ensure!(output.status.success() && !text.contains("rror"), "ulimit -v {limit}: {output:?}");
            ensure!(server.terminate(PATIENCE)?.success(), "{}", server.log());
        }
        ensure!(daemon.reported("promoted") > 0, "nothing had a ring");
        daemon.stop()
    })
}

/// `fuser -k` on the port of a service ends that service, and neither the daemon nor others'
/// connections: the daemon holds no listener and no connection.
#[test]
fn fuser_ends_one_service_only() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    if !Path::new("/usr/bin/fuser").exists() {
        println!("skipped: no fuser(1) (lab/install test)");
        return Ok(());
    }
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Host)?.yielding();
        let serve = |port: u16| -> Result<Proc> {
            let mut server = daemon.command(lab, "redis-server");
            let mut server =
                lab.spawn(&format!("redis-{port}"), server.args(["--port", &port.to_string(), "--save", ""]))?;
            server.wait_for("answer", PATIENCE, || lab.reaches(Ns::Host, "127.0.0.1", port))?;
            Ok(server)
        };
        let (mut victim, mut other) = (serve(7464)?, serve(7465)?);
        // The process keeps its connections for the whole test.
        let mut load = daemon.command(lab, "redis-benchmark");
        let mut load = lab.spawn("load", load.args(["-q", "-p", "7465", "-n", "100000000", "-c", "3", "-t", "get"]))?;
        let mut idle = daemon.command(lab, "redis-cli");
        let mut idle = lab.spawn("idle", idle.args(["-p", "7464", "subscribe", "news"]))?;
        until("rings", || daemon.with_ring(lab, 7465).is_ok_and(|pairs| pairs.len() >= 3))?;
        lab.run(Ns::Host, "fuser", &["-s", "-k", "7464/tcp"])?;
        victim.wait_end(PATIENCE)?;
        idle.wait_end(PATIENCE).context("its client")?;
        let bytes = || daemon.with_ring(lab, 7465).map(|pairs| pairs.iter().map(|pair| pair.ring_bytes).sum::<u64>());
        let before = bytes()?;
        until("the other service goes on", || bytes().is_ok_and(|now| now > before))?;
        for (name, proc) in [("the other service", &mut other), ("its client", &mut load), ("daemon", &mut daemon.proc)]
        {
            ensure!(proc.ended()?.is_none(), "{name} has ended: {}", proc.log());
        }
        load.kill()?;
        other.kill()?;
        daemon.stop()
    })
}

/// Programs on tokio, whose sets are edge-triggered, exchange messages over 50 connections with rings:
/// no event is lost, so both ends come to their end.
#[test]
fn bench_of_fifty_edge_triggered_connections_ends() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut command = lab.command(Ns::Host, "timeout");
        command.arg("300").arg(program()).args(["bench", "--rounds", "1", "--seconds", "2", "--no-redis"]);
        let output = command.env_remove("LD_PRELOAD").env_remove("FASTSOCK_CONTROL").output()?;
        ensure!(output.status.success(), "bench: {}: {}", output.status, said(&output));
        Ok(())
    })
}
