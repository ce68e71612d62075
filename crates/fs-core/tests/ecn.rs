//! ECN between two stacks (RFC 3168): negotiation, ECT on packets, and the echo of marks.

mod common;

use fs_core::Ecn;
use fs_core::*;
use fs_core::{CaState, TcpInfo};
use std::net::{IpAddr, SocketAddr};

const ECT_0: u8 = 2;
const CE: u8 = 3;
const FIN: u8 = 1;
const SYN: u8 = 2;
const ACK: u8 = 0x10;
const ECE: u8 = 0x40;
const CWR: u8 = 0x80;

/// A packet on the wire.
#[derive(Clone, Debug)]
struct Seen {
    from_a: bool,
    /// TOS or traffic class.
    tos: u8,
    flags: u8,
    seq: u32,
    payload: usize,
}

/// Treatment of a packet by the wire.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Pass,
    Lose,
    Mark,
    /// Clears both bits of a SYN, as some middleboxes do.
    StripFlags,
}

struct World {
    hosts: [Stack<HeapPool>; 2],
    now: Instant,
    seen: Vec<Seen>,
}

fn stack(last: u8, tcp: TcpConfig) -> Stack<HeapPool> {
    let (framing, addressing) = (Framing::Ip, Addressing::Host);
    let limits = common::limits(100, 100, 2);
    common::stack(common::Plan { last, seed: last, tcp, limits, frames: 4096, framing, addressing })
}

fn addr(v6: bool, last: u8, port: u16) -> SocketAddr {
    let ip: IpAddr = if v6 { [0xfd00, 0, 0, 0, 0, 0, 0, last as u16].into() } else { [10, 0, 0, last].into() };
    SocketAddr::new(ip, port)
}

fn look(bytes: &[u8], from_a: bool) -> Seen {
    let (tos, off) = if bytes[0] >> 4 == 4 { (bytes[1], 20) } else { (bytes[0] << 4 | bytes[1] >> 4, 40) };
    let t = &bytes[off..];
    let seq = u32::from_be_bytes([t[4], t[5], t[6], t[7]]);
    Seen { from_a, tos, flags: t[13], seq, payload: t.len() - usize::from(t[12] >> 4) * 4 }
}

/// Sets CE as a router does; the TCP checksum does not cover it.
fn mark(bytes: &mut [u8]) {
    if bytes[0] >> 4 == 6 {
        bytes[1] |= CE << 4;
        return;
    }
    bytes[1] |= CE;
    resum(bytes, 0, 20, 10);
}

fn resum(bytes: &mut [u8], from: usize, len: usize, at: usize) {
    bytes[at..at + 2].fill(0);
    let sum: u32 = bytes[from..from + len].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

impl World {
    fn new(client: Ecn, server: Ecn) -> Self {
        let tcp = |ecn| TcpConfig { ecn, ..TcpConfig::default() };
        let hosts = [stack(1, tcp(client)), stack(2, tcp(server))];
        Self { hosts, now: Instant::from_millis(1), seen: Vec::new() }
    }

    fn turn(&mut self, fate: &mut dyn FnMut(&Seen) -> Fate) -> bool {
        let mut moved = false;
        for host in &mut self.hosts {
            host.set_now(self.now);
            host.tick();
        }
        for from in 0..2 {
            let mut out = Vec::new();
            self.hosts[from].tx_batch(IfaceId(0), 64, &mut out);
            moved |= !out.is_empty();
            for tx in out {
                let mut bytes = self.hosts[from].pool().bytes(&tx.frame).to_vec();
                self.hosts[from].pool_mut().free(tx.frame);
                let seen = look(&bytes, from == 0);
                let fate = fate(&seen);
                self.seen.push(seen);
                match fate {
                    Fate::Pass => {}
                    Fate::Lose => continue,
                    Fate::Mark => mark(&mut bytes),
                    Fate::StripFlags => bytes[33] &= !(ECE | CWR),
                }
                let to = &mut self.hosts[1 - from];
                let mut frame = to.pool_mut().alloc().expect("a frame");
                frame.grow_back(bytes.len());
                to.pool_mut().bytes_mut(&mut frame).copy_from_slice(&bytes);
                let checksum = if fate == Fate::StripFlags { RxChecksum::Verified } else { RxChecksum::Unknown };
                to.rx_batch(&mut vec![RxFrame { frame, iface: IfaceId(0), checksum }]);
            }
        }
        for host in &mut self.hosts {
            host.drain_events(&mut Vec::new());
        }
        self.now = self.now + Duration::from_micros(50);
        moved
    }

    /// Runs until nothing moves, and over `jumps` timers.
    fn run(&mut self, jumps: usize, fate: &mut dyn FnMut(&Seen) -> Fate) {
        for _ in 0..=jumps {
            while self.turn(fate) {}
            let Some(next) = self.hosts.iter().filter_map(Stack::next_deadline).min() else { return };
            self.now = self.now.max(next);
        }
    }

    fn connect(&mut self, v6: bool, options: TcpOptions, fate: &mut dyn FnMut(&Seen) -> Fate) -> (TcpId, TcpId) {
        let at = addr(v6, 2, 80);
        let listen = Listen { at, backlog: 16, v6_only: false, fast_open: 0, options };
        let listener = self.hosts[1].tcp_listen(listen).unwrap();
        let client = self.hosts[0].tcp_connect(Connect { remote: at, local: None, options }).unwrap();
        self.run(3, fate);
        let (server, _) = self.hosts[1].tcp_accept(listener).expect("accepted");
        (client, server)
    }

    fn info(&self, host: usize, id: TcpId) -> TcpInfo {
        self.hosts[host].tcp_info(id).unwrap()
    }

    fn syns(&self) -> Vec<u8> {
        self.seen.iter().filter(|s| s.flags & SYN != 0).map(|s| s.flags).collect()
    }

    /// Sends `len` bytes from client to server, which reads all.
    fn send(&mut self, client: TcpId, server: TcpId, len: usize, fate: &mut dyn FnMut(&Seen) -> Fate) {
        let (mut sent, mut got, mut buf) = (0, 0, vec![0; 1 << 16]);
        for _ in 0..10_000 {
            if sent < len {
                sent += self.hosts[0].tcp_send(client, &vec![7; (len - sent).min(20_000)]).unwrap_or(0);
            }
            if !self.turn(fate) {
                self.now =
                    self.hosts.iter().filter_map(Stack::next_deadline).min().map_or(self.now, |d| d.max(self.now));
            }
            while let Ok(n) = self.hosts[1].tcp_recv(server, &mut buf) {
                got += n;
            }
            if got == len {
                self.run(2, fate);
                return;
            }
        }
        panic!("sent {sent}, got {got} of {len}");
    }
}

fn pass(_: &Seen) -> Fate {
    Fate::Pass
}

#[test]
fn ecn_requires_both_sides() {
    use Ecn::{Active, Off, Passive};
    let setup = SYN | ECE | CWR;
    for v6 in [false, true] {
        for (client, server, syns, agreed) in [
            (Active, Active, [setup, SYN | ACK | ECE], true),
            (Active, Passive, [setup, SYN | ACK | ECE], true),
            (Active, Off, [setup, SYN | ACK], false),
            (Passive, Active, [SYN, SYN | ACK], false),
            (Off, Off, [SYN, SYN | ACK], false),
        ] {
            let mut world = World::new(client, server);
            let (c, s) = world.connect(v6, TcpOptions::default(), &mut pass);
            assert_eq!(world.syns(), syns, "{client:?} {server:?}");
            assert_eq!((world.info(0, c).ecn, world.info(1, s).ecn), (agreed, agreed));
            assert!(world.seen.iter().all(|p| p.tos == 0), "ECT before data: {:?}", world.seen);
            world.send(c, s, 20_000, &mut pass);
            assert_eq!(world.info(1, s).ecn_seen, agreed);
            for p in &world.seen {
                let want = if agreed && p.payload > 0 { ECT_0 } else { 0 };
                assert_eq!(p.tos, want, "{p:?}");
            }
        }
    }
}

/// RFC 3168 6.1.1.1; Linux `tcp_ecn_fallback`.
#[test]
fn retransmitted_syn_omits_ecn() {
    let mut world = World::new(Ecn::Active, Ecn::Passive);
    let mut fate = |p: &Seen| if p.flags == SYN | ECE | CWR { Fate::Lose } else { Fate::Pass };
    let (c, s) = world.connect(false, TcpOptions::default(), &mut fate);
    assert_eq!(world.syns(), [SYN | ECE | CWR, SYN, SYN | ACK]);
    assert!(!world.info(0, c).ecn && !world.info(1, s).ecn);
}

/// The SYN arrives and its SYN-ACK is lost: the peer has agreed to ECN, regardless of the next SYN.
#[test]
fn syn_ack_of_first_syn_counts_after_second() {
    let mut world = World::new(Ecn::Active, Ecn::Passive);
    let mut lost = false;
    let mut fate = |p: &Seen| {
        let first = p.flags == SYN | ACK | ECE && !lost;
        lost |= first;
        if first { Fate::Lose } else { Fate::Pass }
    };
    let (c, s) = world.connect(false, TcpOptions::default(), &mut fate);
    assert_eq!(world.syns()[..3], [SYN | ECE | CWR, SYN | ACK | ECE, SYN]);
    assert_eq!(world.syns()[3..].first(), Some(&(SYN | ACK | ECE)));
    assert!(world.info(0, c).ecn && world.info(1, s).ecn, "one side sends what the other does not echo");
}

#[test]
fn marked_syn_requests_no_ecn() {
    let mut world = World::new(Ecn::Active, Ecn::Active);
    let mut fate = |p: &Seen| if p.flags & (SYN | ACK) == SYN { Fate::Mark } else { Fate::Pass };
    let (c, s) = world.connect(false, TcpOptions::default(), &mut fate);
    assert_eq!(world.syns(), [SYN | ECE | CWR, SYN | ACK]);
    assert!(!world.info(0, c).ecn && !world.info(1, s).ecn);
}

/// Both SYNs cross; both request ECN, both agree.
#[test]
fn simultaneous_open() {
    for (ecn, want) in [(Ecn::Active, true), (Ecn::Passive, false)] {
        let mut world = World::new(ecn, Ecn::Active);
        let (a, b) = (addr(false, 1, 1000), addr(false, 2, 2000));
        let options = TcpOptions::default();
        let c = world.hosts[0].tcp_connect(Connect { remote: b, local: Some(a), options }).unwrap();
        let s = world.hosts[1].tcp_connect(Connect { remote: a, local: Some(b), options }).unwrap();
        // Both SYNs leave before either arrives.
        let mut held = Vec::new();
        for from in 0..2 {
            let mut out = Vec::new();
            world.hosts[from].tx_batch(IfaceId(0), 64, &mut out);
            for tx in out {
                held.push((1 - from, world.hosts[from].pool().bytes(&tx.frame).to_vec()));
                world.hosts[from].pool_mut().free(tx.frame);
            }
        }
        for (to, bytes) in held {
            let to = &mut world.hosts[to];
            let mut frame = to.pool_mut().alloc().unwrap();
            frame.grow_back(bytes.len());
            to.pool_mut().bytes_mut(&mut frame).copy_from_slice(&bytes);
            to.rx_batch(&mut vec![RxFrame { frame, iface: IfaceId(0), checksum: RxChecksum::Unknown }]);
        }
        world.run(2, &mut pass);
        assert_eq!((world.info(0, c).ecn, world.info(1, s).ecn), (want, want));
        let syn_ack = if want { SYN | ACK | ECE } else { SYN | ACK };
        assert!(world.syns().iter().all(|&f| f == syn_ack), "{:x?}", world.syns());
    }
}

/// The SYN cache is full: the negotiated options are encoded in the timestamp.
#[test]
fn syn_cookie_encodes_ecn() {
    for (timestamps, want) in [(true, true), (false, false)] {
        let mut world = World::new(Ecn::Active, Ecn::Passive);
        let tcp = TcpConfig { ecn: Ecn::Active, timestamps, ..TcpConfig::default() };
        world.hosts = [stack(1, tcp.clone()), stack(2, tcp)];
        let at = addr(false, 2, 80);
        let options = TcpOptions::default();
        let listen = Listen { at, backlog: 16, v6_only: false, fast_open: 0, options };
        let listener = world.hosts[1].tcp_listen(listen).unwrap();
        let connect =
            |world: &mut World| world.hosts[0].tcp_connect(Connect { remote: at, local: None, options }).unwrap();
        // Two handshakes whose SYN-ACKs are lost fill the cache.
        let _fill = [connect(&mut world), connect(&mut world)];
        world.turn(&mut |p| if p.flags & ACK != 0 { Fate::Lose } else { Fate::Pass });
        let client = connect(&mut world);
        world.turn(&mut pass);
        world.turn(&mut pass);
        world.turn(&mut pass);
        assert_eq!(world.hosts[1].stats().syn_cookies_ok, 1);
        let (server, _) = world.hosts[1].tcp_accept(listener).expect("accepted by its cookie");
        assert_eq!((world.info(0, client).ecn, world.info(1, server).ecn), (want, want));
    }
}

#[test]
fn echoes_mark_until_cwr_and_reduces_once() {
    for v6 in [false, true] {
        let mut world = World::new(Ecn::Active, Ecn::Passive);
        let (c, s) = world.connect(v6, TcpOptions::default(), &mut pass);
        world.send(c, s, 60_000, &mut pass);
        let before = world.info(0, c);
        world.seen.clear();
        // Three marks in one window of data.
        let mut marks = 0;
        let mut fate = |p: &Seen| {
            if p.tos & 3 == ECT_0 && marks < 3 {
                marks += 1;
                return Fate::Mark;
            }
            Fate::Pass
        };
        world.send(c, s, 200_000, &mut fate);
        let stats = world.hosts[0].stats();
        assert_eq!((stats.ecn_reductions, stats.retransmits), (1, 0), "{stats:?}");
        let info = world.info(0, c);
        assert!(info.snd_ssthresh <= before.snd_cwnd, "{info:?}");
        assert!(info.delivered_ce > 0 && info.ca_state == CaState::Open, "{info:?}");
        // The sender sets CWR once, on new data; the receiver echoes from the mark to it and no
        // longer.
        let cwrs: Vec<_> = world.seen.iter().filter(|p| p.from_a && p.flags & CWR != 0).collect();
        assert!(cwrs.len() == 1 && cwrs[0].payload > 0 && cwrs[0].tos == ECT_0, "{cwrs:?}");
        let echoes = world.seen.iter().filter(|p| !p.from_a && p.flags & ECE != 0).count();
        assert!(echoes >= 1);
        let cwr_at = world.seen.iter().position(|p| p.from_a && p.flags & CWR != 0).unwrap();
        let last_echo = world.seen.iter().rposition(|p| !p.from_a && p.flags & ECE != 0).unwrap();
        assert!(last_echo < cwr_at + 130, "echoes go on after CWR: {last_echo} {cwr_at}");
        assert!(world.seen.iter().rev().take(5).all(|p| p.flags & (ECE | CWR) == 0));
    }
}

/// Marks in every window: reductions, and never a stall.
#[test]
fn marks_in_every_window_never_stall() {
    let mut world = World::new(Ecn::Active, Ecn::Passive);
    let (c, s) = world.connect(false, TcpOptions::default(), &mut pass);
    let mut n = 0;
    let mut fate = |p: &Seen| {
        n += (p.payload > 0) as u32;
        if p.tos & 3 == ECT_0 && n % 20 == 0 { Fate::Mark } else { Fate::Pass }
    };
    world.send(c, s, 1_000_000, &mut fate);
    let stats = world.hosts[0].stats();
    assert!(stats.ecn_reductions > 5 && stats.retransmits == 0 && stats.rto_fired == 0, "{stats:?}");
}

/// RFC 3168 6.1.2: the first segment after a reduction, which has CWR, is lost. The loss is in the
/// next window of data, so the window is reduced again, and CWR is sent again. The peer then stops
/// its echo before the recovery ends.
#[test]
fn loss_of_cwr_reduces_again() {
    let mut world = World::new(Ecn::Active, Ecn::Passive);
    let (c, s) = world.connect(false, TcpOptions::default(), &mut pass);
    let mut last = |p: &Seen| if p.payload > 0 { Fate::Mark } else { Fate::Pass };
    world.send(c, s, 10_000, &mut last);
    assert_eq!(world.info(0, c).ca_state, CaState::Cwr, "no segment with CWR was sent");
    world.seen.clear();
    let mut lost = false;
    let mut fate = |p: &Seen| {
        let first = p.flags & CWR != 0 && !lost;
        lost |= first;
        if first { Fate::Lose } else { Fate::Pass }
    };
    world.send(c, s, 200_000, &mut fate);
    let stats = world.hosts[0].stats();
    assert!(lost && stats.retransmits > 0 && stats.rto_fired == 0, "{stats:?}");
    assert_eq!(stats.ecn_reductions, 1, "{stats:?}");
    assert_eq!(world.seen.iter().filter(|p| p.from_a && p.flags & CWR != 0).count(), 2);
}

/// RFC 3168 6.1.5: a retransmission is not ECN-capable. A loss also causes CWR (6.1.2).
#[test]
fn retransmissions_are_not_ect_and_cwr_follows() {
    let mut world = World::new(Ecn::Active, Ecn::Passive);
    let (c, s) = world.connect(false, TcpOptions::default(), &mut pass);
    world.send(c, s, 60_000, &mut pass);
    world.seen.clear();
    let mut lost = None;
    let mut n = 0;
    let mut fate = |p: &Seen| {
        n += (p.payload > 0) as u32;
        if n == 5 && lost.is_none() {
            lost = Some(p.seq);
            return Fate::Lose;
        }
        Fate::Pass
    };
    world.send(c, s, 200_000, &mut fate);
    let lost = lost.unwrap();
    let copies: Vec<_> = world.seen.iter().filter(|p| p.from_a && p.payload > 0 && p.seq == lost).collect();
    assert_eq!(copies.iter().map(|p| p.tos).collect::<Vec<_>>(), [ECT_0, 0]);
    assert_eq!(world.seen.iter().filter(|p| p.from_a && p.flags & CWR != 0).count(), 1);
    assert_eq!(world.hosts[0].stats().ecn_reductions, 0);
}

/// ECE from a peer that has not agreed has no effect.
#[test]
fn ignores_echo_without_negotiation() {
    let mut world = World::new(Ecn::Active, Ecn::Active);
    // A middlebox clears the client's bits: the server has not agreed, so the client must not
    // assume ECN.
    let mut fate = |p: &Seen| if p.flags == SYN | ECE | CWR { Fate::StripFlags } else { Fate::Pass };
    let (c, s) = world.connect(false, TcpOptions::default(), &mut fate);
    assert!(!world.info(0, c).ecn && !world.info(1, s).ecn);
    world.send(c, s, 100_000, &mut |p| if p.payload > 0 { Fate::Mark } else { Fate::Pass });
    assert_eq!(world.hosts[0].stats().ecn_reductions, 0);
    assert!(world.seen.iter().all(|p| p.flags & SYN != 0 || p.flags & (ECE | CWR) == 0));
}

/// IP_TOS and IPV6_TCLASS: the upper six bits on every segment, SYN to FIN; the lower two belong to
/// the stack.
#[test]
fn type_of_service() {
    for v6 in [false, true] {
        for ecn in [Ecn::Active, Ecn::Off] {
            let mut world = World::new(ecn, ecn);
            let options = TcpOptions { tos: 0xb9, ..TcpOptions::default() };
            let (c, s) = world.connect(v6, options, &mut pass);
            world.send(c, s, 5_000, &mut pass);
            assert_eq!(world.hosts[0].tcp_options(c).unwrap().tos, 0xb8);
            world.hosts[0].tcp_close(c);
            world.run(1, &mut pass);
            assert!(world.seen.iter().any(|p| p.flags & FIN != 0));
            for p in &world.seen {
                let ect = if ecn == Ecn::Active && p.payload > 0 { ECT_0 } else { 0 };
                assert_eq!(p.tos, 0xb8 | ect, "{p:?}");
            }
        }
    }
}
