//! A host whose device is shared, a peer on the wire, and programs of other users.
#![allow(dead_code, reason = "each test file uses a part")]

#[allow(dead_code, unreachable_pub, reason = "shared with the tests of fs-xdp, which use the rest")]
#[path = "../../../fs-xdp/tests/support/netns_unsafe.rs"]
mod netns_unsafe;
#[path = "../../../fs-xdp/tests/support/tcx_unsafe.rs"]
mod tcx_unsafe;

pub(crate) use netns_unsafe::NetNs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use tcx_unsafe::skipped_without_tcx;

/// The host's first device. The names of others have higher numbers.
pub(crate) const DEVICE: &str = "fsd0";
/// The variable with the role of a process that runs this test binary.
pub(crate) const ROLE: &str = "FS_TEST_ROLE";

/// The host's addresses, and the peer's.
pub(crate) fn ours(v6: bool) -> IpAddr {
    address(0, v6, 1)
}

pub(crate) fn peers(v6: bool) -> IpAddr {
    address(0, v6, 2)
}

/// Returns an address on the network of the device with this number.
fn address(device: u16, v6: bool, host: u16) -> IpAddr {
    match v6 {
        false => IpAddr::from([10, 91 + device as u8, 0, host as u8]),
        true => IpAddr::from([0xfd91 + device, 0, 0, 0, 0, 0, 0, host]),
    }
}

pub(crate) struct Lab {
    pub(crate) host: NetNs,
    pub(crate) peer: NetNs,
    pub(crate) directory: PathBuf,
    devices: u16,
}

/// A process, killed when this is dropped.
pub(crate) struct Running {
    child: Child,
    output: BufReader<ChildStdout>,
    said: String,
}

impl Running {
    fn start(command: &mut Command) -> Self {
        let mut running = Self::spawn(command);
        running.said = running.wait_for("ready");
        running
    }

    /// Returns the last line that the process has printed.
    pub(crate) fn last(&self) -> String {
        self.said.clone()
    }

    /// Starts a process without waiting until it is ready.
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output, said: String::new() }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the process is ready or has ended. Returns true if it is ready.
    pub(crate) fn is_ready(&mut self) -> bool {
        let mut line = String::new();
        while self.output.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
            if line.starts_with("ready") {
                return true;
            }
            line.clear();
        }
        false
    }

    /// Waits until the process has exited.
    pub(crate) fn wait_for_end(&mut self) {
        let end = Instant::now() + Duration::from_secs(60);
        while !self.has_ended() {
            assert!(Instant::now() < end, "it goes on");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }

    /// Reads until a line begins with `start`. Returns the rest of the line.
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
    /// Creates a lab with one device with one queue. Returns `None` without root or tcx.
    pub(crate) fn up(test: &str) -> Option<Self> {
        Self::with(test, 1, 1)
    }

    pub(crate) fn with(test: &str, devices: u16, queues: u32) -> Option<Self> {
        if !netns_unsafe::is_root() {
            println!("skipped: {test} (needs root)");
            return None;
        }
        if skipped_without_tcx(test) {
            return None;
        }
        let directory = std::env::temp_dir().join(format!("fs-shared-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        // Other users cannot read the build directory.
        std::fs::copy(std::env::current_exe().unwrap(), directory.join("program")).unwrap();
        let lab = Self { host: NetNs::new(), peer: NetNs::new(), directory, devices };
        (0..devices).for_each(|device| lab.plug(device, queues));
        Some(lab)
    }

    /// Connects the host's device with this number to the peer.
    pub(crate) fn plug(&self, device: u16, queues: u32) {
        let (host, peer) = (&self.host, &self.peer);
        let ends = format!("numrxqueues {queues} numtxqueues {queues}");
        host.run(&format!(
            "ip link add fsd{device} {ends} type veth peer name peer{device} netns {} {ends}",
            peer.path()
        ));
        for (ns, name, number) in [(host, "fsd", 1), (peer, "peer", 2)] {
            let [v4, v6] = [false, true].map(|v6| address(device, v6, number));
            ns.run(&format!(
                "ip addr add {v4}/24 dev {name}{device} && ip addr add {v6}/64 dev {name}{device} nodad && \
                 ip link set {name}{device} up"
            ));
        }
        host.run(&format!(
            "for i in $(seq 6000); do ip -o link show fsd{device} | grep -q 'state UP' && exit; sleep 0.01; done; false"
        ));
    }

    pub(crate) fn control(&self) -> PathBuf {
        self.directory.join("control.sock")
    }

    pub(crate) fn fastsock(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fastsock"));
        command.args(args);
        command
    }

    pub(crate) fn daemon(&self) -> Running {
        self.start(&mut self.up_command())
    }

    /// Returns the command of a daemon that shares all devices.
    pub(crate) fn up_command(&self) -> Command {
        let mut command = self.fastsock(&["up", "--control", self.control().to_str().unwrap()]);
        for device in 0..self.devices {
            command.args(["--device", &format!("fsd{device}")]);
        }
        command
    }

    /// Starts a daemon with only this configuration.
    pub(crate) fn daemon_of(&self, config: &str) -> Running {
        let file = self.directory.join("fastsock.toml");
        std::fs::write(&file, config).unwrap();
        let (file, control) = (file.to_str().unwrap().to_owned(), self.control());
        self.start(&mut self.fastsock(&["up", "--config", &file, "--control", control.to_str().unwrap()]))
    }

    fn start(&self, command: &mut Command) -> Running {
        self.host.enter(|| Running::start(command))
    }

    /// Runs a command of `fastsock` in the host's namespace and returns its output.
    pub(crate) fn says(&self, command: &str) -> String {
        let output = self.host.enter(|| self.fastsock(&[command]).output().unwrap());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts this binary in `namespace` as a user without any rights.
    pub(crate) fn program(&self, namespace: &NetNs, uid: u32, role: &str) -> Running {
        namespace.enter(|| Running::start(&mut self.program_command(uid, role)))
    }

    /// Starts this binary in the host's namespace as root.
    pub(crate) fn program_of_root(&self, role: &str) -> Running {
        let mut command = Command::new(self.directory.join("program"));
        command.args(["--exact", "program", "--nocapture"]).env(ROLE, role);
        self.start(command.env("FASTSOCK_CONTROL", self.control()))
    }

    /// Makes the peer send its packets to this queue of the host's first device.
    pub(crate) fn lead_to(&self, queue: u32) {
        // /sys shows the devices of the namespace in which it was mounted.
        self.peer.run(&format!(
            "unshare --mount sh -c 'mount -t sysfs none /sys && cd /sys/class/net/peer0/queues && \
             for q in tx-*; do echo 0 >$q/xps_cpus || exit; done; \
             cat /proc/irq/default_smp_affinity >tx-{queue}/xps_cpus'"
        ));
    }

    pub(crate) fn program_command(&self, uid: u32, role: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={uid}"), format!("--regid={uid}")]);
        command.args(["--clear-groups", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]);
        command.arg(self.directory.join("program")).args(["--exact", "program", "--nocapture"]);
        command.env(ROLE, role).env("FASTSOCK_CONTROL", self.control());
        command
    }

    /// Returns the lines of `fastsock devices` about programs.
    pub(crate) fn listed(&self) -> Vec<String> {
        self.says("devices").lines().filter(|line| line.starts_with("fsd")).map(str::to_owned).collect()
    }

    /// Stops sharing, and checks that nothing is left.
    pub(crate) fn down(&self) {
        assert!(self.says("down").starts_with("removed"));
        self.wait_for_pairs(0);
        let pins = self.host.enter(|| {
            let own = std::fs::metadata("/proc/thread-self/ns/net").unwrap();
            let own = format!("{}-", std::os::unix::fs::MetadataExt::ino(&own));
            let all = std::fs::read_dir("/sys/fs/bpf/fastsock").into_iter().flatten().flatten();
            all.filter(|entry| entry.file_name().to_string_lossy().starts_with(&own)).count()
        });
        assert_eq!(pins, 0, "maps are pinned still");
        // Without bpftool only the counts above are checked. A worker of the kernel detaches the programs after
        // their links are gone (bpf_link_put of kernel/bpf/syscall.c).
        let attached = || self.host.enter(|| Command::new("bpftool").args(["net", "show"]).output());
        let end = Instant::now() + Duration::from_secs(60);
        while let Ok(output) = attached() {
            let attached = String::from_utf8_lossy(&output.stdout);
            if !attached.contains("share_in") && !attached.contains("share_out") {
                break;
            }
            assert!(Instant::now() < end, "{attached}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the number of device pairs of the host.
    pub(crate) fn pairs(&self) -> usize {
        let links = self.host.enter(|| Command::new("ip").args(["-o", "link"]).output().unwrap());
        String::from_utf8(links.stdout).unwrap().matches(": fsk").count()
    }

    /// Waits until the host has this many device pairs.
    pub(crate) fn wait_for_pairs(&self, pairs: usize) {
        let end = Instant::now() + Duration::from_secs(60);
        while self.pairs() != pairs {
            assert!(Instant::now() < end, "{} pairs, not {pairs}", self.pairs());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until nobody has this port. Threads of the daemon close its duplicates of a program's sockets
    /// later than the pair is removed.
    pub(crate) fn wait_for_port(&self, port: u16) {
        let is_free = || TcpListener::bind(("::", port)).is_ok() && UdpSocket::bind(("::", port)).is_ok();
        let end = Instant::now() + Duration::from_secs(60);
        while !self.host.enter(is_free) {
            assert!(Instant::now() < end, "port {port} is held");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The peer sends `bytes` to a port of the host and gets them back, by TCP and UDP of both families.
    pub(crate) fn echoes(&self, port: u16, bytes: usize) {
        self.echoes_at(0, port, bytes);
    }

    /// Like `echoes`, over another device.
    pub(crate) fn echoes_at(&self, device: u16, port: u16, bytes: usize) {
        self.peer.enter(|| {
            for v6 in [false, true] {
                let to = SocketAddr::new(address(device, v6, 1), port);
                exchange(&mut connect(to), bytes);
                let socket = UdpSocket::bind(SocketAddr::new(address(device, v6, 2), 0)).unwrap();
                socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
                socket.connect(to).unwrap();
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
        if std::thread::panicking() {
            let _gone = self.host.enter(|| self.fastsock(&["down"]).output());
        }
    }
}

pub(crate) fn connect(to: SocketAddr) -> TcpStream {
    let stream =
        TcpStream::connect_timeout(&to, Duration::from_secs(60)).unwrap_or_else(|error| panic!("{to}: {error}"));
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// Returns pseudo-random bytes.
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
