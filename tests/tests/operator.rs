//! An operator's view: `fastsock run` starts a daemon itself, wrong arguments, and leftovers.

use anyhow::{Context, Result, ensure};
use fs_tests::servers::devices;
use fs_tests::unmodified::daemon::{Daemon, Reach, program};
use fs_tests::{Lab, Ns};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

fn fastsock(lab: &Lab, control: &Path, args: &[&str]) -> Command {
    let mut command = lab.command(Ns::Host, program());
    command.env("FASTSOCK_CONTROL", control).env_remove("LD_PRELOAD").args(args);
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

/// Returns the output of `run`, and the daemon that it names.
fn run(lab: &Lab, control: &Path, args: &[&str]) -> Result<(String, u32)> {
    let mut all = vec!["run"];
    all.extend(args);
    all.extend(["--", "true"]);
    let output = fastsock(lab, control, &all).output()?;
    let said = said(&output);
    ensure!(output.status.success(), "run {args:?}: {}: {said}", output.status);
    let pid = said.rsplit_once("(daemon ").and_then(|(_, rest)| rest.trim_end_matches(')').parse().ok());
    Ok((said.clone(), pid.with_context(|| format!("no daemon in: {said}"))?))
}

fn signal(pid: u32, name: &str) -> Result<()> {
    ensure!(
        Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status()?.success(),
        "kill -{name} {pid}"
    );
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
        // Several at once, for the first time, and with the socket that a killed one has left.
        for round in 0..4 {
            let all = ["--only-local"; 8];
            let daemons = std::thread::scope(|scope| {
                let all = all.map(|arg| scope.spawn(|| run(lab, &control, &[arg])));
                all.into_iter().map(|one| one.join().expect("a thread of this test")).collect::<Result<Vec<_>>>()
            })?;
            let pid = daemons[0].1;
            for (said, other) in &daemons {
                ensure!(*other == pid, "round {round}: two daemons: {daemons:?}");
                ensure!(said.contains("TCP between processes of this host is accelerated"), "{said}");
            }
            // A reload of an unchanged configuration changes nothing.
            signal(pid, "HUP")?;
            ensure!(run(lab, &control, &["--only-local"])?.1 == pid, "SIGHUP ended it");
            if round % 2 == 0 {
                signal(pid, "KILL")?;
                until("the daemon ends", || fastsock(lab, &control, &["ss"]).status().is_ok_and(|ss| !ss.success()))?;
                ensure!(control.exists(), "a killed daemon cannot have removed its socket");
            } else {
                end(pid, &control)?;
            }
        }
        Ok(())
    })
}

/// In a service's cgroup the daemon would end with the service, and notify for it by its variables.
/// (systemd-run is a script here that records its arguments.)
#[test]
fn run_in_a_service_starts_its_daemon_in_a_separate_scope() -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let (bin, record) = (lab.dir().join("bin"), lab.dir().join("record"));
        std::fs::create_dir_all(&bin)?;
        let of_service =
            ["INVOCATION_ID", "NOTIFY_SOCKET", "LISTEN_PID", "LISTEN_FDS", "JOURNAL_STREAM", "WATCHDOG_USEC"];
        let calls = "while [ \"$1\" != -- ]; do shift; done; shift; exec \"$@\"";
        for (name, does) in [("calls", calls), ("fails", "echo 'Failed to start transient scope unit' >&2; exit 1")] {
            let script = bin.join("systemd-run");
            std::fs::write(&script, format!("#!/bin/sh\n(echo \"$@\"; env) >{}\n{does}\n", record.display()))?;
            std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
            let control = lab.dir().join(name).join("control.sock");
            let mut command = fastsock(lab, &control, &["run", "--only-local", "--", "true"]);
            command.env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display()));
            for variable in of_service {
                command.env(variable, "1");
            }
            let output = command.output()?;
            let said = said(&output);
            ensure!(output.status.success(), "{name}: {said}");
            let pid: u32 = said
                .rsplit_once("(daemon ")
                .and_then(|(_, rest)| rest.trim_end_matches(')').parse().ok())
                .with_context(|| format!("no daemon in: {said}"))?;
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
        let (_, pid) = run(lab, &control, &["--only-local"])?;
        ensure!(!record.exists());
        end(pid, &control)
    })
}

#[test]
fn run_uses_the_device_of_the_default_route() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let (device, control) = (devices(Ns::Host).0, lab.dir().join("default/control.sock"));
        let (said, pid) = run(lab, &control, &[])?;
        ensure!(!said.contains("TCP on"), "there is no default route: {said}");
        end(pid, &control)?;
        lab.run(Ns::Host, "ip", &["route", "add", "default", "dev", device])?;
        let (said, pid) = run(lab, &control, &[])?;
        ensure!(said.contains(&format!("TCP on {device} (1 core)")), "{said}");
        // A second daemon cannot have the device, and names its holder.
        let other = lab.dir().join("other/control.sock");
        let output = fastsock(lab, &other, &["up", "--device", device]).output()?;
        println!("a second daemon on one device: {}", self::said(&output));
        ensure!(!output.status.success() && self::said(&output).contains(device), "{output:?}");
        ensure!(!other.exists(), "{} is left", other.display());
        end(pid, &control)?;
        ensure!(lab.xdp_programs(Ns::Host, device)?.is_empty(), "its XDP program is left");
        let (said, pid) = run(lab, &control, &["--only-local"])?;
        ensure!(!said.contains("TCP on"), "{said}");
        end(pid, &control)
    })
}

#[test]
fn errors_are_reported_once_and_leave_nothing() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let control = lab.dir().join("wrong/control.sock");
        let config = lab.dir().join("wrong.toml");
        std::fs::write(&config, "[limits]\nattachments = -1\n")?;
        let config = config.display().to_string();
        let cases: &[(&[&str], &str)] = &[
            (&["up"], "--only-local"),
            (&["up", "--only-local", "--device", "lo"], "cannot be used with"),
            (&["up", "--device", "nonesuch"], "there is no device nonesuch"),
            (&["up", "--device", "lo"], "lo is the loopback device"),
            (&["up", "--only-local", "--config", "/nonexistent.toml"], "/nonexistent.toml: No such file"),
            (&["up", "--only-local", "--config", &config], "line 2"),
            (&["up", "--only-local", "--control", "/proc/none/c.sock"], "/proc/none/c.sock: No such file"),
            (&["ss"], "no daemon answers at"),
            (&["stat"], "start one with `fastsock up`"),
            (&["run"], "COMMAND"),
        ];
        for (args, wanted) in cases {
            let output = fastsock(lab, &control, args).output()?;
            let said = said(&output);
            println!("{args:?}: {}: {said}", output.status);
            ensure!(!output.status.success() && said.contains(wanted), "{args:?}: {}: {said}", output.status);
            ensure!(said.matches("(os error").count() <= 1, "said twice: {said}");
            ensure!(!control.exists(), "{args:?} leaves {}", control.display());
        }
        // Another file is not a socket that a daemon has left.
        let file = lab.dir().join("wrong/precious");
        std::fs::write(&file, "precious")?;
        let name = file.display().to_string();
        let output = fastsock(lab, &control, &["up", "--only-local", "--control", &name]).output()?;
        ensure!(!output.status.success() && said(&output).contains("the file there is not a socket"), "{output:?}");
        ensure!(std::fs::read_to_string(&file)? == "precious");
        Ok(())
    })
}

/// A program for Linux on x86-64, without a loader, that ends at once with 0.
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
    use std::os::unix::fs::PermissionsExt;
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let (control, file) = (lab.dir().join("static/control.sock"), lab.dir().join("static-program"));
        std::fs::write(&file, static_program())?;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755))?;
        let name = file.display().to_string();
        for quiet in [&[][..], &["--quiet"]] {
            let args = [&["run", "--only-local"], quiet, &["--", &name]].concat();
            let output = fastsock(lab, &control, &args).output()?;
            let said = said(&output);
            ensure!(output.status.success(), "{args:?}: {}: {said}", output.status);
            let wanted =
                format!("fastsock: {name} is not accelerated: it is statically linked, so it loads no library");
            ensure!(said == wanted, "{args:?}: {said}");
        }
        let (said, pid) = run(lab, &control, &["--only-local"])?;
        ensure!(said.contains("is accelerated"), "{said}");
        end(pid, &control)
    })
}

/// The device goes down and comes back, which the daemon survives. Then the device is deleted: the
/// daemon reports it and ends with an error.
#[test]
fn daemon_ends_with_its_device_and_reports_it() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Host, Reach::Wire)?;
        let device = devices(Ns::Host).0;
        for state in ["down", "up"] {
            lab.run(Ns::Host, "ip", &["link", "set", "dev", device, state])?;
            std::thread::sleep(Duration::from_millis(300));
            ensure!(daemon.counters(lab)?.value("attachments") == 0, "{}", daemon.proc.log());
        }
        lab.run(Ns::Host, "ip", &["link", "del", "dev", device])?;
        let status = daemon.proc.wait_end(PATIENCE)?;
        let said = daemon.proc.log();
        println!("without its device: {status}: {}", said.trim());
        ensure!(!status.success() && said.contains(&format!("the daemon has lost {device}")), "{status}: {said}");
        ensure!(!daemon.control().exists(), "{} is left", daemon.control().display());
        Ok(())
    })
}

/// A shell that sets a limit and becomes the command.
fn limited(lab: &Lab, control: &Path, limit: &str, command: &[&str]) -> Command {
    let mut shell = lab.command(Ns::Host, "sh");
    shell.env("FASTSOCK_CONTROL", control).env_remove("LD_PRELOAD");
    shell.args(["-c", &format!("ulimit {limit}; exec \"$@\""), "sh"]).args(command);
    shell
}

/// Forty listeners, each of which needs an arena and so a descriptor of the daemon, and a
/// connection to each.
const MANY: &str = "import socket
count = 0
for listener in [socket.create_server(('127.0.0.1', 7330 + i)) for i in range(40)]:
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    client.sendall(b'x' * 100)
    count += len(server.recv(1000))
print(count)
";

#[test]
fn limits_are_named_with_a_remedy() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let control = lab.dir().join("limits/control.sock");
        let fastsock = program().display().to_string();
        // Limits that no connection could work with are reported at the start.
        for (limit, wanted) in [("-f 1000", "LimitFSIZE=infinity"), ("-v 4000000", "LimitAS=infinity")] {
            let output = limited(lab, &control, limit, &[&fastsock, "up", "--only-local"]).output()?;
            let said = said(&output);
            println!("ulimit {limit}: {}: {said}", output.status);
            ensure!(output.status.code() == Some(1) && said.contains(wanted), "{}: {said}", output.status);
            ensure!(!control.exists(), "{} is left", control.display());
        }
        // If descriptors run out later, connections are left to the kernel, and one line is logged.
        let mut command = limited(lab, &control, "-n 40", &[&fastsock, "up", "--only-local"]);
        let mut daemon = lab.spawn("limited", &mut command)?;
        until("ready", || daemon.log().contains("ready"))?;
        let many = fastsock_run(lab, &control, MANY)?;
        ensure!(many.trim() == "4000", "{many}");
        let log = daemon.log();
        println!("ulimit -n 40: {}", log.trim());
        ensure!(log.matches("RLIMIT_NOFILE").count() == 1 && log.lines().count() <= 4, "{log}");
        // A program with low limits itself works, if necessary on the kernel.
        ensure!(daemon.terminate(PATIENCE)?.success(), "{}", daemon.log());
        let mut command = self::fastsock(lab, &control, &["up", "--only-local"]);
        let mut daemon = lab.spawn("unlimited", &mut command)?;
        until("ready", || daemon.log().contains("ready"))?;
        for limit in ["-v 2000000", "-n 100", "-l 0", "-f 0"] {
            let program = [&*fastsock, "run", "--", "/usr/bin/python3", "-c", MANY];
            let output = limited(lab, &control, limit, &program).output()?;
            ensure!(output.stdout == b"4000\n", "ulimit {limit}: {output:?}");
        }
        ensure!(daemon.terminate(PATIENCE)?.success(), "{}", daemon.log());
        Ok(())
    })
}

fn fastsock_run(lab: &Lab, control: &Path, program: &str) -> Result<String> {
    let output = fastsock(lab, control, &["run", "--", "/usr/bin/python3", "-c", program]).output()?;
    ensure!(output.status.success(), "{output:?}");
    Ok(String::from_utf8(output.stdout)?)
}

/// A user's FUSE file does not respond when it is closed. That blocks a thread for that user, and
/// no other user.
#[test]
fn file_that_cannot_be_closed_blocks_no_other_user() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    if !Path::new("/dev/fuse").exists() {
        println!("skipped: no /dev/fuse");
        return Ok(());
    }
    lab.check(|lab| {
        let daemon = Daemon::start(lab, Ns::Host, Reach::OnlyLocal)?;
        let mut hostile = lab.command(Ns::Host, "/usr/bin/python3");
        hostile.arg(fs_tests::apps::workspace().join("tests/unmodified/fuse_flush.py"));
        let mut hostile = lab.spawn("hostile", hostile.arg(daemon.control()).arg(lab.dir().join("fuse")))?;
        let log = hostile.log_path().to_owned();
        let says = |what: &str| std::fs::read_to_string(&log).is_ok_and(|log| log.contains(what));
        hostile.wait_for("a held close", PATIENCE, || says("held"))?;
        // The hostile user is root here. The daemon runs as another user, with its own copy of the
        // program.
        let copy = lab.dir().join("fastsock");
        std::fs::copy(program(), &copy)?;
        let begun = Instant::now();
        let mut other = Command::new("timeout");
        other.args(["-k", "1", "50", "setpriv", "--reuid", "65534", "--clear-groups"]).arg(copy);
        let output = other.arg("stat").env("FASTSOCK_CONTROL", daemon.control()).output();
        let took = begun.elapsed();
        let refused = hostile.wait_for("the end of patience", PATIENCE, || says("refused"));
        // Without the file system no thread is blocked any more.
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", hostile.pid()))?;
        children.split_whitespace().filter_map(|pid| pid.parse().ok()).try_for_each(|pid| signal(pid, "KILL"))?;
        hostile.kill()?;
        let output = output?;
        ensure!(output.status.success() && took < Duration::from_secs(40), "held for {took:?}: {output:?}");
        refused?;
        // Its file system ends with it, and with that the blocked thread.
        until("root is served again", || daemon.counters(lab).is_ok())?;
        Ok(())
    })
}
