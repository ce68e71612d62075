//! A host whose device programs share, a peer on the wire, and programs as processes of other users.

#[allow(dead_code, unreachable_pub, reason = "shared with the tests of fs-xdp, which use the rest")]
#[path = "../../../fs-xdp/tests/support/netns_unsafe.rs"]
mod netns_unsafe;

pub(crate) use netns_unsafe::NetNs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) const DEVICE: &str = "fsd0";
/// The role of a process that is this test binary again.
pub(crate) const ROLE: &str = "FS_TEST_ROLE";

/// The host's addresses, and the peer's.
pub(crate) fn ours(v6: bool) -> IpAddr {
    if v6 { "fd91::1" } else { "10.91.0.1" }.parse().unwrap()
}

pub(crate) fn peers(v6: bool) -> IpAddr {
    if v6 { "fd91::2" } else { "10.91.0.2" }.parse().unwrap()
}

pub(crate) struct Lab {
    pub(crate) host: NetNs,
    pub(crate) peer: NetNs,
    pub(crate) directory: PathBuf,
}

/// A process, killed when this is dropped.
pub(crate) struct Running {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Running {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut running = Self { child, output };
        running.wait_for("ready");
        running
    }

    /// Reads until a line begins so, and returns the rest of it.
    pub(crate) fn wait_for(&mut self, start: &str) -> String {
        let mut all = String::new();
        loop {
            let before = all.len();
            assert!(self.output.read_line(&mut all).unwrap() > 0, "no {start:?} in {all}");
            if let Some(rest) = all[before..].strip_prefix(start) {
                return rest.trim().to_owned();
            }
        }
    }

    pub(crate) fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

impl Lab {
    /// `None` without root.
    pub(crate) fn up(test: &str) -> Option<Self> {
        if !netns_unsafe::is_root() {
            println!("skipped: {test} (needs root)");
            return None;
        }
        let (host, peer) = (NetNs::new(), NetNs::new());
        host.run(&format!("ip link add {DEVICE} type veth peer name peer0 netns {}", peer.path()));
        for (ns, device, addr) in [(&host, DEVICE, ours as fn(bool) -> IpAddr), (&peer, "peer0", peers)] {
            ns.run(&format!(
                "ip addr add {}/24 dev {device} && ip addr add {}/64 dev {device} nodad",
                addr(false),
                addr(true)
            ));
            ns.run(&format!("ip link set {device} up"));
        }
        host.run(&format!(
            "for i in $(seq 500); do ip -o link show {DEVICE} | grep -q 'state UP' && exit; sleep 0.01; done; false"
        ));
        let directory = std::env::temp_dir().join(format!("fs-shared-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        // Other users cannot read the build's folder.
        std::fs::copy(std::env::current_exe().unwrap(), directory.join("program")).unwrap();
        Some(Self { host, peer, directory })
    }

    pub(crate) fn control(&self) -> PathBuf {
        self.directory.join("control.sock")
    }

    fn fastsock(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fastsock"));
        command.args(args);
        command
    }

    pub(crate) fn daemon(&self) -> Running {
        let control = self.control();
        let args = ["up", "--device", DEVICE, "--control", control.to_str().unwrap()];
        self.host.enter(|| Running::start(&mut self.fastsock(&args)))
    }

    /// Runs a command of `fastsock` in the host's namespace and returns its output.
    pub(crate) fn says(&self, command: &str) -> String {
        let output = self.host.enter(|| self.fastsock(&[command]).output().unwrap());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts this binary in `namespace` as a user without any rights.
    pub(crate) fn program(&self, namespace: &NetNs, uid: u32, role: &str) -> Running {
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={uid}"), format!("--regid={uid}")]);
        command.args(["--clear-groups", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]);
        command.arg(self.directory.join("program")).args(["--exact", "program", "--nocapture"]);
        command.env(ROLE, role).env("FASTSOCK_CONTROL", self.control());
        namespace.enter(|| Running::start(&mut command))
    }

    /// Returns how many pairs of devices the host has.
    pub(crate) fn pairs(&self) -> usize {
        let links = self.host.enter(|| Command::new("ip").args(["-o", "link"]).output().unwrap());
        String::from_utf8(links.stdout).unwrap().matches(": fsk").count()
    }

    /// Waits until the host has so many pairs.
    pub(crate) fn wait_for_pairs(&self, pairs: usize) {
        let end = Instant::now() + Duration::from_secs(10);
        while self.pairs() != pairs {
            assert!(Instant::now() < end, "{} pairs, not {pairs}", self.pairs());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The peer sends `bytes` to a port of the host and gets them back, by TCP and UDP of both families.
    pub(crate) fn echoes(&self, port: u16, bytes: usize) {
        self.peer.enter(|| {
            for v6 in [false, true] {
                let mut stream = connect(SocketAddr::new(ours(v6), port));
                exchange(&mut stream, bytes);
                let socket = UdpSocket::bind(SocketAddr::new(peers(v6), 0)).unwrap();
                socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
                socket.connect(SocketAddr::new(ours(v6), port)).unwrap();
                socket.send(&bytes.to_ne_bytes()).unwrap();
                let mut answer = [0; 9];
                assert_eq!(socket.recv(&mut answer).unwrap(), 8);
                assert_eq!(answer[..8], bytes.to_ne_bytes());
            }
        });
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.directory);
        if !std::thread::panicking() {
            return;
        }
        let _gone = self.host.enter(|| self.fastsock(&["down"]).output());
    }
}

pub(crate) fn connect(to: SocketAddr) -> TcpStream {
    let stream =
        TcpStream::connect_timeout(&to, Duration::from_secs(5)).unwrap_or_else(|error| panic!("{to}: {error}"));
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

/// Bytes that repeat nowhere.
pub(crate) fn noise(bytes: usize) -> Vec<u8> {
    let mut state = bytes as u64 + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

/// Sends bytes and compares what comes back.
pub(crate) fn exchange(stream: &mut TcpStream, bytes: usize) {
    let sent = noise(bytes);
    let mut writer = stream.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| writer.write_all(&sent).unwrap());
        let mut came = vec![0; bytes];
        stream.read_exact(&mut came).unwrap();
        assert!(came == sent, "other bytes came back");
    });
}
