//! Floods of packets: the resources that they may take, while honest peers still get in.

use crate::{OFFER, connected, listening, plan, sent, works};
use fs_core::internals::parse_syn;
use fs_core::{DropReason, Duration, FramePool, Framing};
use fs_fuzz::host::{Host, Plan};
use fs_fuzz::packet::{ACK, LOCAL, SYN, Tcp, ipv4_from};
use fs_fuzz::peer::{PORT, Peer, segment};

/// Makes a SYN from an address that never replies.
pub(crate) fn forged_syn(n: u32) -> Vec<u8> {
    let mixed = n.wrapping_mul(0x9e37_79b1);
    let [a, b, c, d] = mixed.to_be_bytes();
    let mut out = Vec::new();
    let options = OFFER.options();
    let source = Some([10 + a % 100, b, c, d.clamp(1, 254)]);
    let from = 1024 + (n % 60_000) as u16;
    let syn =
        Tcp { from, to: PORT, seq: mixed, flags: SYN, window: 65535, options: &options, source, ..Tcp::default() };
    syn.write(&mut out, false);
    out
}

#[test]
fn syn_flood() {
    let (mut host, listener) = listening(plan());
    let mut steady = None;
    let (mut packets, mut honest) = (0, Vec::new());
    for n in 0..50_000 {
        host.receive(&forged_syn(n), true);
        packets +=
            host.transmit(64, false, |packet| assert!(packet.len() <= 60, "the answer is no larger than the SYN"));
        if n % 500 == 499 {
            // An honest client, whose options must survive the cookie.
            let from = 2000 + (n / 500) as u16;
            let (mut peer, id) =
                Peer::open(&mut host, listener, from, 60_000, OFFER).expect("an honest client gets in");
            assert_eq!((peer.sack, peer.ts.is_some(), peer.own_shift), (true, true, 7));
            works(&mut host, &mut peer, id, b"hello");
            honest.push((peer, id));
        }
        if n % 10_000 == 9_999 {
            host.advance(Duration::from_millis(100));
            packets += sent(&mut host);
            assert_eq!(host.stack.pool().in_use(), 0, "no frame is held for a handshake");
            assert!(host.stack.tcp_handshakes() <= 64);
            let grown = host.stack.footprint() - honest.len() * 128;
            assert!(*steady.get_or_insert(grown) + 4096 >= grown, "memory stays where the cache's limit has put it");
        }
    }
    let stats = host.stack.stats();
    assert_eq!(stats.accepted, 100);
    assert!(stats.syn_cookies_sent > 49_000 && stats.syn_cookies_ok >= 90, "{stats:?}");
    assert!(packets <= 50_000 + 500 + 64 * 6, "one answer for a SYN: {packets}");
    for (mut peer, id) in honest {
        works(&mut host, &mut peer, id, b"still here");
    }
}

/// A client whose only ACK of a cookie is lost, and which waits for the server's first data, sends
/// keepalive probes: their sequence number is one before the next.
#[test]
fn keepalive_probe_carries_cookie_after_lost_ack() {
    let (mut host, listener) = listening(plan());
    (0..200).for_each(|n| host.receive(&forged_syn(n), true));
    sent(&mut host);
    let (from, options, mut out) = (2000, OFFER.options(), Vec::new());
    let syn = Tcp { from, to: PORT, seq: OFFER.isn, flags: SYN, window: 60_000, options: &options, ..Tcp::default() };
    syn.write(&mut out, false);
    host.receive(&out, true);
    let mut answer = None;
    host.transmit(64, false, |packet| answer = segment(packet).map(|s| (s, parse_syn(s.options(packet)))));
    let (answer, agreed) = answer.expect("a SYN-ACK");
    let mut peer = Peer {
        from,
        seq: OFFER.isn.wrapping_add(1),
        ack: answer.seq.0.wrapping_add(1),
        window: 60_000,
        ts: agreed.timestamps.map(|ts| (1001, ts.val)),
        sack: agreed.sack_permitted,
        shift: agreed.window_scale.unwrap_or(0),
        own_shift: agreed.window_scale.and(OFFER.shift).unwrap_or(0),
    };
    assert_eq!(host.stack.stats().syn_cookies_ok, 0);
    host.advance(Duration::from_secs(20));
    // Not with data: the peer would then send the byte before, which was its SYN.
    peer.send(&mut host, ACK, OFFER.isn, peer.ack, &[], b"?");
    assert_eq!(host.stack.tcp_connections(), 0);
    peer.send(&mut host, ACK, OFFER.isn, peer.ack, &[], &[]);
    let (id, _) = host.stack.tcp_accept(listener).expect("accepted by its cookie");
    assert_eq!(host.stack.stats().syn_cookies_ok, 1);
    sent(&mut host);
    works(&mut host, &mut peer, id, b"hello");
}

#[test]
fn unfinished_handshakes() {
    let (mut host, listener) = listening(plan());
    // Fewer than the cache holds, so that no cookie is needed; their final ACKs never arrive.
    for n in 0..60 {
        host.receive(&forged_syn(n), true);
    }
    let mut packets = sent(&mut host);
    assert_eq!(host.stack.tcp_handshakes(), 60);
    let (mut peer, id) = Peer::open(&mut host, listener, 2000, 60_000, OFFER).expect("an honest client gets in");
    while host.stack.tcp_handshakes() > 0 {
        assert!(host.advance_to_deadline());
        packets += sent(&mut host);
    }
    // Linux's five retransmissions, one, two, four … seconds after the SYN.
    assert_eq!(packets, 60 * 6);
    assert!(host.now.as_millis() < 70_000, "{:?}", host.now);
    works(&mut host, &mut peer, id, b"hello");
}

#[test]
fn unaccepted_connections() {
    let (mut host, listener) = listening(plan());
    let mut peers = Vec::new();
    for n in 0..300u16 {
        let options = OFFER.options();
        let mut out = Vec::new();
        let syn =
            Tcp { from: 3000 + n, to: PORT, seq: 7, flags: SYN, window: 65535, options: &options, ..Tcp::default() };
        syn.write(&mut out, false);
        host.receive(&out, true);
        let mut answer = None;
        host.transmit(64, false, |p| answer = segment(p).map(|s| (s.seq.0, parse_syn(s.options(p)).timestamps)));
        let Some((iss, Some(ts))) = answer else { break };
        let ack = iss.wrapping_add(1);
        let ts = fs_fuzz::packet::timestamps(1001, ts.val);
        out.clear();
        let last =
            Tcp { from: 3000 + n, to: PORT, seq: 8, ack, flags: ACK, window: 512, options: &ts, ..Tcp::default() };
        last.write(&mut out, false);
        host.receive(&out, true);
        peers.push(n);
        host.check();
    }
    assert_eq!(peers.len(), 100, "the backlog's hundred, and then silence");
    assert_eq!(host.stack.tcp_backlog(listener), Ok(100));
    assert!(host.stack.stats().dropped(DropReason::ListenOverflow) > 0);
    // An application that resumes finds them, and there is space again.
    for _ in 0..100 {
        let (id, _) = host.stack.tcp_accept(listener).unwrap();
        host.stack.tcp_abort(id);
    }
    sent(&mut host);
    assert!(Peer::open(&mut host, listener, 2000, 60_000, OFFER).is_some());
}

/// The SYNs arrive while there is space, and their final ACKs all at once.
#[test]
fn unaccepted_connections_at_final_ack() {
    let (mut host, listener) = listening(plan());
    let tcp =
        |n: u16, seq, ack, flags| Tcp { from: 3000 + n, to: PORT, seq, ack, flags, window: 512, ..Tcp::default() };
    let mut out = Vec::new();
    // The second sixty find the queue with space for forty, and all of their SYNs are answered.
    for round in 0..2u16 {
        let mut acks = Vec::new();
        for n in 60 * round..60 * (round + 1) {
            out.clear();
            tcp(n, 7, 0, SYN).write(&mut out, false);
            host.receive(&out, true);
            host.transmit(64, false, |p| acks.push((n, segment(p).unwrap().seq.0.wrapping_add(1))));
        }
        assert_eq!(acks.len(), 60);
        for (n, ack) in acks {
            out.clear();
            tcp(n, 8, ack, ACK).write(&mut out, false);
            host.receive(&out, true);
        }
    }
    assert_eq!(host.stack.tcp_backlog(listener), Ok(100), "no more than the backlog, however they come");
    assert!(host.stack.stats().dropped(DropReason::ListenOverflow) > 0);
    // Another listen(2) raises the backlog, or keeps the connections that wait.
    host.stack.tcp_set_listener_backlog(listener, 101).unwrap();
    assert!(Peer::open(&mut host, listener, 2000, 60_000, OFFER).is_some(), "the next after the hundred");
    host.stack.tcp_set_listener_backlog(listener, 0).unwrap();
    assert_eq!(host.stack.tcp_backlog(listener), Ok(100));
}

/// Makes an ARP request for our address, from a host on the link.
fn arp(n: u32) -> Vec<u8> {
    let [_, b, c, d] = n.to_be_bytes();
    let mut out = vec![0xff; 6];
    out.extend_from_slice(&[2, 9, 9, b, c, d, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 9, 9, b, c, d, 10, b, c, d]);
    out.extend_from_slice(&[0; 6]);
    out.extend_from_slice(&LOCAL);
    out
}

#[test]
fn neighbour_table_flood_by_arp() {
    let mut host = Host::new(Plan { framing: Framing::Ethernet, ..plan() });
    let before = host.stack.footprint();
    let mut replies = 0;
    for n in 1..60_000 {
        // Each of them claims to be on the link.
        host.receive(&arp(n), false);
        let answers = host.transmit(64, false, |packet| assert_eq!(packet[12..14], [8, 6]));
        assert!(answers <= 1, "at most the reply");
        replies += answers;
    }
    assert!(replies > 50_000, "{replies} replies: the others were not read");
    assert_eq!(host.stack.footprint(), before, "requests make no entry");
    assert_eq!(host.stack.pool().in_use(), 0);
}

#[test]
fn neighbour_table_flood_by_answers_to_forged_syns() {
    let (mut host, listener) = listening(Plan { framing: Framing::Ethernet, ..plan() });
    let link = |ip: &[u8]| [&[2, 0, 0, 0, 0, 2, 2, 9, 9, 9, 9, 9, 8, 0], ip].concat();
    let mut most = 0;
    for n in 0..40_000 {
        // Each forged address is on the link, and would have to be resolved.
        host.receive(&link(&forged_syn(n)), true);
        if n % 64 == 0 {
            host.advance(Duration::from_millis(1));
        }
        host.transmit(64, false, |_| {});
        most = most.max(host.stack.pool().in_use());
    }
    assert!(most <= host.stack.pool().capacity() / 2, "{most} frames wait for neighbours that do not exist");
    // A neighbour that is known by then, and one that replies, get through.
    let honest = [10, 0, 0, 1];
    host.stack.set_neighbour(fs_fuzz::host::IFACE, honest.into(), Some([2, 0, 0, 0, 0, 1]));
    let options = OFFER.options();
    let mut out = Vec::new();
    let syn = Tcp { from: 5000, to: PORT, seq: 7, flags: SYN, window: 65535, options: &options, ..Tcp::default() };
    syn.write(&mut out, false);
    host.receive(&link(&out), true);
    let mut answered = false;
    host.transmit(64, false, |p| answered |= p[12..14] == [8, 0] && p[30..34] == honest);
    assert!(answered, "an honest client's SYN is answered");
    while host.stack.tcp_handshakes() > 0 {
        assert!(host.advance_to_deadline());
        host.transmit(64, false, |_| {});
    }
    host.stack.tcp_close_listener(listener);
}

#[test]
fn one_path_for_all_peers_of_a_raw_link() {
    // Once, each peer of a TUN device took an entry of a table of 16384, and after that many no new
    // peer got a reply.
    let (mut host, listener) = listening(plan());
    let mut answers = 0;
    for n in 0..20_000 {
        host.receive(&forged_syn(n), true);
        answers += host.transmit(64, false, |_| {});
    }
    assert_eq!((answers, host.stack.stats().dropped(DropReason::NoRoute)), (20_000, 0));
    assert!(Peer::open(&mut host, listener, 2000, 60_000, OFFER).is_some());
}

#[test]
fn fragment_flood() {
    let (mut host, _, mut peer, id) = connected(plan());
    for n in 0..10_000u16 {
        let mut out = Vec::new();
        ipv4_from([10, 0, 3, 4], &mut out, 6, 0, 1000);
        out[4..6].copy_from_slice(&n.to_be_bytes());
        out[6..8].copy_from_slice(&(0x2000 | (n % 100)).to_be_bytes());
        out[10..12].copy_from_slice(&[0, 0]);
        let sum = fs_core::internals::Sum::of(&out[..20]).finish();
        out[10..12].copy_from_slice(&sum.to_be_bytes());
        out.resize(1020, 0);
        host.receive(&out, true);
        assert_eq!(sent(&mut host), 0);
    }
    assert_eq!(host.stack.pool().in_use(), 0, "no fragment is kept");
    assert_eq!(host.stack.stats().dropped(DropReason::Fragment), 10_000);
    works(&mut host, &mut peer, id, b"hello");
}

#[test]
fn datagram_flood() {
    let (mut host, _, mut peer, id) = connected(plan());
    let socket = host.stack.udp_bind(std::net::SocketAddr::from((LOCAL, 53))).unwrap();
    for n in 0..5000 {
        let mut out = Vec::new();
        ipv4_from([10, 0, 3, 4], &mut out, 17, 0, 8 + 100);
        out.extend_from_slice(&[1, 2, 0, 53, 0, 108, 0, 0]);
        out.resize(128, n as u8);
        host.receive(&out, true);
    }
    let held = host.stack.pool().in_use();
    assert!(held <= host.stack.pool().capacity() / 2, "a socket that is not read holds {held} frames");
    assert!(host.stack.stats().dropped(DropReason::UdpQueueFull) > 0);
    works(&mut host, &mut peer, id, b"hello");
    host.stack.udp_close(socket);
    assert_eq!(host.stack.pool().in_use(), 0);
}

#[test]
fn hash_flooding_of_the_flow_table() {
    use fs_core::FlowKey;
    // The attacker has a stack like ours and finds flows that share a bucket there. Ours has
    // another secret.
    let (theirs, ours) = (Host::new(Plan { last: 77, ..plan() }), Host::new(plan()));
    let key = |n: u32| FlowKey::V4 {
        local: u32::from_be_bytes(LOCAL),
        remote: 0x0a01_0000 + n / 60_000,
        local_port: PORT,
        remote_port: (n % 60_000) as u16,
    };
    const BUCKETS: u64 = 1024;
    let bucket = |hash: u64| ((u128::from(hash) * u128::from(BUCKETS)) >> 64) as usize;
    let chosen: Vec<_> = (0..2_000_000).map(key).filter(|k| bucket(theirs.stack.flow_hash(k)) == 3).collect();
    assert!(chosen.len() > 1500, "they all meet in one bucket of the attacker's table");
    let mut load = vec![0; BUCKETS as usize];
    chosen.iter().for_each(|k| load[bucket(ours.stack.flow_hash(k))] += 1);
    let most = load.iter().max().unwrap();
    assert!(*most < 14, "and are spread over ours: {most} of {} in one", chosen.len());
    // Consecutive flows, as in scans, are spread as well.
    let mut load = vec![0; BUCKETS as usize];
    (0..2048).map(key).for_each(|k| load[bucket(ours.stack.flow_hash(&k))] += 1);
    assert!(*load.iter().max().unwrap() < 14);
}
