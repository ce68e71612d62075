//! Forged cookies, cores, and segments of closed connections.

use crate::floods::forged_syn;
use crate::{OFFER, connected, listening, plan, sent, works};
use fs_core::{CoreMessage, DropReason, Duration, FramePool, Keepalive, ListenerId, Shutdown, TcpOptions};
use fs_fuzz::host::Host;
use fs_fuzz::packet::{ACK, FIN, PSH, RST, SYN, Tcp, timestamps};
use fs_fuzz::peer::{Offer, PORT, Peer, segment};

#[test]
fn syn_cookie_forgery() {
    let (mut host, listener) = listening(plan());
    // A flood has made the stack use cookies.
    for n in 0..200 {
        host.receive(&forged_syn(n), true);
    }
    sent(&mut host);
    assert!(host.stack.stats().syn_cookies_sent > 100);
    for n in 0..200_000u32 {
        let mut out = Vec::new();
        let ts = timestamps(5, n);
        let (seq, ack) = (n, n.wrapping_mul(0x9e37_79b1));
        Tcp { from: 7, to: PORT, seq, ack, flags: ACK | PSH, options: &ts, payload: b"GET /", ..Tcp::default() }
            .write(&mut out, false);
        host.receive(&out, true);
    }
    assert_eq!(sent(&mut host), 0, "a guess gets no answer");
    assert_eq!((host.stack.stats().accepted, host.stack.tcp_connections()), (0, 0));
    // A genuine cookie that is too old.
    let mut old = Peer::open(&mut host, listener, 2000, 60_000, OFFER).unwrap();
    host.stack.tcp_abort(old.1);
    sent(&mut host);
    host.advance(Duration::from_secs(200));
    sent(&mut host);
    let (seq, ack) = (old.0.seq, old.0.ack);
    for flooded in [false, true] {
        if flooded {
            // Cookies are valid again, but not this one.
            for n in 0..200 {
                host.receive(&forged_syn(1000 + n), true);
            }
            sent(&mut host);
        }
        old.0.send(&mut host, ACK, seq, ack, &[], &[]);
        assert_eq!(host.stack.tcp_connections(), 0, "a cookie ends after two minutes");
    }
}

#[test]
fn cookies_only_when_needed() {
    // In quiet times an ACK cannot be a cookie, so there is nothing to guess.
    let (mut host, _) = listening(plan());
    let mut out = Vec::new();
    Tcp { from: 7, to: PORT, seq: 1, ack: 2, flags: ACK, ..Tcp::default() }.write(&mut out, false);
    host.receive(&out, true);
    let mut reset = false;
    host.transmit(64, false, |packet| reset = segment(packet).unwrap().flags.rst());
    assert!(reset);
}

/// Returns a connection in TIME-WAIT, closed first by our side, and its peer.
fn in_time_wait() -> (Host, Peer) {
    let (host, _, peer) = in_time_wait_of();
    (host, peer)
}

/// Like [`in_time_wait`], with the listener.
fn in_time_wait_of() -> (Host, ListenerId, Peer) {
    let (mut host, listener, mut peer, id) = connected(plan());
    host.stack.tcp_shutdown(id, Shutdown::Write).unwrap();
    sent(&mut host);
    peer.ack = peer.ack.wrapping_add(1);
    let (seq, ack) = (peer.seq, peer.ack);
    peer.send(&mut host, ACK | FIN, seq, ack, &[], &[]);
    peer.seq = peer.seq.wrapping_add(1);
    sent(&mut host);
    host.stack.tcp_close(id);
    assert_eq!(host.stack.tcp_time_waits(), 1);
    (host, listener, peer)
}

#[test]
fn syn_without_listener_keeps_time_wait() {
    // A new incarnation needs a listener. Without one, as at a client, a forged SYN must not end
    // TIME-WAIT; it causes an ACK, as on Linux.
    let (mut host, listener, mut peer) = in_time_wait_of();
    host.stack.tcp_close_listener(listener);
    peer.ts = peer.ts.map(|(val, ecr)| (val.wrapping_add(5000), ecr));
    let new = peer.seq.wrapping_add(100_000);
    peer.send(&mut host, SYN, new, 0, &[], &[]);
    let mut reset = false;
    host.transmit(64, false, |packet| reset |= segment(packet).unwrap().flags.rst());
    assert_eq!((reset, host.stack.tcp_time_waits()), (false, 1));
}

#[test]
fn time_wait_assassination() {
    // RFC 1337: an old duplicate causes an ACK, and the peer's RST to that ACK ends TIME-WAIT
    // early. A RST must be exact.
    let (mut host, mut peer) = in_time_wait();
    for delta in [1u32, 100, 0xffff_ffff, 0x7fff_ffff, 0u32.wrapping_sub(5000)] {
        let seq = peer.seq.wrapping_add(delta);
        peer.send(&mut host, RST, seq, 0, &[], &[]);
        assert_eq!(sent(&mut host), 0);
    }
    assert_eq!(host.stack.tcp_time_waits(), 1, "no stray RST ends it");
    // Old text and an old SYN are answered with an ACK, and open nothing. Their timestamps are old,
    // too.
    peer.ts = peer.ts.map(|(val, ecr)| (val.wrapping_sub(500), ecr));
    let (old, ack) = (peer.seq.wrapping_sub(3), peer.ack);
    peer.send(&mut host, ACK | PSH, old, ack, &[], b"xyz");
    assert!(sent(&mut host) <= 1);
    peer.send(&mut host, SYN, old, 0, &[], &[]);
    assert!(sent(&mut host) <= 1);
    assert_eq!((host.stack.tcp_time_waits(), host.stack.tcp_handshakes(), host.stack.tcp_connections()), (1, 0, 0));
    // A new incarnation (RFC 6191) is accepted.
    peer.ts = peer.ts.map(|(val, ecr)| (val.wrapping_add(5000), ecr));
    let new = peer.seq.wrapping_add(100_000);
    peer.send(&mut host, SYN, new, 0, &[], &[]);
    assert_eq!((sent(&mut host), host.stack.tcp_time_waits(), host.stack.tcp_handshakes()), (1, 0, 1));
}

#[test]
fn time_wait_bucket_overflow() {
    // More connections than records: the oldest are evicted, and memory does not grow.
    let mut plan = plan();
    plan.limits.time_wait = 10;
    let (mut host, listener) = listening(plan);
    for n in 0..200 {
        let (mut peer, id) = Peer::open(&mut host, listener, 1000 + n, 60_000, OFFER).unwrap();
        works(&mut host, &mut peer, id, b"hello");
        host.stack.tcp_shutdown(id, Shutdown::Write).unwrap();
        sent(&mut host);
        let (seq, ack) = (peer.seq, peer.ack.wrapping_add(1));
        peer.send(&mut host, ACK | FIN, seq, ack, &[], &[]);
        sent(&mut host);
        host.stack.tcp_close(id);
        assert!(host.stack.tcp_time_waits() <= 10 && host.stack.pool().in_use() == 0);
    }
}

/// A client that opens one connection again and again, each time from the same port (RFC 6191),
/// leaves one record. Their timer entries must not add up for 60 s, whether or not the record of
/// another client is due before them.
#[test]
fn reuse_flood_in_time_wait() {
    for first in [false, true] {
        let mut plan = plan();
        plan.limits.time_wait = 10;
        let (mut host, listener) = listening(plan);
        let mut close = |from: u16, n: u32| {
            let offer = Offer { isn: OFFER.isn.wrapping_add(n * 100_000), timestamps: false, ..OFFER };
            let (mut peer, id) = Peer::open(&mut host, listener, from, 60_000, offer).unwrap();
            host.stack.tcp_shutdown(id, Shutdown::Write).unwrap();
            sent(&mut host);
            let (seq, ack) = (peer.seq, peer.ack.wrapping_add(1));
            peer.send(&mut host, ACK | FIN, seq, ack, &[], &[]);
            sent(&mut host);
            host.stack.tcp_close(id);
            // The entries of the timer wheel become due: they are not what is counted here.
            host.advance(Duration::from_millis(40));
            (host.stack.tcp_time_waits(), host.stack.footprint())
        };
        if first {
            close(999, 0);
        }
        let before = (0..200).map(|n| close(1000, n).1).last().unwrap();
        for n in 200..1000 {
            let (records, footprint) = close(1000, n);
            assert!(records <= 1 + usize::from(first), "{records}");
            assert!(footprint <= before + 200, "{n}: {before} became {footprint}");
        }
    }
}

#[test]
fn steering_forgery() {
    // A peer chooses ports and timestamps that name any core: each packet makes one round of the
    // cores, visits only cores that exist, and leaves nothing behind.
    let mut plan = plan();
    plan.cores = (1, 3);
    let mut host = Host::new(plan);
    let mut outbound = Vec::new();
    let mut forwarded = 0;
    for n in 0..20_000u32 {
        let mut out = Vec::new();
        let ts = timestamps(n, n.wrapping_mul(0x9e37_79b1));
        let (from, to) = ((n % 1500) as u16, (n.wrapping_mul(77) % 65_535) as u16 + 1);
        let flags = [ACK, SYN, SYN | ACK, RST, FIN | ACK][n as usize % 5];
        Tcp { from, to, seq: n, ack: n, flags, options: &ts, ..Tcp::default() }.write(&mut out, false);
        host.receive(&out, true);
        host.stack.drain_outbound(&mut outbound);
        assert!(outbound.len() <= 1, "one packet, one hop");
        for message in outbound.drain(..) {
            assert!(message.to.0 < 3 && message.to.0 != 1, "to a core that exists, and not to itself");
            let CoreMessage::Packet(packet) = message.message else { panic!("a packet") };
            forwarded += 1;
            assert_eq!(packet.hops, 1);
            // A packet that has visited the named core and then all cores is not forwarded again.
            let packet = fs_core::Packet { hops: 4, ..packet };
            host.stack.deliver(CoreMessage::Packet(packet));
            let mut more = Vec::new();
            host.stack.drain_outbound(&mut more);
            assert!(more.is_empty(), "after a round it ends");
        }
        host.transmit(64, false, |_| {});
    }
    assert!(forwarded > 1000);
    assert_eq!(host.stack.pool().in_use(), 0);
    assert!(host.stack.stats().dropped(DropReason::NobodysFlow) > 0);
}

#[test]
fn search_for_owners_is_rate_limited() {
    // Segments without connection, which other cores may own: each search costs a receive on all of
    // them.
    for echo in [0, 1] {
        let mut plan = plan();
        plan.cores = (1, 3);
        let mut host = Host::new(plan);
        let mut outbound = Vec::new();
        let (mut asked, mut answered) = (0, 0);
        for n in 0..20_000u32 {
            let mut out = Vec::new();
            // A timestamp may name this core or another.
            let ts = timestamps(n, echo * n.wrapping_mul(0x9e37_79b1));
            Tcp { from: 1500, to: (n % 5000) as u16 + 1, seq: n, ack: n, flags: ACK, options: &ts, ..Tcp::default() }
                .write(&mut out, false);
            host.receive(&out, true);
            host.stack.drain_outbound(&mut outbound);
            for message in outbound.drain(..) {
                let CoreMessage::Packet(packet) = message.message else { panic!("a packet") };
                asked += 1;
                // No core owns it.
                host.stack.deliver(CoreMessage::Packet(fs_core::Packet { hops: 4, ..packet }));
            }
            host.transmit(64, false, |_| answered += 1);
        }
        let forwarded = host.stack.stats().packets_forwarded;
        assert!(
            (1000..=4096 + forwarded).contains(&asked),
            "{asked} asked about, {forwarded} of them by their timestamps"
        );
        assert!(answered <= asked, "{answered} replies: a packet that was not searched for may have an owner");
        assert!(host.stack.stats().dropped(DropReason::NobodysFlow) >= 20_000 - answered);
        assert_eq!(host.stack.pool().in_use(), 0);
    }
}

/// ICMP errors that quote a connection which other cores may own.
#[test]
fn search_for_owners_of_icmp_errors_is_rate_limited() {
    let mut plan = plan();
    plan.cores = (1, 3);
    let mut host = Host::new(plan);
    host.stack.tcp_listen(fs_fuzz::peer::listen()).unwrap();
    let (mut outbound, mut asked) = (Vec::new(), 0);
    for n in 0..20_000u32 {
        let forged = crate::icmp::error(3, 3, 0, fs_fuzz::peer::PORT, (n % 60_000) as u16 + 1, n);
        host.receive(&forged, false);
        host.stack.drain_outbound(&mut outbound);
        for message in outbound.drain(..) {
            let CoreMessage::Packet(packet) = message.message else { continue };
            asked += 1;
            // No core owns it.
            host.stack.deliver(CoreMessage::Packet(fs_core::Packet { hops: 4, ..packet }));
        }
    }
    let forwarded = host.stack.stats().packets_forwarded;
    assert!((1000..=4096 + forwarded).contains(&asked), "{asked} asked about, {forwarded} forwarded");
    assert_eq!(host.stack.pool().in_use(), 0);
}

#[test]
fn fast_open_cookie_forgery() {
    use fs_fuzz::peer::listen;
    let mut plan = plan();
    plan.tcp.fast_open.server = true;
    let mut host = Host::new(plan);
    let listener = host.stack.tcp_listen(fs_core::Listen { fast_open: 8, backlog: 100, ..listen() }).unwrap();
    let syn = |host: &mut Host, from: u16, source: [u8; 4], cookie: &[u8]| {
        let mut options = OFFER.options();
        options.extend_from_slice(&[34, 2 + cookie.len() as u8]);
        options.extend_from_slice(cookie);
        let mut out = Vec::new();
        let (options, payload, source) = (&options[..], &b"GET /"[..], Some(source));
        Tcp { from, to: PORT, seq: 9, flags: SYN, window: 1000, options, payload, source, ..Tcp::default() }
            .write(&mut out, false);
        host.receive(&out, true);
        let mut given = Vec::new();
        host.transmit(64, false, |packet| {
            let s = segment(packet).unwrap();
            if let Some(at) = s.options(packet).windows(2).position(|w| w == [34, 10]) {
                given = s.options(packet)[at + 2..at + 10].to_vec();
            }
        });
        host.check();
        given
    };
    // Guessed cookies open nothing: the data is not delivered, and the handshake continues like any
    // other.
    let given = syn(&mut host, 1000, [10, 0, 0, 1], &[]);
    assert_eq!(given.len(), 8, "a request gets a cookie");
    for n in 0..50u16 {
        let mut guess = given.clone();
        guess[n as usize % 8] ^= 1 << (n / 8);
        syn(&mut host, 2000 + n, [10, 0, 0, 1], &guess);
    }
    // The cookie is valid for its address alone.
    syn(&mut host, 3000, [10, 0, 0, 9], &given);
    assert_eq!((host.stack.tcp_backlog(listener), host.stack.tcp_connections()), (Ok(0), 0));
    while host.stack.tcp_handshakes() > 0 {
        assert!(host.advance_to_deadline());
        sent(&mut host);
    }
    // A stolen cookie opens connections from its owner's address, up to the listener's limit.
    for n in 0..50u16 {
        syn(&mut host, 4000 + n, [10, 0, 0, 1], &given);
    }
    assert_eq!((host.stack.tcp_backlog(listener), host.stack.tcp_connections()), (Ok(8), 8));
    host.stack.tcp_close_listener(listener);
    fs_fuzz::peer::quiesce(&mut host);
    host.check_empty();
}

#[test]
fn fin_flood_in_time_wait() {
    // Each repeated FIN restarts the 2 MSL; the cost must not depend on their number.
    let (mut host, mut peer) = in_time_wait();
    let before = host.stack.footprint();
    let (seq, ack) = (peer.seq.wrapping_sub(1), peer.ack);
    for n in 0..20_000u32 {
        if n % 100 == 0 {
            host.advance(Duration::from_millis(10));
            peer.ts = peer.ts.map(|(val, ecr)| (val.wrapping_add(1), ecr));
        }
        peer.send(&mut host, ACK | FIN, seq, ack, &[], &[]);
        sent(&mut host);
    }
    assert!(host.stack.footprint() <= before + 64, "{before} became {}", host.stack.footprint());
    // The time begins with the last of them, and ends.
    host.advance(Duration::from_secs(59));
    assert_eq!(host.stack.tcp_time_waits(), 1);
    host.advance(Duration::from_secs(2));
    assert_eq!(host.stack.tcp_time_waits(), 0);
}

#[test]
fn keepalive_leaves_nothing_behind() {
    // An entry of the timer wheel stays until it is due, and keepalive's first is two hours ahead.
    let (mut host, listener) = listening(plan());
    let options = TcpOptions { keepalive: Some(Keepalive::default()), ..TcpOptions::default() };
    let before = host.stack.footprint();
    for n in 0..400 {
        let (_, id) = Peer::open(&mut host, listener, 2000 + n, 60_000, OFFER).unwrap();
        host.stack.tcp_set_options(id, options).unwrap();
        host.stack.tcp_abort(id);
        sent(&mut host);
        host.advance(Duration::from_millis(250));
    }
    host.advance(Duration::from_secs(31));
    assert!(host.stack.footprint() < before + 65_536, "{before} became {}", host.stack.footprint());
    // Nor does each timeout of a connection that continues leave one.
    let (mut peer, id) = Peer::open(&mut host, listener, 1000, 60_000, OFFER).unwrap();
    host.stack.tcp_set_options(id, options).unwrap();
    sent(&mut host);
    let before = host.stack.footprint();
    for _ in 0..500 {
        assert_eq!(host.stack.tcp_send(id, b"x"), Ok(1));
        sent(&mut host);
        peer.ack = peer.ack.wrapping_add(1);
        let (seq, ack) = (peer.seq, peer.ack);
        peer.send(&mut host, ACK, seq, ack, &[], &[]);
        host.advance(Duration::from_millis(300));
        sent(&mut host);
        assert!(host.stack.footprint() < before + 512, "{before} became {}", host.stack.footprint());
    }
}

/// Sends a SYN from the port `from`. Returns the peer after the SYN-ACK.
fn half_open(host: &mut Host, from: u16) -> Peer {
    let mut out = Vec::new();
    let options = OFFER.options();
    let syn = Tcp { from, to: PORT, seq: OFFER.isn, flags: SYN, window: 60_000, options: &options, ..Tcp::default() };
    syn.write(&mut out, false);
    host.receive(&out, true);
    let mut answer = None;
    host.transmit(64, false, |packet| answer = segment(packet));
    let answer = answer.expect("a SYN-ACK");
    let ts = answer.ts.map(|ts| (1001, ts.val));
    let seq = OFFER.isn.wrapping_add(1);
    Peer { from, seq, ack: answer.seq.0.wrapping_add(1), window: 60_000, ts, sack: true, shift: 7, own_shift: 7 }
}

#[test]
fn blind_segments_end_no_handshake() {
    for cores in [(0, 1), (0, 2)] {
        let mut plan = plan();
        plan.cores = cores;
        let (mut host, listener) = listening(plan);
        let mut peer = half_open(&mut host, 1000);
        let (seq, ack) = (peer.seq, peer.ack);
        // From an attacker that knows addresses and ports, but no sequence number: RFC 9293
        // 3.10.7.4 checks the sequence number first.
        for (flags, seq, ack) in [
            (ACK, seq.wrapping_add(1 << 30), ack.wrapping_add(1000)),
            (ACK | PSH, seq.wrapping_sub(70_000), ack.wrapping_sub(1)),
            (SYN, seq.wrapping_add(1 << 30), 0),
            (SYN, seq.wrapping_sub(5000), 0),
        ] {
            peer.send(&mut host, flags, seq, ack, &[], &[]);
            let mut outbound = Vec::new();
            host.stack.drain_outbound(&mut outbound);
            let packets = outbound.iter().filter(|to| matches!(to.message, CoreMessage::Packet(_))).count();
            assert_eq!(packets, 0, "nothing goes to another core");
            sent(&mut host);
        }
        assert_eq!(host.stack.tcp_handshakes(), 1);
        peer.send(&mut host, ACK, seq, ack, &[], &[]);
        let (id, _) = host.stack.tcp_accept(listener).expect("the handshake is completed");
        works(&mut host, &mut peer, id, b"hello");
    }
}
