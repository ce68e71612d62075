use super::*;
use crate::config::{Cidr, Framing};
use crate::frame::HeapPool;

const FIRST: IfaceId = IfaceId(0);

fn ip(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

/// An interface in host addressing with these addresses.
pub(crate) fn interface(addrs: Vec<Cidr>) -> Interface {
    Interface {
        framing: Framing::Ethernet,
        mac: [2, 0, 0, 0, 0, 1],
        vlan: None,
        mtu: 1500,
        addrs,
        addressing: Addressing::Host,
        tx_checksum: false,
        accept_partial_checksum: false,
    }
}

/// One interface, at 10.0.0.1/24.
pub(crate) fn net_of(framing: Framing, limits: &Limits) -> Net {
    let mut net = Net::new(limits);
    let own = Cidr { addr: ip(1), prefix: 24 };
    let iface = net.add(Interface { framing, ..interface(alloc::vec![own]) });
    assert_eq!(iface, FIRST);
    net.set_routes(alloc::vec![Route { to: own, gateway: None, iface, metric: 0, source: None, refusal: None }]);
    net
}

fn net() -> Net {
    net_of(Framing::Ethernet, &Limits::default())
}

fn packet(pool: &mut HeapPool) -> TxFrame {
    let mut frame = pool.alloc().unwrap();
    frame.grow_back(40);
    TxFrame { frame, checksum: None }
}

#[test]
fn packet_waits_for_neighbour_then_for_turn() {
    let (mut net, mut pool, mut stats) = (net(), HeapPool::new(8, 2048), Stats::default());
    let now = Instant::from_millis(5);
    let path = net.path_to(ip(2), None).unwrap();
    let frame = packet(&mut pool);
    net.send(&mut pool, &mut stats, path, now, frame);
    assert!(net.queue(FIRST).unwrap().is_empty());
    assert_eq!((net.next_deadline(now), net.waiting_and_paths().0), (Some(now), 1));
    let mut failed = Vec::new();
    assert_eq!(net.take_wanted(now, &mut failed), [path]);
    assert!(failed.is_empty() && net.next_deadline(now) > Some(now), "asked once");
    let change = net.set_neighbour(FIRST, ip(2), Some([4; 6]), now);
    assert!(matches!(change, NeighbourChange::Resolved(resolved) if resolved == path));
    net.resolved(&mut pool, &mut stats, path);
    assert_eq!((net.queues()[0].lens(), net.waiting_and_paths().0), ([1, 0, 0], 0));
    // The next packet does not wait.
    let frame = packet(&mut pool);
    net.send(&mut pool, &mut stats, path, now, frame);
    let queue = net.queue_mut(FIRST).unwrap();
    let (first, second) = (queue.pop_control().unwrap(), queue.pop_control().unwrap());
    assert_eq!(
        (first.frame.len(), second.frame.len()),
        (54, 40),
        "its link header was written; the sender of the other packet writes its own"
    );
    pool.free(first.frame);
    pool.free(second.frame);
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn retries_silent_neighbour() {
    let (mut net, now) = (net(), Instant::from_millis(5));
    let path = net.path_to(ip(3), None).unwrap();
    assert!(net.retry(path, now), "nothing is known of it");
    _ = net.set_neighbour(FIRST, ip(3), None, now);
    assert_eq!(net.path(path).state(), PathState::Failed);
    assert!(!net.retry(path, now), "not yet");
    let later = Instant::from_millis(3_600_000);
    assert!(net.retry(path, later) && net.next_deadline(later) == Some(later));
    assert_eq!(net.take_wanted(later, &mut Vec::new()), [path]);
}

#[test]
fn route_and_address_changes_begin_epoch() {
    let mut net = net();
    let epoch = net.route_epoch();
    net.set_routes(Vec::new());
    assert_ne!(net.route_epoch(), epoch);
    assert_eq!(net.path_to(ip(2), None).unwrap_err(), Error::NetworkUnreachable);
    let epoch = net.route_epoch();
    net.update(FIRST, |interface| interface.addrs.clear());
    assert_ne!(net.route_epoch(), epoch);
    assert!(!net.is_local(ip(1)));
}

/// Linux drops packets of a socket to such a destination, and tries again with each retransmission.
#[test]
fn refused_destination_has_no_path() {
    let (mut net, mut pool, mut stats) = (net(), HeapPool::new(8, 2048), Stats::default());
    let own = Cidr { addr: ip(1), prefix: 24 };
    let route = Route { to: own, gateway: None, iface: FIRST, metric: 0, source: None, refusal: None };
    let (mut path, mut epoch) = (net.path_to(ip(2), None).unwrap(), net.route_epoch());
    let before = path;
    let to = Cidr { addr: ip(2), prefix: 32 };
    net.set_routes(alloc::vec![route, Route { to, refusal: Some(crate::config::Refusal::Blackhole), ..route }]);
    assert_eq!(net.path_to(ip(2), None), Err(Error::InvalidInput));
    net.renew(&mut path, &mut epoch, ip(2), None);
    assert_eq!((path, net.path(path).state()), (PathId::NOWHERE, PathState::Stale));
    let frame = packet(&mut pool);
    net.send(&mut pool, &mut stats, path, Instant::from_millis(5), frame);
    assert_eq!((pool.in_use(), net.waiting_and_paths().0), (0, 0), "dropped");
    net.set_routes(alloc::vec![route]);
    net.renew(&mut path, &mut epoch, ip(2), None);
    assert_eq!(path, before);
    // Without any route, the known path stays.
    net.set_routes(Vec::new());
    net.renew(&mut path, &mut epoch, ip(2), None);
    assert_eq!(path, before);
}

#[test]
fn router_message_reduces_mss() {
    let (mut net, now) = (net(), Instant::from_millis(5));
    let path = net.path_to(ip(2), None).unwrap();
    assert_eq!((net.path_mtu(path, ip(2), now), net.mss_to(path, ip(2), now)), (1500, 1460));
    assert!(net.learn_path_mtu(ip(2), 1280, now));
    assert!(!net.learn_path_mtu(ip(2), 1280, now), "no news");
    assert_eq!((net.path_mtu(path, ip(2), now), net.mss_to(path, ip(2), now)), (1280, 1240));
    assert_eq!(net.mss_to(path, ip(4), now), 1460, "another's way");
}

#[test]
fn unqueues_connection() {
    let mut net = net();
    let path = net.path_to(ip(2), None).unwrap();
    let queue = net.queue_of(path).unwrap();
    queue.push_ack(7);
    queue.push_data(7);
    net.unqueue(7);
    assert!(net.queue(FIRST).unwrap().is_empty() && net.queue(IfaceId(1)).is_none());
    assert!(!net.has_several_interfaces());
}

/// Any neighbour can send a SYN from its link-local address. Other connections must not become
/// slower by it.
#[test]
fn link_local_connections_do_not_slow_others() {
    let mut net = Net::new(&Limits::default());
    let key = |remote: &str| FlowKey::new("[2001:db8::1]:80".parse().unwrap(), remote.parse().unwrap()).unwrap();
    let (near, far) = (key("[fe80::2]:5000"), key("[2001:db8::2]:5000"));
    assert!(!net.may_be_bound(&near) && !net.may_be_bound(&far));
    net.note_bound_to("fe80::2".parse().unwrap());
    assert!(net.may_be_bound(&near) && !net.may_be_bound(&far));
    net.note_bound_to("2001:db8::2".parse().unwrap());
    net.note_bound_to("fe80::2".parse().unwrap());
    assert!(net.may_be_bound(&near) && net.may_be_bound(&far));
}
