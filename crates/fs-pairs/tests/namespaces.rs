//! Namespaces and address translation: two sockets that have the same addresses, or translated
//! ones, must not make a pair.
//!
//! Needs root. Without it the tests are skipped, unless FS_TEST_MUST_RUN is set.

mod common;

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::*;
use fs_carrier::Pacing;
use fs_carrier::exact;
use fs_carrier::kernel::RecvMode;
use fs_pairs::service::Limits;
use fs_pairs::{Client, Offered, Reason};
use rustix::fd::AsFd;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A network namespace with a name, removed when dropped.
struct Namespace(String);

impl Namespace {
    fn new() -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var_os("FS_TEST_MUST_RUN").is_none(), "not root, and FS_TEST_MUST_RUN is set");
            println!("skipped: not root (network namespaces need CAP_NET_ADMIN and CAP_SYS_ADMIN)");
            return None;
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!(
            "{}-pairs-{}-{number}",
            std::env::var("FS_LAB").unwrap_or_else(|_| "fst".into()),
            std::process::id()
        );
        run(&["ip", "netns", "add", &name]);
        let namespace = Namespace(name);
        namespace.run(&["ip", "link", "set", "lo", "up"]);
        Some(namespace)
    }

    fn run(&self, command: &[&str]) {
        run(&[&["ip", "netns", "exec", &self.0], command].concat());
    }

    /// Runs `work` in this namespace. Its sockets belong to the namespace.
    fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let file = File::open(format!("/run/netns/{}", self.0)).expect("the namespace");
        std::thread::scope(|scope| {
            let visit = scope.spawn(|| {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).expect("setns");
                work()
            });
            visit.join().expect("no panic")
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        run(&["ip", "netns", "del", &self.0]);
    }
}

fn run(command: &[&str]) {
    let status = Command::new(command[0]).args(&command[1..]).status().expect(command[0]);
    assert!(status.success(), "{command:?}: {status}");
}

/// Connects to `to`. A listener at `at` accepts the connection.
fn connect(from: &Namespace, to: &str, at: &Namespace, listens: &str) -> (TcpStream, TcpStream) {
    let listener = at.within(|| TcpListener::bind(listens).expect("a listener"));
    let a = from.within(|| TcpStream::connect(to).expect("connect"));
    let (b, _) = listener.accept().expect("accept");
    (a, b)
}

fn both_are_alone(client: &Client, a: &TcpStream, b: &TcpStream) {
    for number in [offer(client, a), offer(client, b)] {
        assert_eq!(refused(client, number), Reason::NoPeer);
    }
}

#[test]
fn namespace_of_its_own_is_served() {
    let Some(inner) = Namespace::new() else { return };
    let service = Running::start();
    let (a, b) = connect(&inner, "127.0.0.1:7001", &inner, "127.0.0.1:7001");
    let (pair_a, pair_b) = promoted(&service.client(), &service.client(), a, b);
    ring_carries(&pair_a, &pair_b, 100);
}

#[test]
fn translated_connection_is_not_matched() {
    let Some(inner) = Namespace::new() else { return };
    inner.run(&["ip", "addr", "add", "10.9.0.1/32", "dev", "lo"]);
    inner.run(&["nft", "add", "table", "ip", "nat"]);
    inner.run(&["nft", "add", "chain", "ip", "nat", "output", "{ type nat hook output priority -100; }"]);
    let rule =
        ["nft", "add", "rule", "ip", "nat", "output", "ip", "daddr", "10.9.0.1", "tcp", "dport", "80", "dnat", "to"];
    inner.run(&[&rule[..], &["127.0.0.1:7002"]].concat());
    let service = Running::start();
    let (a, b) = connect(&inner, "10.9.0.1:80", &inner, "127.0.0.1:7002");
    assert_ne!(a.peer_addr().expect("a peer"), b.local_addr().expect("a name"));
    both_are_alone(&service.client(), &a, &b);
}

/// Each namespace has a loopback device with the same addresses, and here a connection with the
/// same ports.
#[test]
fn equal_addresses_of_two_namespaces_are_kept_apart() {
    let (Some(one), Some(two)) = (Namespace::new(), Namespace::new()) else { return };
    let service = Running::start();
    let client = service.client();
    let connect_from = |namespace: &Namespace| {
        let listener = namespace.within(|| TcpListener::bind("127.0.0.1:7003").expect("a listener"));
        let a = namespace.within(|| {
            let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None);
            let socket = socket.expect("a socket");
            let at = |port| std::net::SocketAddr::from(([127, 0, 0, 1], port));
            rustix::net::bind(&socket, &at(7004)).expect("bind");
            rustix::net::connect(&socket, &at(7003)).expect("connect");
            TcpStream::from(socket)
        });
        (a, listener.accept().expect("accept").0)
    };
    let (a1, b1) = connect_from(&one);
    let (a2, b2) = connect_from(&two);
    assert_eq!(a1.local_addr().expect("a name"), a2.local_addr().expect("a name"));
    // The right peers are not offered. The other namespace's sockets are no peers.
    for (a, b) in [(&a1, &b2), (&a2, &b1)] {
        both_are_alone(&client, a, b);
    }
    // All four at once: each is matched with its own peer.
    let service = Running::with(Limits { wait: Duration::from_secs(3600), ..Limits::default() });
    let client = service.client();
    let numbers = [&a1, &a2, &b2, &b1].map(|socket| offer(&client, socket));
    let mut order = Vec::new();
    for _ in 0..4 {
        match answer(&client) {
            Offered::Matched { number, .. } => order.push(number),
            other => panic!("{other:?}"),
        }
    }
    let [one_a, two_a, two_b, one_b] = numbers;
    // Threads read the sockets of the waiting offers again, in any order.
    for pair in order.chunks(2) {
        assert!(pair == [one_a, one_b] || pair == [two_a, two_b], "{order:?} of {numbers:?}");
    }
    assert_ne!(order[0], order[2]);
}

/// Connections between two namespaces get no ring. Nothing that the kernel reports about two
/// sockets proves that they are one connection: other namespaces may have the same addresses.
#[test]
fn ends_in_two_namespaces_are_not_matched() {
    let (Some(one), Some(two)) = (Namespace::new(), Namespace::new()) else { return };
    one.run(&["ip", "link", "add", "v0", "type", "veth", "peer", "name", "v0", "netns", &two.0]);
    for (namespace, address) in [(&one, "10.9.1.1/24"), (&two, "10.9.1.2/24")] {
        namespace.run(&["ip", "addr", "add", address, "dev", "v0"]);
        namespace.run(&["ip", "link", "set", "v0", "up"]);
    }
    let service = Running::start();
    let (a, b) = connect(&one, "10.9.1.2:7005", &two, "10.9.1.2:7005");
    both_are_alone(&service.client(), &a, &b);
}

/// P5: a firewall rule is added while the ring carries the bytes. Nothing is reset, and the bytes
/// arrive after the rule is removed.
#[test]
fn later_rule_stops_a_pair() {
    let Some(inner) = Namespace::new() else { return };
    let service = Running::start();
    let (a, b) = connect(&inner, "127.0.0.1:7007", &inner, "127.0.0.1:7007");
    // Neither end ever sleeps, even on a busy machine, so only P5 can bring bytes to the kernel.
    let pacing = Pacing { yields: u32::MAX, ..Pacing::USUAL };
    let (a, b) = promoted_with(pacing, &service.client(), &service.client(), a, b);
    let (stops, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let count = || rounds.load(Ordering::Relaxed);
    let wait_until = |what: &str, holds: &dyn Fn() -> bool| {
        let end = Instant::now() + Duration::from_secs(60);
        while !holds() {
            assert!(Instant::now() < end, "{what}, after {} rounds; {:?}", count(), a.counts());
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 64];
            while let Ok(n @ 1..) = b.recv(&mut buffer, RecvMode::WAIT) {
                b.send(&buffer[..n], false).expect("sent");
            }
        });
        scope.spawn(|| {
            let mut buffer = [0; 64];
            while !stops.load(Ordering::Relaxed) {
                let message = rounds.fetch_add(1, Ordering::Relaxed).to_ne_bytes();
                a.send(&message, false).expect("sent");
                let n = a.recv(&mut buffer, RecvMode::WAIT).expect("its echo");
                assert_eq!(buffer[..n], message);
            }
            a.before_shutdown_send();
            rustix::net::shutdown(&a.kernel().0, rustix::net::Shutdown::Write).expect("shut");
        });
        wait_until("the ring carries", &|| a.counts().ring_sends > 1000);
        inner.run(&["nft", "add", "table", "inet", "late"]);
        inner.run(&["nft", "add", "chain", "inet", "late", "in", "{ type filter hook input priority 0; }"]);
        inner.run(&["nft", "add", "rule", "inet", "late", "in", "tcp", "dport", "7007", "drop"]);
        wait_until("the rule stops the bytes", &|| {
            let before = count();
            std::thread::sleep(Duration::from_millis(500));
            // Threads that are off their processors stand still too, but lose no bytes.
            let sent = exact::carried(a.kernel()).map(|carried| carried.sent);
            let arrived = exact::received(b.kernel()).map(|received| received.arrived);
            count() == before && sent.zip(arrived).is_some_and(|(sent, arrived)| sent > arrived)
        });
        let stopped_at = count();
        inner.run(&["nft", "flush", "ruleset"]);
        wait_until("the bytes go on", &|| count() > stopped_at + 100);
        stops.store(true, Ordering::Relaxed);
    });
}

/// A socket that is bound to a device may have the same addresses as a socket of another device.
#[test]
fn socket_bound_to_a_device_is_refused() {
    let Some(inner) = Namespace::new() else { return };
    let service = Running::start();
    let client = service.client();
    let (a, b) = connect(&inner, "127.0.0.1:7006", &inner, "127.0.0.1:7006");
    descriptor_unsafe::bind_to_device(a.as_fd(), "lo").expect("SO_BINDTODEVICE");
    let number = offer(&client, &a);
    assert_eq!(refused(&client, number), Reason::Device);
    let number = offer(&client, &b);
    assert_eq!(refused(&client, number), Reason::NoPeer);
}

/// Names the service's socket for [`offers_from_another_pid_namespace`].
const SERVICE: &str = "FS_TEST_SERVICE";

/// A process in a container has a pid namespace of its own, in which the host's service has no
/// number.
#[test]
fn service_of_another_pid_namespace_is_trusted() {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("FS_TEST_MUST_RUN").is_none(), "not root, and FS_TEST_MUST_RUN is set");
        println!("skipped: not root (pid namespaces need CAP_SYS_ADMIN)");
        return;
    }
    let path = path();
    let service = Running::at(path.clone(), Limits::default());
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child"]).arg(std::env::current_exe().expect("this program"));
    command.args(["--exact", "offers_from_another_pid_namespace", "--ignored"]).env(SERVICE, &path);
    let output = command.output().expect("unshare");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
    drop(service);
}

/// Runs in a pid namespace, started by the test above.
#[test]
#[ignore = "another test runs it"]
fn offers_from_another_pid_namespace() {
    let Some(path) = std::env::var_os(SERVICE) else { return };
    assert_eq!(std::process::id(), 1, "in a pid namespace of its own");
    let client = Client::new(std::path::Path::new(&path)).expect("a client");
    let (a, _b) = connection();
    assert!(client.offer(a.as_fd(), carried(&a)).is_some());
}
