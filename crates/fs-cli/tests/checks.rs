//! Commands that check: they refuse what does not exist, and say what to do. And formats of a
//! running daemon's counters.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

/// A directory of the test's own, removed when it is dropped.
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

fn check(directory: &Directory, how: &str, config: &str) -> (bool, String) {
    let file = directory.0.join("fastsock.toml");
    std::fs::write(&file, config).unwrap();
    let output = fastsock(&["up", how, "--config", file.to_str().unwrap()]);
    (output.status.success(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn up_check_refuses_missing_device_and_namespace() {
    let directory = Directory::new("check");
    let none = "[daemon]\ndevice = \"fs-none0\"\n";
    let (works, says) = check(&directory, "--check", none);
    assert!(!works && says.contains("fs-none0") && says.contains("ip link"), "{says}");
    let unjoined = "[[join]]\nnamespaces = [\"self\", \"fs-no-such-namespace\"]\n";
    let (works, says) = check(&directory, "--check", unjoined);
    assert!(!works && says.contains("fs-no-such-namespace") && says.contains("ip netns"), "{says}");
    // A reload does not look for them.
    for config in [none, unjoined] {
        assert_eq!(check(&directory, "--check=file", config), (true, String::new()));
    }
    assert_eq!(check(&directory, "--check", "[daemon]\ndevice = \"lo\"\n"), (true, String::new()));
    let (works, says) = check(&directory, "--check=file", "[daemon]\ndevise = \"lo\"\n");
    assert!(!works && says.contains("devise"), "{says}");
}

#[test]
fn doctor_refuses_missing_device() {
    let output = fastsock(&["doctor", "--device", "fs-none0", "--json", "--control", "/nonexistent/control.sock"]);
    assert!(!output.status.success());
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["device_works"], false);
    let findings = said["findings"].as_array().unwrap();
    let device = findings.iter().find(|finding| finding["what"] == "device").unwrap();
    assert_eq!(device["grade"], "bad");
    assert!(device["do"].as_str().unwrap().contains("ip link"), "{device}");
}

/// Killed when it is dropped.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _dead = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// Starts a daemon without a device and waits until it serves.
fn daemon(control: &str) -> Daemon {
    use std::io::{BufRead, BufReader};
    let mut command = Command::new(env!("CARGO_BIN_EXE_fastsock"));
    command.args(["up", "--only-local", "--control", control]).env_remove("LD_PRELOAD");
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
    assert!(plain.lines().count() >= 14, "{plain}");
    for line in plain.lines() {
        let name = line.split(['{', ' ']).next().unwrap();
        assert!(page.contains(&format!("| `{name}` |")), "docs/COUNTERS.md lacks {name}");
    }
    let classic = text(&["stat", "--prometheus"]);
    assert!(classic.contains("# TYPE fastsock_attached_total counter\nfastsock_attached_total "), "{classic}");
    assert!(!classic.contains("# EOF"), "{classic}");
    let open = text(&["stat", "--openmetrics"]);
    assert!(open.contains("# TYPE fastsock_attached counter\nfastsock_attached_total "), "{open}");
    let json: serde_json::Value = serde_json::from_str(&text(&["stat", "--json"])).unwrap();
    assert_eq!(json.as_array().unwrap().len(), plain.lines().count());
    let sockets: serde_json::Value = serde_json::from_str(&text(&["ss", "--json"])).unwrap();
    assert_eq!(sockets, serde_json::json!({ "sockets": [], "pairs": [] }));
}
