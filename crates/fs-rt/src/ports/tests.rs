use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// Notes how the last port is shared.
struct Sharing(Arc<Mutex<Share>>);
impl PortSink for Sharing {
    fn add(&self, protocol: Protocol, at: SocketAddr, share: Share) -> io::Result<()> {
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

/// A held port has been the kernel's, and may be again.
#[test]
fn a_held_port_is_shared_with_the_kernel() {
    let last = Arc::new(Mutex::new(Share::Ours));
    let now = || *last.lock().unwrap();
    let cool_down = Duration::from_secs(60);
    let ours = Ports::new(true, vec![Box::new(Sharing(last.clone()))], Active::default(), cool_down);
    let theirs = std::net::TcpListener::bind(any_port()).unwrap();
    let at = theirs.local_addr().unwrap();
    ours.acquire_held(Protocol::Tcp, at, false).unwrap();
    assert_eq!(now(), Share::Former);
    ours.share(Protocol::Tcp, at, Share::Ours);
    assert_eq!(now(), Share::Ours);
    // Another core.
    ours.acquire_held(Protocol::Tcp, at, false).unwrap();
    ours.release(Protocol::Tcp, at, true);
    assert_eq!(now(), Share::Ours);
    assert!(ours.is_used(Protocol::Tcp, at));
    // Its connections' last packets are ours; who listens there now has new ones at once.
    ours.release(Protocol::Tcp, at, true);
    assert_eq!(now(), Share::Leaving);
    assert!(!ours.is_used(Protocol::Tcp, at));
    ours.share(Protocol::Tcp, at, Share::Ours);
    assert_eq!(now(), Share::Leaving);
    ours.acquire_held(Protocol::Tcp, at, false).unwrap();
    assert_eq!(now(), Share::Former);
    // One that is reserved for us is nobody else's.
    let reserved = ours.acquire(Protocol::Tcp, any_port(), false).unwrap();
    assert_eq!(now(), Share::Ours);
    ours.share(Protocol::Tcp, reserved, Share::Leaving);
    assert_eq!(now(), Share::Ours);
}

struct Counting(Arc<AtomicI32>);
impl PortSink for Counting {
    fn add(&self, _: Protocol, _: SocketAddr, _: Share) -> io::Result<()> {
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
    "127.0.0.1:0".parse().unwrap()
}

#[test]
fn cores_share_a_port_and_strangers_do_not() {
    let entered = Arc::new(AtomicI32::new(0));
    let ours = Ports::new(true, vec![Box::new(Counting(entered.clone()))], Active::default(), Duration::ZERO);
    let at = ours.acquire(Protocol::Tcp, any_port(), false).unwrap();
    assert_ne!(at.port(), 0);
    assert_eq!(ours.acquire(Protocol::Tcp, at, false).unwrap(), at);
    assert_eq!(entered.load(Ordering::Relaxed), 1);

    let theirs = Ports::new(true, Vec::new(), Active::default(), Duration::ZERO);
    assert_eq!(theirs.acquire(Protocol::Tcp, at, false).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    assert_eq!(std::net::TcpListener::bind(at).unwrap_err().kind(), io::ErrorKind::AddrInUse);

    ours.release(Protocol::Tcp, at, false);
    assert_eq!(theirs.acquire(Protocol::Tcp, at, false).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    ours.release(Protocol::Tcp, at, false);
    assert_eq!(entered.load(Ordering::Relaxed), 0);
    theirs.acquire(Protocol::Tcp, at, false).unwrap();
}

#[test]
fn a_port_that_another_holds_is_served_and_stays_his() {
    let entered = Arc::new(AtomicI32::new(0));
    let ours = Ports::new(true, vec![Box::new(Counting(entered.clone()))], Active::default(), Duration::ZERO);
    let theirs = std::net::TcpListener::bind(any_port()).unwrap();
    let at = theirs.local_addr().unwrap();
    assert_eq!(ours.acquire(Protocol::Tcp, at, false).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    assert_eq!(ours.acquire_held(Protocol::Tcp, at, false).unwrap(), at);
    // A second core, by either way.
    assert_eq!(ours.acquire(Protocol::Tcp, at, false).unwrap(), at);
    assert_eq!(entered.load(Ordering::Relaxed), 1);
    ours.release(Protocol::Tcp, at, false);
    ours.release(Protocol::Tcp, at, false);
    assert_eq!(entered.load(Ordering::Relaxed), 0);
    assert_eq!(std::net::TcpListener::bind(at).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    assert_eq!(ours.acquire_held(Protocol::Tcp, any_port(), false).unwrap_err().kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn a_port_with_only_time_waits_is_free_and_stays_exclusive() {
    let listener = std::net::TcpListener::bind(any_port()).unwrap();
    let at = listener.local_addr().unwrap();
    let client = std::net::TcpStream::connect(at).unwrap();
    let (server, _) = listener.accept().unwrap();
    drop(server); // closes first: its TIME-WAIT stays on `at`
    std::io::Read::read(&mut &client, &mut [0]).unwrap();
    drop((client, listener));

    let ours = Ports::new(true, Vec::new(), Active::default(), Duration::ZERO);
    ours.acquire(Protocol::Tcp, at, false).unwrap();
    let theirs = Ports::new(true, Vec::new(), Active::default(), Duration::ZERO);
    assert_eq!(theirs.acquire(Protocol::Tcp, at, false).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    assert_eq!(std::net::TcpListener::bind(at).unwrap_err().kind(), io::ErrorKind::AddrInUse);
}

#[test]
fn a_kernel_server_is_not_pushed_aside() {
    let listener = std::net::TcpListener::bind(any_port()).unwrap();
    let at = listener.local_addr().unwrap();
    let ours = Ports::new(true, Vec::new(), Active::default(), Duration::ZERO);
    assert_eq!(ours.acquire(Protocol::Tcp, at, false).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    let udp = std::net::UdpSocket::bind(any_port()).unwrap();
    let at = udp.local_addr().unwrap();
    assert_eq!(ours.acquire(Protocol::Udp, at, false).unwrap_err().kind(), io::ErrorKind::AddrInUse);
}

#[test]
fn active_ports_skip_busy_ones() {
    let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let first = busy.local_addr().unwrap().port();
    if first > 60_000 {
        return; // too near the end of the port space for this test's arithmetic
    }
    let held = reserve_active(first, 16).unwrap();
    assert_eq!(held.ports.len(), 16);
    assert!(held.ports.iter().all(|port| *port != first));
    let port = held.ports[0];
    assert!(std::net::TcpListener::bind(("127.0.0.1", port)).is_err());
    drop(held);
    std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
}

#[test]
fn standalone_ports_ask_no_kernel() {
    let ports = Ports::new(false, Vec::new(), Active::default(), Duration::ZERO);
    let foreign: SocketAddr = "192.0.2.1:0".parse().unwrap();
    let a = ports.acquire(Protocol::Tcp, foreign, false).unwrap();
    let b = ports.acquire(Protocol::Tcp, foreign, false).unwrap();
    assert_ne!(a, b);
}

#[test]
fn a_port_cools_down_after_its_last_use() {
    let cool_down = Duration::from_millis(500);
    let ours = Ports::new(true, Vec::new(), Active::default(), cool_down);
    let at = ours.acquire(Protocol::Tcp, any_port(), false).unwrap();
    ours.release(Protocol::Tcp, at, true);
    let first = Instant::now() + cool_down;
    std::thread::sleep(Duration::from_millis(5));
    ours.acquire(Protocol::Tcp, at, false).unwrap();
    ours.release(Protocol::Tcp, at, true);
    ours.free_cooled(first);
    assert!(std::net::TcpListener::bind(at).is_err(), "after the first use's time");
    ours.free_cooled(first + 2 * cool_down);
    std::net::TcpListener::bind(at).unwrap();
}

#[test]
fn a_port_that_carried_connections_stays_ours_for_a_while() {
    let cool_down = Duration::from_secs(60);
    let ours = Ports::new(true, Vec::new(), Active::default(), cool_down);
    let at = ours.acquire(Protocol::Tcp, any_port(), false).unwrap();
    ours.release(Protocol::Tcp, at, true);
    ours.free_cooled(Instant::now());
    assert!(std::net::TcpListener::bind(at).is_err());
    // We may use it again at once, and then the cool-down's end does not take it away.
    ours.acquire(Protocol::Tcp, at, false).unwrap();
    ours.free_cooled(Instant::now() + 2 * cool_down);
    assert!(std::net::TcpListener::bind(at).is_err());
    ours.release(Protocol::Tcp, at, false);
    ours.free_cooled(Instant::now() + 2 * cool_down);
    std::net::TcpListener::bind(at).unwrap();
}

/// Whose devices' programs were told what.
struct Noting(Arc<Mutex<Vec<String>>>);
impl PortSink for Noting {
    fn add(&self, _: Protocol, at: SocketAddr, _: Share) -> io::Result<()> {
        self.0.lock().unwrap().push(format!("+{}", at.ip()));
        Ok(())
    }
    fn share(&self, _: Protocol, _: SocketAddr, _: Share) {}
    fn remove(&self, _: Protocol, at: SocketAddr) {
        self.0.lock().unwrap().push(format!("-{}", at.ip()));
    }
    fn unguard(&self) {}
    fn set_addresses(&self, _: &[IpAddr], _: &[IpAddr]) -> io::Result<()> {
        Ok(())
    }
}

/// What listens for IPv6 alone leaves the IPv4 port to whoever has it in the kernel.
#[test]
fn a_port_of_ipv6_alone_takes_nothing_of_ipv4() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let since = || std::mem::take(&mut *told.lock().unwrap());
    let ours = Ports::new(true, vec![Box::new(Noting(told.clone()))], Active::default(), Duration::ZERO);
    let at: SocketAddr = "[::]:7508".parse().unwrap();
    ours.acquire_held(Protocol::Tcp, at, true).unwrap();
    assert_eq!(since(), ["+::"]);
    // Another socket of the port's group (SO_REUSEPORT) takes both.
    ours.acquire_held(Protocol::Tcp, at, false).unwrap();
    assert_eq!(since(), ["+0.0.0.0"]);
    ours.release(Protocol::Tcp, at, false);
    assert_eq!(since(), [""; 0]);
    ours.release(Protocol::Tcp, at, false);
    assert_eq!(since(), ["-::", "-0.0.0.0"]);
    ours.acquire_held(Protocol::Tcp, at, false).unwrap();
    assert_eq!(since(), ["+::", "+0.0.0.0"]);
}
