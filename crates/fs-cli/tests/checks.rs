//! Commands that check their arguments: they reject what does not exist, and print a remedy. Also
//! the formats of a running daemon's counters.

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A directory of one test, removed when dropped.
struct Directory(PathBuf);

impl Directory {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("fastsock-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

fn fastsock(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fastsock")).args(args).env_remove("LD_PRELOAD").output().unwrap()
}

#[test]
fn doctor_refuses_missing_device() {
    let output = fastsock(&["doctor", "--device", "fs-none0", "--json", "--control", "/nonexistent/control.sock"]);
    assert!(!output.status.success());
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["device_works"], false);
    let device = finding(&said, "device");
    assert_eq!(device["grade"], "bad");
    assert!(device["do"].as_str().unwrap().contains("ip link"), "{device}");
}

fn finding<'a>(report: &'a serde_json::Value, what: &str) -> &'a serde_json::Value {
    report["findings"].as_array().unwrap().iter().find(|finding| finding["what"] == what).unwrap()
}

/// Runs `fastsock` without any capability.
fn without_rights() -> Command {
    let mut command = Command::new("setpriv");
    if rustix::process::geteuid().is_root() {
        command.args(["--bounding-set=-all", "--inh-caps=-all"]);
    }
    command.args(["--no-new-privs", env!("CARGO_BIN_EXE_fastsock")]);
    command
}

#[test]
fn doctor_without_rights_says_that_af_xdp_does_not_work() {
    let mut command = without_rights();
    command.args(["doctor", "--json", "--control", "/nonexistent/control.sock"]).env_remove("LD_PRELOAD");
    let output = command.output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(finding(&report, "privilege")["grade"], "bad", "{report}");
    assert_eq!((output.status.code(), &report["device_works"]), (Some(1), &false.into()));
}

/// As with `fastsock doctor | head -1`.
#[test]
fn doctor_ends_with_an_error_if_nobody_reads_its_output() {
    for format in [&[][..], &["--json"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_fastsock"));
        command.args(["doctor", "--control", "/nonexistent/control.sock"]).args(format).env_remove("LD_PRELOAD");
        let output = command.stdout(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.starts_with("fastsock: cannot write to standard output"), "{said}");
    }
}

#[test]
fn configured_devices_that_do_not_exist_are_refused() {
    let directory = Directory::new("devices");
    let file = directory.0.join("fastsock.toml");
    let file = file.to_str().unwrap();
    for (text, names) in [
        ("devices = ['fs-none0']", "fs-none0"),
        ("devices = ['lo']", "lo"),
        ("[wire]\ndevice = 'fs-none1'\n[[wire.port]]\nport = 80", "fs-none1"),
    ] {
        std::fs::write(file, text).unwrap();
        let check = fastsock(&["up", "--check", "--config", file]);
        let says = String::from_utf8_lossy(&check.stderr).into_owned();
        assert!(!check.status.success() && says.contains(names), "{text}: {says}");
    }
    // `[wire]` opens its device, so the other ones are checked before.
    std::fs::write(file, "devices = ['fs-none1']\n[wire]\ndevice = 'fs-none0'\n[[wire.port]]\nport = 80").unwrap();
    let control = directory.0.join("control.sock");
    let start = fastsock(&["up", "--config", file, "--control", control.to_str().unwrap()]);
    let says = String::from_utf8_lossy(&start.stderr).into_owned();
    assert!(!start.status.success() && says.contains("fs-none1"), "{says}");
    std::fs::write(file, "devices = ['fs-none0']").unwrap();
    let doctor = fastsock(&["doctor", "--json", "--config", file, "--control", "/nonexistent/control.sock"]);
    assert!(!doctor.status.success());
    let report: serde_json::Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    let is_it = |finding: &&serde_json::Value| {
        finding["what"] == "shared" && finding["says"].as_str().is_some_and(|says| says.contains("fs-none0"))
    };
    let shared = findings.iter().find(is_it).unwrap_or_else(|| panic!("{findings:?}"));
    assert_eq!(shared["grade"], "bad");
    // The unit is not started again with a wrong file, but with a device that may come later.
    let statuses = [
        ("devices = ['fs-none0']", 1),
        ("[[policy]]\nring = false\nuser = 'nobody-at-all'", 1),
        ("policy_dir = '/nonexistent'", 1),
        ("no_such_key = 1", 78),
        ("[limits]\npairs = 0", 78),
    ];
    for (text, status) in statuses {
        std::fs::write(file, text).unwrap();
        assert_eq!(fastsock(&["up", "--check", "--config", file]).status.code(), Some(status), "{text}");
    }
    std::fs::write(file, "devices = 3").unwrap();
    let doctor = fastsock(&["doctor", "--config", file, "--control", "/nonexistent/control.sock"]);
    assert!(!doctor.status.success() && said(&doctor).contains("line 1"), "{}", said(&doctor));
}

/// A device may be taken down when it is opened, so the daemon checks first whether the address is there: systemd
/// starts it again until it is. Without rights the daemon opens no device.
#[test]
fn addresses_are_checked_before_the_device_is_opened() {
    let directory = Directory::new("addresses");
    let file = directory.0.join("fastsock.toml");
    let wire = |device| format!("[wire]\ndevice = '{device}'\n[[wire.port]]\nport = 80\naddresses = ['192.0.2.1']");
    for (device, expected) in [("lo", "lo does not have the address 192.0.2.1"), ("fs-none0", "cannot serve [wire]")] {
        std::fs::write(&file, wire(device)).unwrap();
        let mut command = without_rights();
        command.args(["up", "--config"]).arg(&file);
        let output = command.arg("--control").arg(directory.0.join("control.sock")).output().unwrap();
        let says = said(&output);
        assert!(!output.status.success() && says.contains(expected), "{says}");
        assert_eq!(says.contains("does not have the address"), device == "lo", "{says}");
    }
}

/// A daemon that is killed when dropped.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _dead = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// Starts a daemon and waits until it serves.
fn daemon(control: &str) -> Daemon {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fastsock"));
    command.args(["up", "--control", control]).env_remove("LD_PRELOAD");
    served(&mut command)
}

/// Starts a daemon by a command and waits until it serves.
fn served(command: &mut Command) -> Daemon {
    let mut daemon = Daemon(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(daemon.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    daemon
}

#[test]
fn each_counter_of_a_daemon_is_documented() {
    let directory = Directory::new("counters");
    let control = directory.0.join("control.sock");
    let control = control.to_str().unwrap();
    let _daemon = daemon(control);
    let text = |args: &[&str]| {
        let output = fastsock(&[args, &["--control", control]].concat());
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let page = include_str!("../../../docs/COUNTERS.md");
    let plain = text(&["stat"]);
    assert!(plain.lines().count() >= 18, "{plain}");
    for line in plain.lines() {
        let name = line.split(['{', ' ']).next().unwrap();
        assert!(page.contains(&format!("| `{name}` |")), "docs/COUNTERS.md lacks {name}");
    }
    let classic = text(&["stat", "--prometheus"]);
    assert!(classic.contains("# TYPE fastsock_offers_total counter\nfastsock_offers_total 0\n"), "{classic}");
    assert!(!classic.contains("# EOF"), "{classic}");
    let open = text(&["stat", "--openmetrics"]);
    assert!(open.contains("# TYPE fastsock_offers counter\nfastsock_offers_total 0\n"), "{open}");
    let json: serde_json::Value = serde_json::from_str(&text(&["stat", "--json"])).unwrap();
    assert_eq!(json.as_array().unwrap().len(), plain.lines().count());
    let sockets: serde_json::Value = serde_json::from_str(&text(&["ss", "--json"])).unwrap();
    assert_eq!(sockets, serde_json::json!({ "pairs": [] }));
}

/// `fastsock run` starts daemons with a pipe that nobody reads later.
#[test]
fn daemon_serves_after_a_log_line_that_cannot_be_written() {
    let directory = Directory::new("unheard");
    warns(&directory, "/dev/full");
}

#[test]
fn log_in_a_file_has_no_colours() {
    let directory = Directory::new("colours");
    let log = directory.0.join("log");
    warns(&directory, log.to_str().unwrap());
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains("WARN") && log.contains("Too many open files") && !log.contains('\u{1b}'), "{log:?}");
}

/// Makes a daemon log a warning to a file. It serves afterwards.
fn warns(directory: &Directory, log: &str) {
    const DESCRIPTORS: usize = 48;
    let control = directory.0.join("control.sock");
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -n {DESCRIPTORS}; exec \"$@\" 2>{log}"), "sh"]);
    command.args([env!("CARGO_BIN_EXE_fastsock"), "up", "--control"]).arg(&control).env_remove("LD_PRELOAD");
    command.env_remove("RUST_LOG");
    let mut daemon = served(&mut command);
    let before = writes(&daemon);
    let connect = |_| {
        // A daemon of another test must not inherit them: it would have no descriptor left.
        let flags = rustix::net::SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(&control).unwrap()).map(|()| socket)
    };
    // Not all of them if the daemon ends.
    let clients: Vec<_> = (0..2 * DESCRIPTORS).map_while(|one| connect(one).ok()).collect();
    // It logs that it has no descriptor for the next one. The kernel counts a write that fails, too.
    let descriptors = format!("/proc/{}/fd", daemon.0.id());
    let has_all = || std::fs::read_dir(&descriptors).is_ok_and(|open| open.count() >= DESCRIPTORS);
    let is_empty = || std::fs::metadata(log).is_ok_and(|log| log.is_file() && log.len() == 0);
    let end = Instant::now() + Duration::from_secs(60);
    while !(has_all() && !is_empty() && writes(&daemon) > before) && daemon.0.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "the daemon has descriptors left, or has written no warning");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(clients);
    let output = fastsock(&["stat", "--control", control.to_str().unwrap()]);
    assert!(output.status.success(), "{}: {:?}", said(&output), daemon.0.try_wait());
}

/// Returns how many write(2) calls a daemon has made.
fn writes(daemon: &Daemon) -> u64 {
    let io = std::fs::read_to_string(format!("/proc/{}/io", daemon.0.id())).unwrap_or_default();
    let calls = io.lines().find_map(|line| line.strip_prefix("syscw: "));
    calls.map_or(0, |calls| calls.parse().unwrap())
}

#[test]
fn commands_without_a_daemon_say_so() {
    for command in ["ss", "stat"] {
        let output = fastsock(&[command, "--control", "/nonexistent/control.sock"]);
        let says = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && says.contains("no daemon answers at /nonexistent/control.sock"), "{says}");
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn pages_and_completions_cover_every_command() {
    let output = |args: &[&str]| said(&fastsock(args));
    let help = output(&["--help"]);
    let commands: Vec<&str> = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .map_while(|line| line.split_whitespace().next())
        .filter(|command| *command != "help")
        .collect();
    assert!(commands.contains(&"up") && commands.contains(&"completions"), "{help}");
    let directory = std::env::temp_dir().join(format!("fastsock-man-{}", std::process::id()));
    assert_eq!(output(&["man", "--to", directory.to_str().unwrap()]), "");
    let all = output(&["man"]);
    for command in &commands {
        let name = format!("fastsock-{command}.1");
        assert!(directory.join(&name).is_file(), "{name}");
        assert!(output(&["man", command]).contains(&format!("fastsock {command}")), "{command}");
        assert!(all.contains(&format!("fastsock\\-{command}")), "{command}: {all}");
    }
    assert!(!directory.join("fastsock-start.1").exists(), "what is hidden has no page");
    std::fs::remove_dir_all(directory).unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let script = output(&["completions", shell]);
        assert!(commands.iter().all(|command| script.contains(command)), "{shell}: {script}");
    }
    assert!(output(&["man", "nothing"]).contains("there is no command `nothing`"));
}

#[test]
fn service_without_the_library_is_told_why() {
    // At all addresses, so that no other test listens at the same port of another one.
    let listener = std::net::TcpListener::bind("[::]:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let missing = ["--control", "/nonexistent/control.sock"];
    for own in [&[port.as_str()][..], &["--pid", &std::process::id().to_string()]] {
        let output = fastsock(&[&["why"], own, &missing].concat());
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("is not accelerated: it has not loaded the library"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let output = fastsock(&[&["why", &port, "--json"], &missing[..]].concat());
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&answer["has_library"], &answer["processes"][0]), (&false.into(), &std::process::id().into()));
    // The kernel chooses no such port for the listeners of other tests.
    assert!(said(&fastsock(&["why", "1"])).contains("no process that this user can see listens"));
}
