#[path = "../../../fs-xdp/tests/support/own_ip.rs"]
mod own_ip;

use super::cooling::{CooledPorts, CooledQuestions};
use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// Records the last share of a port.
struct Sharing(Arc<Mutex<Share>>);
impl PortSink for Sharing {
    fn add(&self, protocol: Protocol, at: SocketAddr, share: Share, _: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.share(protocol, at, share);
        Ok(())
    }
    fn share(&self, _: Protocol, _: SocketAddr, share: Share) {
        *self.0.lock().unwrap() = share;
    }
    fn remove(&self, _: Protocol, _: SocketAddr) {}
    fn unguard(&self) {}
    fn set_addresses(&self, _: &[IpAddr], _: &[IpAddr]) -> io::Result<()> {
        Ok(())
    }
}

/// A held port was the kernel's, and may be again.
#[test]
fn held_port_is_shared_with_the_kernel() {
    let last = Arc::new(Mutex::new(Share::Ours));
    let now = || *last.lock().unwrap();
    let cool_down = Duration::from_secs(60);
    let ours = Ports::new(true, vec![Some(Box::new(Sharing(last.clone())))], Ephemeral::default(), cool_down);
    let theirs = std::net::TcpListener::bind(any_port()).unwrap();
    let at = theirs.local_addr().unwrap();
    let place = ours.acquire_held(Protocol::Tcp, at, false).unwrap();
    assert_eq!(now(), Share::Former);
    ours.share(place, Share::Ours);
    assert_eq!(now(), Share::Ours);
    // Another core.
    ours.acquire_held(Protocol::Tcp, at, false).unwrap();
    ours.release(place, true);
    assert_eq!(now(), Share::Ours);
    assert!(ours.is_used(place));
    // Its connections' last packets are ours. The kernel's listener gets new connections at once.
    ours.release(place, true);
    assert_eq!(now(), Share::Leaving);
    assert!(!ours.is_used(place));
    ours.share(place, Share::Ours);
    assert_eq!(now(), Share::Leaving);
    ours.acquire_held(Protocol::Tcp, at, false).unwrap();
    assert_eq!(now(), Share::Former);
    // A port that is reserved for us is not shared.
    let reserved = ours.acquire(Protocol::Tcp, any_port(), false).unwrap();
    assert_eq!(now(), Share::Ours);
    ours.share(reserved, Share::Leaving);
    assert_eq!(now(), Share::Ours);
}

/// A port whose last connection of ours is over, and whose next one the kernel opens.
#[test]
fn taken_socket_of_a_cooling_port_is_shared_with_the_kernel() {
    let last = Arc::new(Mutex::new(Share::Ours));
    let sinks = || vec![Some(Box::new(Sharing(last.clone())) as Box<dyn PortSink>)];
    let ours = Ports::new(true, sinks(), Ephemeral::default(), Duration::from_secs(60));
    let place = ours.acquire(Protocol::Tcp, any_port(), false).unwrap();
    ours.release(place, true);
    assert_eq!(ours.acquire(Protocol::Tcp, place.at, false).unwrap(), place);
    assert_eq!(*last.lock().unwrap(), Share::Ours);
    let socket = ours.take_socket(place).unwrap();
    // Also before the kernel's socket has connected.
    ours.shared_with_kernel().into_iter().for_each(|port| ours.end_sharing(port));
    assert_eq!(*last.lock().unwrap(), Share::Leaving);
    ours.release(place, false);
    assert_eq!(*last.lock().unwrap(), Share::Leaving);
    drop(socket);
    ours.acquire(Protocol::Tcp, place.at, false).unwrap();
    assert_eq!(*last.lock().unwrap(), Share::Ours);
}

/// On a shared device the lease ends with its proof, which would be the kernel's connection.
#[test]
fn taken_socket_of_a_cooling_port_proves_no_lease() {
    let leases = Arc::new(AtomicI32::new(0));
    let sinks = vec![Some(Box::new(Proving(Counting(leases.clone()))) as Box<dyn PortSink>)];
    let ours = Ports::new(true, sinks, Ephemeral::default(), Duration::from_secs(60));
    let place = ours.acquire(Protocol::Tcp, any_port(), false).unwrap();
    ours.release(place, true);
    assert_eq!(ours.acquire(Protocol::Tcp, place.at, false).unwrap(), place);
    let socket = ours.take_socket(place).unwrap();
    ours.release(place, false);
    assert_eq!(leases.load(Ordering::Relaxed), 0);
    drop(socket);
    // A new socket proves the next lease.
    ours.acquire(Protocol::Tcp, any_port(), false).unwrap();
    assert_eq!(leases.load(Ordering::Relaxed), 1);
}

struct Proving(Counting);
impl PortSink for Proving {
    fn add(&self, protocol: Protocol, at: SocketAddr, share: Share, proof: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.0.add(protocol, at, share, proof)
    }
    fn share(&self, _: Protocol, _: SocketAddr, _: Share) {}
    fn remove(&self, protocol: Protocol, at: SocketAddr) {
        self.0.remove(protocol, at);
    }
    fn needs_proof(&self) -> bool {
        true
    }
    fn unguard(&self) {}
    fn set_addresses(&self, _: &[IpAddr], _: &[IpAddr]) -> io::Result<()> {
        Ok(())
    }
}

struct Counting(Arc<AtomicI32>);
impl PortSink for Counting {
    fn add(&self, _: Protocol, _: SocketAddr, _: Share, _: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    fn share(&self, _: Protocol, _: SocketAddr, _: Share) {}
    fn remove(&self, _: Protocol, _: SocketAddr) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
    fn unguard(&self) {}
    fn set_addresses(&self, _: &[IpAddr], _: &[IpAddr]) -> io::Result<()> {
        Ok(())
    }
}

fn any_port() -> SocketAddr {
    SocketAddr::new(own_ip::own_ip(), 0)
}

#[test]
fn cores_share_a_port_and_other_processes_do_not() {
    let entered = Arc::new(AtomicI32::new(0));
    let ours = Ports::new(true, vec![Some(Box::new(Counting(entered.clone())))], Ephemeral::default(), Duration::ZERO);
    let place = ours.acquire(Protocol::Tcp, any_port(), false).unwrap();
    let at = place.at;
    assert_ne!(at.port(), 0);
    assert_eq!(ours.acquire(Protocol::Tcp, at, false).unwrap(), place);
    assert_eq!(entered.load(Ordering::Relaxed), 1);

    let theirs = Ports::new(true, Vec::new(), Ephemeral::default(), Duration::ZERO);
    assert_eq!(theirs.acquire(Protocol::Tcp, at, false).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    assert_eq!(std::net::TcpListener::bind(at).unwrap_err().kind(), io::ErrorKind::AddrInUse);

    ours.release(place, false);
    assert_eq!(theirs.acquire(Protocol::Tcp, at, false).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    ours.release(place, false);
    assert_eq!(entered.load(Ordering::Relaxed), 0);
    theirs.acquire(Protocol::Tcp, at, false).unwrap();
}

#[test]
fn port_of_another_process_is_served_and_stays_reserved() {
    let entered = Arc::new(AtomicI32::new(0));
    let ours = Ports::new(true, vec![Some(Box::new(Counting(entered.clone())))], Ephemeral::default(), Duration::ZERO);
    let theirs = std::net::TcpListener::bind(any_port()).unwrap();
    let at = theirs.local_addr().unwrap();
    assert_eq!(ours.acquire(Protocol::Tcp, at, false).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    let place = ours.acquire_held(Protocol::Tcp, at, false).unwrap();
    // A second core, by each method.
    assert_eq!(ours.acquire(Protocol::Tcp, at, false).unwrap(), place);
    assert_eq!(entered.load(Ordering::Relaxed), 1);
    ours.release(place, false);
    ours.release(place, false);
    assert_eq!(entered.load(Ordering::Relaxed), 0);
    assert_eq!(std::net::TcpListener::bind(at).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    assert_eq!(ours.acquire_held(Protocol::Tcp, any_port(), false).unwrap_err().kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn port_in_time_wait_is_free_and_exclusive() {
    let listener = std::net::TcpListener::bind(any_port()).unwrap();
    let at = listener.local_addr().unwrap();
    let client = std::net::TcpStream::connect(at).unwrap();
    let (server, _) = listener.accept().unwrap();
    drop(server); // Closes first, so `at` has the TIME-WAIT.
    std::io::Read::read(&mut &client, &mut [0]).unwrap();
    drop((client, listener));

    let ours = Ports::new(true, Vec::new(), Ephemeral::default(), Duration::ZERO);
    ours.acquire(Protocol::Tcp, at, false).unwrap();
    let theirs = Ports::new(true, Vec::new(), Ephemeral::default(), Duration::ZERO);
    assert_eq!(theirs.acquire(Protocol::Tcp, at, false).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    assert_eq!(std::net::TcpListener::bind(at).unwrap_err().kind(), io::ErrorKind::AddrInUse);
}

/// A kernel server has closed its listener, and goes on with a connection.
#[test]
fn connection_of_a_closed_kernel_listener_stays_the_kernels() {
    let last = Arc::new(Mutex::new(Share::Leaving));
    let ours =
        Ports::new(true, vec![Some(Box::new(Sharing(last.clone())))], Ephemeral::default(), Duration::from_secs(60));
    let theirs = std::net::TcpListener::bind(any_port()).unwrap();
    let at = theirs.local_addr().unwrap();
    let _client = std::net::TcpStream::connect(at).unwrap();
    let _accepted = theirs.accept().unwrap();
    drop(theirs);
    ours.acquire(Protocol::Tcp, at, false).unwrap();
    assert_eq!((*last.lock().unwrap(), ours.shared_with_kernel()), (Share::Former, vec![at.port()]));
    ours.end_sharing(at.port());
    assert_eq!(*last.lock().unwrap(), Share::Ours);
}

#[test]
fn port_of_standalone_addressing_is_free_after_its_cool_down() {
    let entered = Arc::new(AtomicI32::new(0));
    let ours = Ports::new(false, vec![Some(Box::new(Counting(entered.clone())))], Ephemeral::default(), Duration::ZERO);
    let first = ours.acquire(Protocol::Tcp, any_port(), false).unwrap();
    ours.release(first, true);
    assert_eq!(ours.acquire(Protocol::Tcp, any_port(), false).unwrap(), first);
    assert_eq!(entered.load(Ordering::Relaxed), 1);
}

#[test]
fn port_stays_ours_while_a_connection_still_sends() {
    let cool_down = Duration::from_secs(60);
    let ours = Ports::new(true, Vec::new(), Ephemeral::default(), cool_down);
    let place = ours.acquire(Protocol::Tcp, "[::]:0".parse().unwrap(), false).unwrap();
    let (at, local) = (place.at, SocketAddr::new([10, 9, 0, 1].into(), place.at.port()));
    ours.release(place, true);
    let first = Instant::now() + cool_down;
    let asked = CooledPorts::new(ours.take_cooled(first), 2);
    assert!(ours.take_cooled(first).is_empty(), "they are asked about once");
    asked.answer(std::iter::empty());
    assert!(!asked.is_answered());
    let other = SocketAddr::new(local.ip(), at.port() ^ 1);
    asked.answer([other, local].into_iter());
    assert!(asked.is_answered());
    ours.free_answered(&asked, first);
    assert!(std::net::TcpListener::bind(at).is_err());
    // The connection has ended by the next time.
    ours.free_cooled(first);
    assert!(std::net::TcpListener::bind(at).is_err());
    let second = first + cool_down;
    let asked = CooledPorts::new(ours.take_cooled(second), 1);
    asked.answer([other].into_iter());
    ours.free_answered(&asked, second);
    std::net::TcpListener::bind(at).unwrap();
}

#[test]
fn ports_that_cool_in_the_same_seconds_are_asked_about_in_one_question() {
    let cool_down = Duration::from_secs(60);
    let ours = Ports::new(true, Vec::new(), Ephemeral::default(), cool_down);
    let places = [(); 2].map(|()| ours.acquire(Protocol::Tcp, any_port(), false).unwrap());
    ours.release(places[0], true);
    let between = Instant::now();
    while Instant::now() == between {}
    ours.release(places[1], true);
    let mut questions = CooledQuestions::default();
    let first = between + cool_down;
    assert!(ours.ask(&mut questions, 1, first - Duration::from_secs(1)).is_none());
    let asked = (0..30).filter_map(|second| {
        let question = ours.ask(&mut questions, 1, first + Duration::from_secs(second))?;
        question.answer(std::iter::empty());
        Some(second)
    });
    assert_eq!(asked.collect::<Vec<_>>(), [9], "seconds after the first was cool");
    places.iter().for_each(|place| drop(std::net::TcpListener::bind(place.at).unwrap()));
}

#[test]
fn cores_are_asked_about_no_datagram_port() {
    let ours = Ports::new(true, Vec::new(), Ephemeral::default(), Duration::ZERO);
    let place = ours.acquire(Protocol::Udp, any_port(), false).unwrap();
    ours.release(place, true);
    assert!(ours.ask(&mut CooledQuestions::default(), 1, Instant::now()).is_none());
    std::net::UdpSocket::bind(place.at).unwrap();
}

#[test]
fn place_is_freed_though_a_listener_at_its_address_has_connections() {
    let cool_down = Duration::from_secs(60);
    // The server listens again, for IPv6 only, and a port that it had for one address is at all now.
    for (before, after, local, frees) in [
        (("[::]", false), ("[::]", true), "[2001:db8::1]", true),
        (("[::]", false), ("[::]", true), "10.0.0.1", false),
        (("10.0.0.1", false), ("0.0.0.0", false), "10.0.0.1", true),
        (("10.0.0.1", false), ("[::]", false), "10.0.0.1", true),
        (("10.0.0.1", false), ("[::]", true), "10.0.0.1", false),
        (("0.0.0.0", false), ("10.0.0.1", false), "10.0.0.1", false),
    ] {
        let ours = Ports::new(false, Vec::new(), Ephemeral::default(), cool_down);
        let at = |ip: &str| format!("{ip}:80").parse().unwrap();
        let acquire = |(ip, v6_only)| ours.acquire(Protocol::Tcp, at(ip), v6_only).unwrap();
        let place = acquire(before);
        ours.release(place, true);
        acquire(after);
        let cooled = Instant::now() + cool_down;
        let asked = CooledPorts::new(ours.take_cooled(cooled), 1);
        asked.answer([at(local)].into_iter());
        ours.free_answered(&asked, cooled);
        assert_eq!(!ours.lock().contains_key(&place), frees, "{before:?}, then {after:?}: {local}");
    }
}

#[test]
fn connection_belongs_to_the_places_with_its_address() {
    let has = |at: &str, v6_only, local: &str| {
        let place = LeasedAddress::new(Protocol::Tcp, at.parse().unwrap(), v6_only);
        place.ends().any(|end| place.has(end, local.parse().unwrap()))
    };
    for (at, v6_only, local, expected) in [
        ("[::]:80", false, "10.0.0.1:80", true),
        ("[::]:80", false, "[2001:db8::1]:80", true),
        ("[::]:80", true, "10.0.0.1:80", false),
        ("0.0.0.0:80", false, "10.0.0.1:80", true),
        ("0.0.0.0:80", false, "[2001:db8::1]:80", false),
        ("10.0.0.1:80", false, "10.0.0.1:80", true),
        ("10.0.0.2:80", false, "10.0.0.1:80", false),
        ("[::ffff:10.0.0.1]:80", false, "10.0.0.1:80", true),
        ("[::]:81", false, "10.0.0.1:80", false),
    ] {
        assert_eq!(has(at, v6_only, local), expected, "{at} {local}");
    }
}

#[test]
fn kernel_server_keeps_its_port() {
    let listener = std::net::TcpListener::bind(any_port()).unwrap();
    let at = listener.local_addr().unwrap();
    let ours = Ports::new(true, Vec::new(), Ephemeral::default(), Duration::ZERO);
    assert_eq!(ours.acquire(Protocol::Tcp, at, false).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    let udp = std::net::UdpSocket::bind(any_port()).unwrap();
    let at = udp.local_addr().unwrap();
    assert_eq!(ours.acquire(Protocol::Udp, at, false).unwrap_err().kind(), io::ErrorKind::AddrInUse);
}

/// Returns a listener with some ports after its own.
fn low_listener() -> std::net::TcpListener {
    let listeners = std::iter::repeat_with(|| std::net::TcpListener::bind(any_port()).unwrap());
    listeners.take(1000).find(|listener| listener.local_addr().unwrap().port() <= 60_000).unwrap()
}

#[test]
fn ephemeral_ports_skip_ports_in_use() {
    let busy = low_listener();
    let first = busy.local_addr().unwrap().port();
    let held = reserve_ephemeral(first, 16).unwrap();
    assert_eq!(held.ports.len(), 16);
    assert!(held.ports.iter().all(|port| *port != first));
    let at = SocketAddr::new(own_ip::own_ip(), held.ports[0]);
    assert!(std::net::TcpListener::bind(at).is_err());
    drop(held);
    std::net::TcpListener::bind(at).unwrap();
}

/// A server that has closed its listener goes on with its connections.
#[test]
fn ephemeral_ports_skip_connections_of_a_closed_listener() {
    let listener = low_listener();
    let at = listener.local_addr().unwrap();
    let client = std::net::TcpStream::connect(at).unwrap();
    let server = listener.accept().unwrap();
    drop(listener);
    let held = reserve_ephemeral(at.port(), 4).unwrap();
    assert!(held.ports.len() == 4 && !held.ports.contains(&at.port()), "{:?}, {at}", held.ports);
    drop((client, server));
}

#[test]
fn standalone_ports_ask_no_kernel() {
    let ports = Ports::new(false, Vec::new(), Ephemeral::default(), Duration::ZERO);
    let foreign: SocketAddr = "192.0.2.1:0".parse().unwrap();
    let a = ports.acquire(Protocol::Tcp, foreign, false).unwrap();
    let b = ports.acquire(Protocol::Tcp, foreign, false).unwrap();
    assert_ne!(a, b);
}

#[test]
fn port_cools_down_after_its_last_use() {
    let cool_down = Duration::from_secs(60);
    let ours = Ports::new(true, Vec::new(), Ephemeral::default(), cool_down);
    let place = ours.acquire(Protocol::Tcp, any_port(), false).unwrap();
    let at = place.at;
    ours.release(place, true);
    let first = Instant::now() + cool_down;
    std::thread::sleep(Duration::from_millis(5));
    ours.acquire(Protocol::Tcp, at, false).unwrap();
    ours.release(place, true);
    ours.free_cooled(first);
    assert!(std::net::TcpListener::bind(at).is_err(), "after the first use's time");
    ours.free_cooled(first + 2 * cool_down);
    std::net::TcpListener::bind(at).unwrap();
}

#[test]
fn port_with_past_connections_stays_ours_for_a_while() {
    let cool_down = Duration::from_secs(60);
    let ours = Ports::new(true, Vec::new(), Ephemeral::default(), cool_down);
    let place = ours.acquire(Protocol::Tcp, any_port(), false).unwrap();
    let at = place.at;
    ours.release(place, true);
    ours.free_cooled(Instant::now());
    assert!(std::net::TcpListener::bind(at).is_err());
    // We may use it again at once, and the end of the cool-down then does not free it.
    ours.acquire(Protocol::Tcp, at, false).unwrap();
    ours.free_cooled(Instant::now() + 2 * cool_down);
    assert!(std::net::TcpListener::bind(at).is_err());
    ours.release(place, false);
    ours.free_cooled(Instant::now() + 2 * cool_down);
    std::net::TcpListener::bind(at).unwrap();
}

/// A device's table, which counts entries of an address as [`fs_xdp::PortTable`] does, and records
/// all calls.
#[derive(Default)]
struct Table {
    ends: HashMap<SocketAddr, (u32, Share)>,
    told: Vec<String>,
}

struct Noting(Arc<Mutex<Table>>);
impl PortSink for Noting {
    fn add(&self, _: Protocol, at: SocketAddr, share: Share, _: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut table = self.0.lock().unwrap();
        table.told.push(format!("+{}", at.ip()));
        table.ends.entry(at).or_insert((0, share)).0 += 1;
        Ok(())
    }
    fn share(&self, _: Protocol, at: SocketAddr, share: Share) {
        self.0.lock().unwrap().ends.get_mut(&at).unwrap().1 = share;
    }
    fn remove(&self, _: Protocol, at: SocketAddr) {
        let mut table = self.0.lock().unwrap();
        table.told.push(format!("-{}", at.ip()));
        let end = table.ends.get_mut(&at).unwrap();
        end.0 -= 1;
        if end.0 == 0 {
            table.ends.remove(&at);
        }
    }
    fn unguard(&self) {}
    fn set_addresses(&self, _: &[IpAddr], _: &[IpAddr]) -> io::Result<()> {
        Ok(())
    }
}

/// Creates ports of a runtime with one device, and its recorded table.
fn noting(cool_down: Duration) -> (Ports, Arc<Mutex<Table>>) {
    let table = Arc::new(Mutex::new(Table::default()));
    (Ports::new(true, vec![Some(Box::new(Noting(table.clone())))], Ephemeral::default(), cool_down), table)
}

impl Table {
    fn share(&self, at: &str) -> Option<Share> {
        self.ends.get(&at.parse().unwrap()).map(|(_, share)| *share)
    }
}

/// An IPv6-only listener leaves the IPv4 port to its owner in the kernel.
#[test]
fn ipv6_only_port_takes_no_ipv4() {
    let (ours, table) = noting(Duration::ZERO);
    let since = || std::mem::take(&mut table.lock().unwrap().told);
    let at: SocketAddr = "[::]:7508".parse().unwrap();
    let alone = ours.acquire_held(Protocol::Tcp, at, true).unwrap();
    assert_eq!(since(), ["+::"]);
    // Another socket of the port's group (SO_REUSEPORT) takes both families.
    let both = ours.acquire_held(Protocol::Tcp, at, false).unwrap();
    assert_eq!(since(), ["+::", "+0.0.0.0"]);
    ours.release(both, false);
    assert_eq!(since(), ["-::", "-0.0.0.0"]);
    assert_eq!(table.lock().unwrap().share("[::]:7508"), Some(Share::Former), "it is the other's still");
    ours.release(alone, false);
    assert_eq!(since(), ["-::"]);
    assert!(table.lock().unwrap().ends.is_empty());
}

/// An IPv6-only socket follows one of both families. The last IPv4 packets of the earlier one's
/// connections are ours; the kernel's listener gets new IPv4 connections.
#[test]
fn ipv6_only_port_after_one_of_both_families_takes_no_new_ipv4() {
    let cool_down = Duration::from_secs(60);
    let (ours, table) = noting(cool_down);
    let share = |at: &str| table.lock().unwrap().share(at);
    let at: SocketAddr = "[::]:7509".parse().unwrap();
    let both = ours.acquire_held(Protocol::Tcp, at, false).unwrap();
    ours.share(both, Share::Ours);
    ours.release(both, true);
    assert_eq!((share("[::]:7509"), share("0.0.0.0:7509")), (Some(Share::Leaving), Some(Share::Leaving)));
    let alone = ours.acquire_held(Protocol::Tcp, at, true).unwrap();
    ours.share(alone, Share::Ours);
    assert_eq!((share("[::]:7509"), share("0.0.0.0:7509")), (Some(Share::Former), Some(Share::Leaving)));
    ours.free_cooled(Instant::now() + 2 * cool_down);
    assert_eq!((share("[::]:7509"), share("0.0.0.0:7509")), (Some(Share::Ours), None));

    // Again one of both families, with connections that are open when its listener is closed.
    let both = ours.acquire_held(Protocol::Tcp, at, false).unwrap();
    ours.share(both, Share::Leaving);
    assert_eq!((share("[::]:7509"), share("0.0.0.0:7509")), (Some(Share::Former), Some(Share::Leaving)));
}

/// If one of two places with the same address ends, the other's packets are not affected.
#[test]
fn address_stays_when_one_of_two_places_ends() {
    let (ours, table) = noting(Duration::ZERO);
    let both = ours.acquire_held(Protocol::Tcp, "[::]:7510".parse().unwrap(), false).unwrap();
    let ipv4 = ours.acquire_held(Protocol::Tcp, "0.0.0.0:7510".parse().unwrap(), false).unwrap();
    ours.share(ipv4, Share::Ours);
    ours.release(both, false);
    assert_eq!(table.lock().unwrap().share("0.0.0.0:7510"), Some(Share::Ours));
    ours.release(ipv4, false);
    assert!(table.lock().unwrap().ends.is_empty());
}

/// A reservation for both families that only cools down does not prevent an IPv6-only one, and does
/// not keep IPv4 from other processes. An IPv6-only reservation takes IPv4 only if the kernel
/// permits it.
#[test]
fn reservation_covers_only_the_lease() {
    let cool_down = Duration::from_secs(60);
    let (ours, table) = noting(cool_down);
    let at: SocketAddr = "[::]:0".parse().unwrap();
    let both = match ours.acquire(Protocol::Tcp, at, false) {
        Ok(both) => both,
        // A kernel or namespace without IPv6.
        Err(error) => return assert!(matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL))),
    };
    let ipv4 = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), both.at.port());
    let busy = Some(io::ErrorKind::AddrInUse);
    assert_eq!(ours.acquire(Protocol::Tcp, both.at, true).err().map(|error| error.kind()), busy, "it is in use");
    ours.release(both, true);
    let alone = ours.acquire(Protocol::Tcp, both.at, true).unwrap();
    assert_eq!(table.lock().unwrap().share(&ipv4.to_string()), Some(Share::Leaving));
    let theirs = std::net::TcpListener::bind(ipv4).unwrap();
    // The port is not taken from its owner.
    ours.release(alone, true);
    assert_eq!(ours.acquire(Protocol::Tcp, both.at, false).err().map(|error| error.kind()), busy);
    assert_eq!(table.lock().unwrap().share(&ipv4.to_string()), Some(Share::Leaving));
    drop(theirs);
    let both = ours.acquire(Protocol::Tcp, both.at, false).unwrap();
    assert_eq!(table.lock().unwrap().share(&ipv4.to_string()), Some(Share::Ours));
    ours.free_cooled(Instant::now() + 2 * cool_down);
    assert_eq!(table.lock().unwrap().share(&ipv4.to_string()), Some(Share::Ours), "it is in use");
    ours.release(both, true);
    ours.free_cooled(Instant::now() + 2 * cool_down);
    assert!(table.lock().unwrap().ends.is_empty());
    std::net::TcpListener::bind(both.at).unwrap();
}

/// A port passes from one process to the next with its listening socket, and no connection is refused.
#[test]
fn port_passes_with_its_listening_socket() {
    let (old, old_table) = noting(Duration::from_secs(60));
    let (new, new_table) = noting(Duration::ZERO);
    let place = old.acquire(Protocol::Tcp, any_port(), false).unwrap();
    let (at, port) = (place.at, place.at.port());
    let share = |table: &Arc<Mutex<Table>>| table.lock().unwrap().share(&at.to_string());
    let listening = old.listen(place, 16).unwrap();
    let passed = old.kernel_socket(place).unwrap().unwrap();
    // Two cores of the new process.
    let again = passed.try_clone().unwrap();
    let next = new.acquire_listening(at, false, passed).unwrap();
    assert_eq!((next, new.acquire_listening(at, false, again).unwrap()), (place, place));
    let sockets = [new.listen(next, 16).unwrap(), new.listen(next, 16).unwrap()];
    assert_eq!((share(&old_table), share(&new_table)), (Some(Share::Ours), Some(Share::Former)));
    old.leave(place);
    assert_eq!(share(&old_table), Some(Share::Leaving));
    old.stop_listening(place);
    drop(listening);
    old.release(place, true);
    assert_eq!(share(&old_table), Some(Share::Leaving), "its connections' last packets are the old one's");
    std::net::TcpStream::connect(at).unwrap();
    // The kernel's connections end.
    assert_eq!(new.shared_with_kernel(), [port]);
    new.end_sharing(port);
    assert_eq!((share(&new_table), new.shared_with_kernel()), (Some(Share::Ours), Vec::new()));
    // A device that the process gets later: the kernel has had connections in the meantime.
    let late = Arc::new(Mutex::new(Table::default()));
    new.take_again(0, Box::new(Noting(late.clone())), (&[], true), &Addresses::default()).unwrap();
    assert_eq!((share(&late), new.shared_with_kernel()), (Some(Share::Former), vec![port]));
    // Nothing is left of the socket after the last listener. The next listener has one of its own.
    new.stop_listening(next);
    assert_eq!(share(&late), Some(Share::Former), "the other core listens");
    new.stop_listening(next);
    drop(sockets);
    assert_eq!(share(&late), Some(Share::Leaving));
    std::net::TcpStream::connect(at).unwrap_err();
    new.release(next, true);
    new.release(next, false);
    new.acquire(Protocol::Tcp, at, false).unwrap();
    assert_eq!(share(&late), Some(Share::Ours));
}

/// As in the kernel's bind(2): only link-local addresses have a scope id, and flow labels are
/// ignored.
#[test]
fn place_ignores_flow_label_and_unneeded_scope() {
    let place = |at: &str| LeasedAddress::new(Protocol::Tcp, at.parse().unwrap(), false);
    assert_eq!(place("[::%3]:80"), place("[::]:80"));
    assert_ne!(place("[fe80::1%3]:80"), place("[fe80::1%4]:80"));
    let labelled = SocketAddr::V6(std::net::SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, 80, 7, 0));
    assert_eq!(LeasedAddress::new(Protocol::Tcp, labelled, false), place("[::]:80"));
}

/// A connection outlives its listener and uses the port together with the next listener.
#[test]
fn connection_of_a_former_listener_does_not_free_the_port_of_the_next() {
    let (ours, table) = noting(Duration::ZERO);
    let theirs = std::net::TcpListener::bind(any_port()).unwrap();
    let at = theirs.local_addr().unwrap();
    let place = ours.acquire_listening(at, false, theirs.into()).unwrap();
    let listening = ours.listen(place, 16).unwrap();
    // Of a connection.
    assert_eq!(ours.acquire(Protocol::Tcp, at, false).unwrap(), place);
    drop(listening);
    ours.stop_listening(place);
    ours.release(place, true);
    // The next listener.
    assert_eq!(ours.acquire(Protocol::Tcp, at, false).unwrap(), place);
    // The connection ends.
    ours.release(place, true);
    ours.free_cooled(Instant::now());
    assert!(ours.is_used(place));
    assert_eq!(table.lock().unwrap().share(&at.to_string()), Some(Share::Ours));
    assert_eq!(std::net::TcpListener::bind(at).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    ours.release(place, true);
    ours.free_cooled(Instant::now());
    std::net::TcpListener::bind(at).unwrap();
}

/// A given socket is not closed silently in favour of the one that reserves its address.
#[test]
fn second_given_socket_is_refused() {
    let ours = Ports::new(true, Vec::new(), Ephemeral::default(), Duration::ZERO);
    let reuse = |at: SocketAddr| {
        let socket =
            rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None).unwrap();
        rustix::net::sockopt::set_socket_reuseport(&socket, true).unwrap();
        rustix::net::bind(&socket, &at).unwrap();
        std::net::UdpSocket::from(socket)
    };
    let one = reuse(any_port());
    let at = one.local_addr().unwrap();
    let other = reuse(at);
    // Two cores.
    let place = ours.acquire_by(Protocol::Udp, at, one.try_clone().unwrap().into()).unwrap();
    assert_eq!(ours.acquire_by(Protocol::Udp, at, one.into()).unwrap(), place);
    let refused = ours.acquire_by(Protocol::Udp, at, other.into()).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
    ours.release(place, false);
    ours.release(place, false);
    assert!(!ours.is_used(place));
}
