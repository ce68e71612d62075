//! Programs on a shared device and the daemon are killed (SIGKILL) at each of their steps. Pairs,
//! leases and memory are freed, and the next daemon serves. Needs root.

#[path = "shared/lab.rs"]
mod lab;
#[path = "shared/role.rs"]
mod role;

use lab::{Lab, Running, connect, exchange, ours};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn program() {
    role::play();
}

/// Returns how many descriptors a process has open, and memory files (memfd) mapped. A program's
/// frames are such a file, and an AF_XDP socket keeps their pages.
fn held(pid: u32) -> usize {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    open + maps.lines().filter(|line| line.contains("/memfd:")).count()
}

/// Waits until the daemon holds nothing of a program.
fn nothing_is_held(lab: &Lab) {
    lab.wait_for_pairs(0);
    let end = Instant::now() + Duration::from_secs(60);
    while !lab.listed().is_empty() {
        assert!(Instant::now() < end, "{:?}", lab.listed());
        std::thread::sleep(Duration::from_millis(10));
    }
    lab.wait_for_port(7001);
}

#[test]
fn killed_program_leaves_nothing() {
    let Some(lab) = Lab::up("killed") else { return };
    let daemon = lab.daemon();
    let before = held(daemon.pid());
    // The shortest of three: a late one would put most kills after the last step.
    let start = |_| {
        let began = Instant::now();
        lab.program(&lab.host, 65_534, "serve 7001").kill();
        let whole = began.elapsed();
        nothing_is_held(&lab);
        whole
    };
    let whole = (0..3).map(start).min().unwrap();
    const STEPS: u32 = 12;
    // Kills from the first instruction to the first accept. For most of that time the program makes
    // its pair and its leases.
    for step in 0..STEPS {
        let program = lab.host.enter(|| Running::spawn(&mut lab.program_command(65_534, "serve 7001")));
        std::thread::sleep(whole * step / STEPS);
        program.kill();
        nothing_is_held(&lab);
    }
    // A thread of the daemon closes a program's frames later than it frees the port.
    let end = Instant::now() + Duration::from_secs(60);
    while held(daemon.pid()) > before {
        assert!(Instant::now() < end, "{} descriptors and memory files, {before} before", held(daemon.pid()));
        std::thread::sleep(Duration::from_millis(10));
    }
    let served = lab.program(&lab.host, 65_534, "serve 7001");
    assert!(held(daemon.pid()) > before, "a program costs the daemon no descriptor");
    lab.echoes(7001, 10_000);
    drop((served, daemon));
    lab.down();
}

/// SO_BINDTODEVICE is set on the sockets that prove the leases.
#[test]
fn sockets_bound_to_the_device_survive_the_daemon() {
    let Some(lab) = Lab::up("bound") else { return };
    let daemon = lab.daemon();
    let mut program = lab.program(&lab.host, 65_534, "churn 7001 bound");
    let mut kept = lab.peer.enter(|| connect(SocketAddr::new(ours(false), 7001)));
    exchange(&mut kept, 10_000);
    lab.echoes(7001, 10_000);
    daemon.kill();
    program.wait_for("away");
    let daemon = lab.daemon();
    program.wait_for("back");
    exchange(&mut kept, 10_000);
    lab.echoes(7001, 10_000);
    drop((program, daemon));
    lab.wait_for_pairs(0);
    lab.down();
}

/// A daemon that stands still for longer than a program waits for an answer, and then goes on.
#[test]
#[ignore = "takes a minute: cargo xtask proof long"]
fn daemon_that_is_late_costs_no_connection() {
    let Some(lab) = Lab::up("late") else { return };
    let daemon = lab.daemon();
    let mut program = lab.program(&lab.host, 65_534, "churn 7001");
    let mut kept = lab.peer.enter(|| connect(SocketAddr::new(ours(false), 7001)));
    exchange(&mut kept, 10_000);
    let signal = |name: &str| Command::new("kill").args([name, &daemon.pid().to_string()]).status().unwrap();
    for seconds in [12, 25] {
        signal("-STOP");
        std::thread::sleep(Duration::from_secs(seconds));
        signal("-CONT");
        // The program comes back once per second.
        std::thread::sleep(Duration::from_secs(5));
        exchange(&mut kept, 10_000);
        lab.echoes(7001, 10_000);
        assert!(!program.has_ended());
        assert_eq!(lab.pairs(), 1);
    }
    drop((program, daemon));
    lab.wait_for_pairs(0);
    lab.down();
}

/// Kills a process before its system call `name` for the `nth` time from now on. It exits with the
/// process.
fn kill_before(pid: u32, name: &str, nth: u32) -> Running {
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o", "/dev/null", "-p", &pid.to_string(), "-e", &format!("trace={name}")]);
    command.args(["-e", &format!("inject={name}:signal=KILL:when={nth}")]).stderr(Stdio::null());
    let strace = Running::spawn(&mut command);
    let traced = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        !status.contains("TracerPid:\t0\n")
    };
    let end = Instant::now() + Duration::from_secs(60);
    while !traced() {
        assert!(Instant::now() < end, "strace does not trace");
        std::thread::sleep(Duration::from_millis(5));
    }
    // By now strace has attached to all threads, and the process runs.
    std::thread::sleep(Duration::from_millis(100));
    strace
}

/// Kills the daemon before a system call that it makes for a program, and checks that the next one
/// serves. Returns false if the daemon has made fewer such calls.
fn daemon_dies_before(lab: &Lab, name: &str, nth: u32) -> bool {
    let mut daemon = lab.daemon();
    let kept = lab.program(&lab.host, 65_533, "serve 7002");
    let strace = kill_before(daemon.pid(), name, nth);
    let mut program = lab.host.enter(|| Running::spawn(&mut lab.program_command(65_534, "serve 7001")));
    let is_ready = program.is_ready();
    if !is_ready {
        // Its connections end before its process. Otherwise the daemon has failed the program.
        println!("{name} {nth}: the program has failed");
        daemon.wait_for_end();
    }
    let died = daemon.has_ended();
    drop((strace, daemon));
    let daemon = lab.daemon();
    lab.echoes(7002, 10_000);
    let mut again = None;
    if is_ready {
        lab.echoes(7001, 10_000);
    } else {
        again = Some(lab.program(&lab.host, 65_534, "serve 7001"));
        lab.echoes(7001, 10_000);
    }
    lab.wait_for_pairs(2);
    drop((again, program));
    lab.wait_for_pairs(1);
    drop(kept);
    nothing_is_held(lab);
    drop(daemon);
    died
}

/// Kills the daemon before each kind of system call that it makes for a program, from the first to
/// the last.
#[test]
#[ignore = "takes a minute: cargo xtask proof long"]
fn daemon_killed_at_each_step_of_a_program() {
    let Some(lab) = Lab::up("steps") else { return };
    let mut died = 0;
    for (name, times) in [
        ("recvmsg", &[1, 3, 4][..]),
        ("sendmsg", &[1, 2, 3]),
        ("unshare", &[1]),
        ("sendto", &[1, 2, 3, 4]),
        ("ioctl", &[1]),
        ("setsockopt", &[1, 3]),
        ("bind", &[1]),
        ("bpf", &[1, 5, 7, 8, 9, 10, 11, 12, 20, 100]),
    ] {
        died += times.iter().filter(|nth| daemon_dies_before(&lab, name, **nth)).count();
    }
    // strace may lack the permission to trace.
    assert!(died == 0 || died >= 15, "only {died} daemons have died");
    lab.down();
}

/// Kills the daemon while it makes or takes over maps, pins and the attachment.
#[test]
#[ignore = "takes a minute: cargo xtask proof long"]
fn daemon_killed_at_each_step_of_its_start() {
    let Some(lab) = Lab::up("start") else { return };
    let before = lab.daemon();
    let kept = lab.program(&lab.host, 65_533, "serve 7002");
    before.kill();
    let start = |nth: u32| {
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=bpf"]);
        command.args(["-e", &format!("inject=bpf:signal=KILL:when={nth}")]);
        let up = lab.up_command();
        command.arg(up.get_program()).args(up.get_args());
        let mut daemon = lab.host.enter(|| Running::spawn(&mut command));
        assert!(!daemon.is_ready(), "{nth}: it lives");
    };
    for nth in [1, 4, 8, 12, 16, 20, 24, 28, 40] {
        start(nth);
        lab.echoes(7002, 10_000);
    }
    let daemon = lab.daemon();
    lab.echoes(7002, 10_000);
    drop((daemon, kept));
    lab.wait_for_pairs(0);
    lab.down();
    // Also without state of an earlier daemon.
    for nth in [1, 2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 40] {
        start(nth);
    }
    let daemon = lab.daemon();
    let served = lab.program(&lab.host, 65_534, "serve 7001");
    lab.echoes(7001, 10_000);
    drop((served, daemon));
    lab.wait_for_pairs(0);
    // `fastsock down` is killed as well.
    for nth in [1, 2, 4, 7] {
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=unlink,unlinkat,rmdir"]);
        command.args(["-e", &format!("inject=unlink,unlinkat,rmdir:signal=KILL:when={nth}")]);
        let down = lab.fastsock(&["down"]);
        command.arg(down.get_program()).args(down.get_args());
        lab.host.enter(|| command.status()).unwrap();
    }
    lab.down();
}
