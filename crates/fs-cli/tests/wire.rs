//! `fastsock up` with `[wire]`: a port of a program over a veth pair. `fs-relay` has the cases.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Two namespaces and their processes.
struct Lab {
    prefix: String,
    dir: PathBuf,
    running: Vec<Child>,
}

/// Repeats `check` until it succeeds. Panics with its last error after a minute.
fn until(check: impl Fn() -> Result<(), String>) {
    let end = Instant::now() + Duration::from_secs(60);
    while let Err(reason) = check() {
        assert!(Instant::now() < end, "{reason}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn ip(args: &str) {
    assert!(Command::new("ip").args(args.split(' ')).status().unwrap().success(), "ip {args}");
}

impl Lab {
    fn up() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: not root");
            return None;
        }
        let prefix = format!("{}-u{}", std::env::var("FS_LAB").unwrap_or_else(|_| "fst".into()), std::process::id());
        let dir = std::env::temp_dir().join(format!("fastsock-wire-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (s, c) = (format!("{prefix}s"), format!("{prefix}c"));
        ip(&format!("netns add {s}"));
        ip(&format!("netns add {c}"));
        ip(&format!("link add wire0 netns {s} type veth peer name wire1 netns {c}"));
        for (ns, device, host) in [(s, "wire0", 1), (c, "wire1", 2)] {
            ip(&format!("-n {ns} addr add 10.79.0.{host}/24 dev {device}"));
            ip(&format!("-n {ns} link set {device} up"));
            ip(&format!("-n {ns} link set lo up"));
        }
        Some(Self { prefix, dir, running: Vec::new() })
    }

    /// A command that keeps the host's mounts, so that it sees the root cgroup.
    fn command(&self, side: &str, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}{side}", self.prefix)).arg(program);
        command
    }

    /// Starts a program and waits for its first line.
    fn start(&mut self, command: &mut Command, line: &str) {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        self.running.push(child);
        assert_eq!(said.trim_end(), line);
    }

    fn has_xdp(&self) -> bool {
        let shown = self.command("s", "ip").args(["-d", "link", "show", "dev", "wire0"]).output().unwrap();
        String::from_utf8_lossy(&shown.stdout).contains("prog/xdp")
    }

    fn client(&self) -> bool {
        self.command("c", "python3").args(["-c", CLIENT]).status().unwrap().success()
    }

    fn fastsock(&self, config: &str) -> Command {
        let file = self.dir.join("fastsock.toml");
        std::fs::write(&file, config).unwrap();
        let mut command = self.command("s", env!("CARGO_BIN_EXE_fastsock"));
        command.args(["up", "--control"]).arg(self.dir.join("control.sock")).arg("--config").arg(file);
        command
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for child in &mut self.running {
            let _gone = child.kill();
            let _gone = child.wait();
        }
        for side in ["s", "c"] {
            let _gone = Command::new("ip").args(["netns", "del", &format!("{}{side}", self.prefix)]).status();
        }
        let _gone = std::fs::remove_dir_all(&self.dir);
    }
}

const SERVER: &str = "import socket
s = socket.create_server(('0.0.0.0', 7701))
print('listens', flush=True)
while True:
    c, peer = s.accept()
    c.sendall(f'{peer} {c.getpeername()} '.encode() + c.recv(100))
    c.close()
";

const CLIENT: &str = "import socket
c = socket.create_connection(('10.79.0.1', 7701), timeout=60)
c.sendall(b'hello')
data = b''
while part := c.recv(1000):
    data += part
assert data.decode() == f'{c.getsockname()} {c.getsockname()} hello', data
";

#[test]
fn daemon_serves_a_port_over_a_device() {
    let Some(mut lab) = Lab::up() else { return };
    let output = lab.fastsock("[wire]\ndevice = \"none0\"\n[[wire.port]]\nport = 7701").output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("[wire]") && error.contains("no device none0"), "{error}");

    let mut server = lab.command("s", "python3");
    lab.start(server.args(["-c", SERVER]), "listens");
    assert!(lab.client(), "by the kernel");
    let wire = "[wire]\ndevice = \"wire0\"\npartial_checksums = true\n[[wire.port]]\nport = 7701";
    let mut daemon = lab.fastsock(wire);
    lab.start(&mut daemon, "ready");
    assert!(lab.has_xdp());
    for _ in 0..10 {
        assert!(lab.client(), "over the device");
    }
    // The daemon has relayed each connection. Its connection to the server closes a moment after
    // the client's.
    until(|| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fastsock"));
        let output = command.args(["stat", "--control"]).arg(lab.dir.join("control.sock")).output().unwrap();
        let stat = String::from_utf8_lossy(&output.stdout).into_owned();
        let is_right = ["accepted 10", "open 0", "refused 0", "reset 0"]
            .iter()
            .all(|count| stat.contains(&format!("wire_{count}\n")));
        let relayed = lab.command("s", "ss").args(["-Htan", "dst", "127.64.0.0/10"]).output().unwrap();
        let is_closed = |line: &str| line.starts_with("TIME-WAIT");
        let relayed = String::from_utf8_lossy(&relayed.stdout).into_owned();
        // TIME-WAIT takes a minute, and the first may be over.
        let is_right = is_right && relayed.lines().all(is_closed);
        is_right.then_some(()).ok_or_else(|| format!("{stat}{relayed}"))
    });
    let daemon = lab.running.last().unwrap().id().to_string();
    assert!(Command::new("kill").arg(daemon).status().unwrap().success());
    let status = lab.running.last_mut().unwrap().wait().unwrap();
    assert!(status.success(), "{status}");
    assert!(!lab.has_xdp());
    assert!(lab.client(), "by the kernel again");
}
