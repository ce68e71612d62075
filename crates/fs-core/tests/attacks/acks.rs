//! Malicious receivers: forged or withheld ACKs, and forged windows.

use crate::{connected, plan, sent};
use fs_core::internals::SeqNum;
use fs_core::{CongestionControl, DropReason, Duration, Error, Event, FramePool, ListenerId, Ready, Shutdown, TcpId};
use fs_core::{TcpOptions, TcpState};
use fs_fuzz::host::{Host, Plan};
use fs_fuzz::packet::ACK;
use fs_fuzz::peer::{Offer, Peer, segment};

/// Sends an ACK without text.
fn ack(host: &mut Host, peer: &mut Peer, ack: u32, sack: &[(SeqNum, SeqNum)]) {
    if let Some((val, _)) = &mut peer.ts {
        *val += 1;
    }
    let seq = peer.seq;
    peer.send(host, ACK, seq, ack, sack, &[]);
}

/// Returns the segments that the stack sends, as (sequence number, length), up to `packets`.
fn texts(host: &mut Host, peer: &mut Peer) -> Vec<(u32, u32)> {
    let mut list = Vec::new();
    host.transmit(64, false, |packet| {
        let s = segment(packet).unwrap();
        peer.saw(&s);
        if s.payload_len > 0 {
            list.push((s.seq.0, s.payload_len));
        }
    });
    host.check();
    list
}

fn write(host: &mut Host, id: TcpId, n: usize) -> usize {
    host.stack.tcp_send(id, &vec![7; n]).unwrap()
}

/// Returns the algorithms that derive their window from ACKs: all but BBR, which derives it from
/// its rate measurements.
fn led_by_acks() -> impl Iterator<Item = CongestionControl> {
    CongestionControl::ALL.iter().copied().filter(|&by| by != CongestionControl::Bbr)
}

/// A plan with one algorithm, so that windows are comparable.
fn controlled(by: CongestionControl, sack: bool) -> Plan {
    let mut plan = plan();
    (plan.tcp.congestion_control, plan.tcp.sack) = (by, sack);
    plan
}

#[test]
fn ack_of_unsent_data() {
    let (mut host, _, mut peer, id) = connected(plan());
    write(&mut host, id, 50_000);
    let first = texts(&mut host, &mut peer);
    let before = host.stack.sending(id).unwrap();
    let mut answers = 0;
    for ahead in [1, 1000, 0x1000_0000, 0x7fff_ffff] {
        ack(&mut host, &mut peer, before.nxt.wrapping_add(ahead), &[]);
        answers += sent(&mut host);
    }
    assert_eq!(host.stack.sending(id).unwrap(), before, "neither window nor queue has moved");
    assert!(answers <= 1, "RFC 9293 3.10.7.4 wants an ACK, RFC 5961 section 10 not too many");
    assert_eq!(host.stack.stats().dropped(DropReason::BadAck), 4);
    // SACK blocks of data that was never sent are ignored as well.
    let ahead = (SeqNum(before.nxt.wrapping_add(5000)), SeqNum(before.nxt.wrapping_add(9000)));
    let half = (SeqNum(first[9].0), SeqNum(before.nxt.wrapping_add(1)));
    let una = before.una;
    ack(&mut host, &mut peer, una, &[ahead, half]);
    assert_eq!(texts(&mut host, &mut peer), []);
    assert_eq!(host.stack.sending(id).unwrap().flight, before.flight);
}

#[test]
fn optimistic_acks() {
    // Savage et al. 1999: ACKs for data in transit make the sender assume a faster path. They are
    // indistinguishable from a fast path's; but an ACK beyond the sent data is rejected (above),
    // and growth is by bytes.
    for by in led_by_acks() {
        let (mut host, _, mut peer, id) = connected(controlled(by, true));
        write(&mut host, id, 500_000);
        let mut acked = 0;
        let begin = host.stack.sending(id).unwrap();
        for _ in 0..20 {
            // Every segment is acknowledged the moment it is sent.
            for (seq, len) in texts(&mut host, &mut peer) {
                acked += len;
                ack(&mut host, &mut peer, seq.wrapping_add(len), &[]);
            }
            let now = host.stack.sending(id).map_or(begin, |s| s);
            assert!(now.cwnd <= begin.cwnd + acked, "the window grows by what is acknowledged at most");
            assert!(now.nxt.wrapping_sub(now.una) <= now.cwnd + u32::from(now.mss));
        }
    }
}

#[test]
fn ack_splitting() {
    // One ACK for each byte: with growth by ACKs, the window would grow by a thousand segments per
    // round trip.
    for by in led_by_acks() {
        let (mut host, _, mut peer, id) = connected(controlled(by, true));
        write(&mut host, id, 200_000);
        let first = texts(&mut host, &mut peer);
        let before = host.stack.sending(id).unwrap();
        for n in 1..=1400 {
            ack(&mut host, &mut peer, first[0].0.wrapping_add(n), &[]);
        }
        let after = host.stack.sending(id).unwrap();
        let mss = u32::from(after.mss);
        assert!(after.cwnd <= before.cwnd + 1400 + mss, "RFC 3465: {} after {}", after.cwnd, before.cwnd);
        let sent: u32 = texts(&mut host, &mut peer).iter().map(|t| t.1).sum();
        assert!(sent <= 1400 * 2 + 2 * mss, "and so does what leaves: {sent}");
    }
}

#[test]
fn duplicate_ack_spoofing() {
    // Each duplicate ACK lets a Reno sender send another segment, so an attacker that repeats them
    // gets data at any rate. With SACK they have no effect without blocks; without SACK they count
    // for at most the data in flight.
    for sack in [true, false] {
        let (mut host, _, mut peer, id) = connected(controlled(CongestionControl::NewReno, sack));
        write(&mut host, id, 400_000);
        let first = texts(&mut host, &mut peer);
        let before = host.stack.sending(id).unwrap();
        let una = before.una;
        let mut sent = 0;
        for _ in 0..5000 {
            ack(&mut host, &mut peer, una, &[]);
            sent += texts(&mut host, &mut peer).len();
        }
        if sack {
            let after = host.stack.sending(id).unwrap();
            assert_eq!((sent, after.cwnd), (0, before.cwnd), "for ACKs that say nothing");
        } else {
            // As in Linux, each counts for one segment. An optimistic ACK would have the same
            // effect; the peer's window and the send buffer limit it.
            assert!(sent <= 400_000 / 1400 + first.len(), "{sent} segments");
            assert!(host.stack.sending(id).unwrap().cwnd <= 10 * 1460, "the window itself does not grow");
        }
    }
}

#[test]
fn sack_panic_and_slowness() {
    // CVE-2019-11477, 11478, 11479: the smallest MSS, a queue of as many segments as fit, and SACKs
    // of every other one. Here segments are built once and never merged, and their size has a
    // minimum.
    let mut plan = plan();
    plan.frames = 4000;
    plan.limits.send_pool_percent = 90;
    let (mut host, listener) = crate::listening(plan);
    let offer = Offer { mss: Some(1), ..crate::OFFER };
    let (mut peer, id) = Peer::open(&mut host, listener, 1000, 60_000, offer).unwrap();
    let mss = u32::from(host.stack.sending(id).unwrap().mss);
    assert!(mss + 12 >= 48, "a peer's segment size has a floor: {mss}");
    let options = TcpOptions { nodelay: true, ..TcpOptions::default() };
    host.stack.tcp_set_options(id, options).unwrap();
    let _ = host.stack.tcp_send(id, &vec![1; 200_000]);
    let mut base = host.stack.sending(id).unwrap().una;
    for round in 0..200u32 {
        let list = texts(&mut host, &mut peer);
        let nxt = host.stack.sending(id).unwrap().nxt;
        for n in 0..30u32 {
            let hole = base.wrapping_add((2 * n + round % 2) * mss);
            let blocks = [0, 20, 40].map(|k| {
                let start = SeqNum(hole.wrapping_add(k * mss));
                (start, start + mss)
            });
            let _ = nxt;
            ack(&mut host, &mut peer, base, &blocks);
        }
        if round % 8 == 7 && !list.is_empty() {
            base = base.wrapping_add(mss);
            ack(&mut host, &mut peer, base, &[]);
        }
        host.check();
        let now = host.stack.sending(id).unwrap();
        assert!(now.segments <= 4000, "the queue grows with what is written, not with what is SACKed");
        host.advance(Duration::from_millis(20));
    }
    // The queue empties once the receiver is honest.
    for _ in 0..3000 {
        let nxt = host.stack.sending(id).unwrap().nxt;
        ack(&mut host, &mut peer, nxt, &[]);
        if texts(&mut host, &mut peer).is_empty() && host.stack.sending(id).unwrap().segments == 0 {
            return;
        }
        if texts(&mut host, &mut peer).is_empty() {
            host.advance_to_deadline();
        }
    }
    panic!("data is left: {:?}", host.stack.sending(id));
}

#[test]
fn window_shrinking() {
    // RFC 9293 3.8.6: a receiver should not shrink its window, and a sender must be robust against
    // it.
    let (mut host, _, mut peer, id) = connected(plan());
    write(&mut host, id, 100_000);
    let first = texts(&mut host, &mut peer);
    // Half is acknowledged, and the window shrinks to within the sent data.
    let (seq, len) = first[first.len() / 2];
    peer.window = 4;
    ack(&mut host, &mut peer, seq.wrapping_add(len), &[]);
    let edge = seq.wrapping_add(len).wrapping_add(4 << peer.own_shift);
    for _ in 0..10 {
        let nxt = SeqNum(host.stack.sending(id).unwrap().nxt);
        for (seq, len) in texts(&mut host, &mut peer) {
            let old = SeqNum(seq).before(nxt);
            assert!(old || SeqNum(seq.wrapping_add(len)).at_or_before(SeqNum(edge)), "new text beyond the window");
        }
        host.advance(Duration::from_millis(100));
    }
    peer.window = 60_000;
    for _ in 0..500 {
        let nxt = host.stack.sending(id).unwrap().nxt;
        ack(&mut host, &mut peer, nxt, &[]);
        if texts(&mut host, &mut peer).is_empty() && !host.advance_to_deadline() {
            break;
        }
        if host.stack.sending(id).unwrap().segments == 0 {
            break;
        }
    }
    assert_eq!(host.stack.sending(id).unwrap().segments, 0, "all of it went");
}

/// Keeps the peer's window closed and answers every probe for `hours`. Returns the number of
/// probes.
fn hold(host: &mut Host, peer: &mut Peer, id: Option<TcpId>, hours: u64) -> usize {
    peer.window = 0;
    let nxt = peer.ack;
    ack(host, peer, nxt, &[]);
    let end = host.now + Duration::from_secs(3600 * hours);
    let mut probes = 0;
    while host.now < end && id.map_or(host.stack.tcp_connections() > 0, |id| host.stack.sending(id).is_some()) {
        if !host.advance_to_deadline() {
            break;
        }
        let before = probes;
        host.transmit(64, false, |_| probes += 1);
        if probes > before {
            ack(host, peer, nxt, &[]);
            sent(host);
        }
    }
    probes
}

#[test]

fn zero_window_holding() {
    // sockstress, and "persist" attacks: connections that cost the attacker nothing and hold memory
    // indefinitely.
    let (mut host, _, mut peer, id) = connected(plan());
    write(&mut host, id, 60_000);
    texts(&mut host, &mut peer);
    let all = peer.ack;
    ack(&mut host, &mut peer, all, &[]);
    texts(&mut host, &mut peer);
    let probes = hold(&mut host, &mut peer, Some(id), 10);
    assert_eq!(host.stack.tcp_state(id), Ok(TcpState::Established), "RFC 9293 MUST-37: unlimited by default");
    assert!(probes < 10 * 3600 / 60, "probes back off to one in two minutes: {probes} in ten hours");
    // An operator can set a limit: for the connection …
    let options = TcpOptions { user_timeout: Some(Duration::from_secs(300)), ..TcpOptions::default() };
    host.stack.tcp_set_options(id, options).unwrap();
    hold(&mut host, &mut peer, Some(id), 1);
    assert_ne!(host.stack.tcp_state(id), Ok(TcpState::Established), "TCP_USER_TIMEOUT ends it");
    assert_eq!(host.stack.tcp_recv(id, &mut [0]), Err(Error::TimedOut));
    host.stack.tcp_close(id);
    sent(&mut host);
    assert_eq!((host.stack.tcp_connections(), host.stack.pool().in_use()), (0, 0));
}

#[test]

fn zero_window_holding_is_bounded_for_all() {
    // … or for all connections.
    let mut plan = plan();
    plan.tcp.zero_window_timeout = Some(Duration::from_secs(600));
    let (mut host, _, mut peer, id) = connected(plan);
    peer.window = 0;
    let nxt = peer.ack;
    ack(&mut host, &mut peer, nxt, &[]);
    write(&mut host, id, 60_000);
    texts(&mut host, &mut peer);
    let begin = host.now;
    hold(&mut host, &mut peer, Some(id), 5);
    assert_ne!(host.stack.tcp_state(id), Ok(TcpState::Established));
    assert!(host.now.since(begin) < Duration::from_secs(900));
    host.stack.tcp_close(id);
    sent(&mut host);
    assert_eq!(host.stack.pool().in_use(), 0);
}

#[test]

fn zero_window_holding_of_closed_connections() {
    // The application has closed, and its data cannot be delivered. No application can end the
    // connection, so the stack does.
    let (mut host, _, mut peer, id) = connected(plan());
    peer.window = 0;
    let nxt = peer.ack;
    ack(&mut host, &mut peer, nxt, &[]);
    write(&mut host, id, 60_000);
    host.stack.tcp_shutdown(id, Shutdown::Write).unwrap();
    host.stack.tcp_close(id);
    texts(&mut host, &mut peer);
    hold(&mut host, &mut peer, None, 24);
    assert_eq!((host.stack.tcp_connections(), host.stack.pool().in_use()), (0, 0), "given up within a day");
}

/// The application writes a megabyte to each of `count` new connections from `port` on. Their peers close
/// their windows before it, or acknowledge nothing.
fn hoard(host: &mut Host, listener: ListenerId, port: u16, count: u16, offer: Offer, closed: bool) -> Vec<Peer> {
    let open = |n| {
        let (mut peer, id) = Peer::open(host, listener, port + n, 60_000, offer).unwrap();
        if closed {
            peer.window = 0;
            let nxt = peer.ack;
            ack(host, &mut peer, nxt, &[]);
        }
        let _ = host.stack.tcp_send(id, &[1; 100_000]);
        sent(host);
        peer
    };
    (0..count).map(open).collect()
}

/// A new connection receives a request and sends a reply of several segments, which the peer
/// acknowledges. Returns the bytes that arrive.
fn reply(host: &mut Host, listener: ListenerId, port: u16, bytes: usize) -> usize {
    let (mut peer, id) = Peer::open(host, listener, port, 60_000, crate::OFFER).unwrap();
    crate::works(host, &mut peer, id, b"hello");
    let (mut written, mut arrived, mut told) = (0, 0, true);
    loop {
        if std::mem::take(&mut told) {
            written += host.stack.tcp_send(id, &vec![2; bytes - written]).unwrap_or(0);
        }
        let list = texts(host, &mut peer);
        if list.is_empty() {
            host.stack.tcp_abort(id);
            return arrived;
        }
        arrived += list.iter().map(|(_, len)| *len as usize).sum::<usize>();
        let nxt = peer.ack;
        ack(host, &mut peer, nxt, &[]);
        host.stack.tick();
        let mut events = Vec::new();
        host.stack.drain_events(&mut events);
        told = written < bytes && events.contains(&Event::Tcp(id, Ready::WRITE));
    }
}

#[test]
fn zero_windows_leave_frames_for_others() {
    // Many such connections take the send share of the pool, not the frames required to receive and
    // to reply. A small segment takes a frame, too.
    for mss in [1460, 88] {
        let mut plan = plan();
        plan.tcp.send_buffer = 1 << 20;
        let (mut host, listener) = crate::listening(plan);
        hoard(&mut host, listener, 2000, 100, Offer { mss: Some(mss), ..crate::OFFER }, true);
        let pool = host.stack.pool();
        assert!(pool.in_use() <= pool.capacity() * 36 / 100, "{} of {} frames", pool.in_use(), pool.capacity());
        assert_eq!(reply(&mut host, listener, 5000, 20_000), 20_000, "segments of {mss} bytes");
    }
}

#[test]
fn ended_waiters_leave_nothing_behind() {
    // While closed windows hold the frames, each longer reply waits for more. Connections that end
    // meanwhile must not stay in the list.
    let mut plan = plan();
    plan.tcp.send_buffer = 1 << 20;
    let (mut host, listener) = crate::listening(plan);
    hoard(&mut host, listener, 2000, 20, crate::OFFER, true);
    let mut footprint = || {
        for port in 5000..5300 {
            assert_eq!(reply(&mut host, listener, port, 20_000), 20_000);
        }
        // Entries of timers are due until then.
        host.advance(Duration::from_secs(60));
        host.check();
        host.stack.footprint()
    };
    let before = footprint();
    let after = footprint();
    assert!(after <= before + 1000, "{before} bytes became {after}");
}

#[test]
fn silent_receivers_leave_frames_for_others() {
    // Peers that acknowledge nothing, with open windows, use up what is kept for others. While it is
    // scarce, they are given up like orphans, after some minutes.
    let mut plan = plan();
    plan.tcp.send_buffer = 1 << 20;
    let (mut host, listener) = crate::listening(plan);
    hoard(&mut host, listener, 2000, 100, crate::OFFER, false);
    assert_eq!(reply(&mut host, listener, 5000, 20_000), 0, "the test needs more such peers");
    let end = host.now + Duration::from_secs(240);
    while host.now < end && host.advance_to_deadline() {
        sent(&mut host);
    }
    assert_eq!(reply(&mut host, listener, 5001, 20_000), 20_000);
}

/// Silent peers hold all frames but two. Of two honest connections one has them, and the other one starves.
struct Scarce {
    host: Host,
    listener: ListenerId,
    silent: Vec<TcpId>,
    /// Each with the bytes that its application has written.
    honest: [(Peer, TcpId, usize); 2],
}

impl Scarce {
    fn new() -> Self {
        let mut plan = plan();
        // Smaller segments of the silent peers would take the two frames.
        (plan.tcp.send_buffer, plan.tcp.mtu_probing) = (1 << 20, false);
        let (mut host, listener) = crate::listening(plan);
        let (mut quick, quick_id) = Peer::open(&mut host, listener, 1000, 60_000, crate::OFFER).unwrap();
        write(&mut host, quick_id, 2000);
        texts(&mut host, &mut quick);
        let mut silent = Vec::new();
        for port in 2000.. {
            let (_, id) = Peer::open(&mut host, listener, port, 60_000, crate::OFFER).unwrap();
            if host.stack.tcp_send(id, &[1; 100_000]) == Err(Error::WouldBlock) {
                host.stack.tcp_abort(id);
                break;
            }
            silent.push(id);
            sent(&mut host);
        }
        let (slow, slow_id) = Peer::open(&mut host, listener, 1001, 60_000, crate::OFFER).unwrap();
        assert_eq!(host.stack.tcp_send(slow_id, &[1; 20_000]), Err(Error::WouldBlock));
        Self { host, listener, silent, honest: [(quick, quick_id, 0), (slow, slow_id, 0)] }
    }

    /// The honest peers acknowledge everything, then the applications write, the first one first.
    fn turn(&mut self) {
        let Self { host, honest, .. } = self;
        for (peer, ..) in &mut *honest {
            let all = peer.ack;
            ack(host, peer, all, &[]);
        }
        host.stack.tick();
        for (_, id, written) in &mut *honest {
            *written += host.stack.tcp_send(*id, &[1; 20_000]).unwrap_or(0);
        }
        host.transmit(64, false, |packet| {
            let segment = segment(packet).unwrap();
            let receiver = honest.iter_mut().find(|(peer, ..)| segment.key.local_port() == peer.from);
            receiver.into_iter().for_each(|(peer, ..)| peer.saw(&segment));
        });
        host.check();
    }
}

#[test]
fn starved_connection_gets_its_frames_before_a_quicker_one() {
    // The quick connection's ACK frees the frames, and it writes at once, before the other one, which was
    // notified and writes next.
    let mut scarce = Scarce::new();
    (0..20).for_each(|_| scarce.turn());
    let written = scarce.honest.map(|(_, _, written)| written);
    assert_eq!(written[0], written[1], "they take turns");
    assert!(written[0] >= 20_000, "{written:?}");
}

#[test]
fn silent_peers_stay_while_frames_go_around() {
    // The frames stay scarce, and each connection has its turn. So peers that have lost their network
    // are not given up earlier than otherwise.
    let mut scarce = Scarce::new();
    for _ in 0..300 {
        scarce.turn();
        scarce.host.advance(Duration::from_secs(1));
    }
    assert_eq!(scarce.host.stack.stats().timeouts, 0);
    assert!(scarce.honest.iter().all(|(_, _, written)| *written > 100_000), "the others work");
}

#[test]
fn starvation_ends_once_frames_are_free() {
    // The silent peers have gone. Two batches of connections get requests in turn and reply at once,
    // before those that have waited for frames. Refused, they would wait in the next turn, in which the
    // other batch would be refused.
    let Scarce { mut host, listener, silent, honest } = Scarce::new();
    let mut clients: Vec<_> =
        (3000..3008).map(|port| Peer::open(&mut host, listener, port, 60_000, crate::OFFER).unwrap()).collect();
    silent.into_iter().for_each(|id| host.stack.tcp_abort(id));
    let (_, slow, _) = honest[1];
    for turn in 0..20 {
        let (even, odd) = clients.split_at_mut(4);
        let batch = if turn % 2 == 0 { even } else { odd };
        for (peer, _) in &mut *batch {
            let (seq, all) = (peer.seq, peer.ack);
            peer.send(&mut host, ACK, seq, all, &[], b"request");
            peer.seq = seq.wrapping_add(7);
        }
        host.stack.tick();
        let mut events = Vec::new();
        host.stack.drain_events(&mut events);
        for (_, id) in &*batch {
            assert_eq!(host.stack.tcp_recv(*id, &mut [0; 100]), Ok(7));
            assert_eq!(host.stack.tcp_send(*id, b"reply"), Ok(5), "turn {turn}");
        }
        for event in events {
            if let Event::Tcp(id, ready) = event
                && (id == slow || clients.iter().any(|(_, client)| *client == id))
                && ready.contains(Ready::WRITE)
            {
                host.stack.tcp_send(id, b"late").unwrap();
            }
        }
        host.transmit(64, false, |packet| {
            let segment = segment(packet).unwrap();
            let receiver = clients.iter_mut().find(|(peer, _)| segment.key.local_port() == peer.from);
            receiver.into_iter().for_each(|(peer, _)| peer.saw(&segment));
        });
        host.check();
    }
}

#[test]
fn other_writes_leave_the_frames_of_a_starved_connection() {
    // Four frames are free.
    let Scarce { mut host, listener, silent, mut honest } = Scarce::new();
    let (_, third) = Peer::open(&mut host, listener, 1002, 60_000, crate::OFFER).unwrap();
    let (peer, quick, _) = &mut honest[0];
    let all = peer.ack;
    ack(&mut host, peer, all, &[]);
    host.stack.tcp_abort(*silent.last().unwrap());
    host.stack.tick();
    assert_eq!(host.stack.tcp_send(*quick, &[1; 100]), Ok(100), "takes one");
    let mss = usize::from(host.stack.sending(third).unwrap().mss);
    assert_eq!(host.stack.tcp_send(third, &[1; 100_000]), Ok(mss), "takes one");
    assert_eq!(host.stack.tcp_send(honest[1].1, &[1; 100_000]), Ok(2 * mss));
}

#[test]
fn silent_peers_stay_after_a_starved_connection_has_ended() {
    for shut in [false, true] {
        let Scarce { mut host, honest, .. } = Scarce::new();
        if shut {
            host.stack.tcp_shutdown(honest[1].1, Shutdown::Write).unwrap();
        } else {
            host.stack.tcp_abort(honest[1].1);
        }
        // If a connection still starved, they would be given up by then.
        let end = host.now + Duration::from_secs(240);
        while host.stack.next_deadline().unwrap() < end {
            host.advance_to_deadline();
            sent(&mut host);
        }
        assert_eq!(host.stack.stats().timeouts, 0, "{shut}");
    }
}
