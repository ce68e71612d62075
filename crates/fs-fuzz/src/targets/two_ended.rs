//! Two stacks, calls on both sides in any order, and a link that loses, repeats, reorders and
//! damages packets, or is silent; routes that move between interfaces, path MTUs that shrink, ACKs
//! that cannot be true. Read bytes are a prefix of the written ones; unless an end aborts, all of
//! them arrive; at the end both stacks are empty. A connection respects the path MTU that was
//! reported to it.

mod network;

use super::{fill, pattern, tcp_config};
use crate::host::{Host, Plan};
use crate::input::Input;
use crate::middlebox::{Passing, Trouble};
use crate::peer::{PORT, listen};
use fs_core::{
    Connect, Duration, Error, FramePool, Framing, IfaceId, Instant, Keepalive, Linger, ListenerId, Shutdown, TcpId,
    TcpOptions, TcpState,
};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Maximum number of connections of a script.
const CONNS_MAX: usize = 3;
/// Maximum number of packets in a direction of the link; further ones are lost.
const QUEUE_MAX: usize = 200;
/// Number of deadlines after which a connection may time out: fewer than a SYN has retries.
const PATIENCE: u32 = 5;
/// Steps with this number or more are rare ones.
const RARE: u8 = 224;
/// Lifetime of a path MTU: RFC 1191 6.3.
const SIZE_HOLDS: Duration = Duration::from_secs(600);
/// Longer than keepalive's timeout.
const SILENCE: Duration = Duration::from_secs(3);

/// The target. See the module.
pub fn two_ended(data: &[u8]) -> u64 {
    let mut input = Input::new(data);
    let tcp = tcp_config(&mut input);
    let mut two_ways = false;
    let mut make = |last| {
        let (frame_size, bits) = (input.pick(&[2048, 1024, 512]), input.byte());
        let mtu = [1500, 600][usize::from(bits & 1)];
        two_ways |= bits & 0x30 == 0x30;
        Plan { last, frame_size, mtu, frames: 250, ..Plan::new(tcp.clone()) }
    };
    let mut plans = [make(1), make(2)];
    if two_ways {
        plans.iter_mut().for_each(|p| (p.framing, p.ifaces) = (Framing::Ethernet, 2));
    }
    let mut hosts = plans.map(Host::new);
    if two_ways {
        hosts[0].route(0, 2);
        hosts[1].route(0, 1);
    }
    let mut world = World {
        hosts,
        links: Default::default(),
        conns: Vec::new(),
        listener: None,
        two_ways,
        budget: 64,
        deadlines: 0,
        spare: Vec::new(),
        buf: vec![0; 8192],
    };
    world.listener = world.hosts[1].stack.tcp_listen(listen()).ok();
    while !input.is_done() {
        world.step(&mut input);
    }
    let signature = world.hosts[0].signature() ^ world.hosts[1].signature().rotate_left(32);
    world.finish();
    signature
}

/// One connection as its applications see it. Index 0 is the client.
#[derive(Debug)]
struct Conn {
    ids: [Option<TcpId>; 2],
    local: SocketAddr,
    /// The stream whose bytes the client writes; the server's is the next.
    stream: u8,
    written: [u32; 2],
    read: [u32; 2],
    shut: [bool; 2],
    ended: [bool; 2],
    /// RCV.NXT of a side when it had shut down both directions: nothing more is accepted.
    deaf: [Option<u32>; 2],
    /// Keepalive is on, and times out within [`SILENCE`].
    watched: [bool; 2],
    /// The path MTU reported about a packet in flight, and when.
    size: [Option<(usize, Instant)>; 2],
    /// An end has aborted, closed early or timed out: bytes may be missing.
    dirty: bool,
}

struct World {
    hosts: [Host; 2],
    /// Packets in transit from host 0 and from host 1.
    links: [VecDeque<Packet>; 2],
    conns: Vec<Conn>,
    listener: Option<ListenerId>,
    /// There are two networks between the hosts.
    two_ways: bool,
    /// Number of packets that a device accepts at once.
    budget: usize,
    /// Number of jumps to a deadline.
    deadlines: u32,
    spare: Vec<Packet>,
    /// Buffer for all reads.
    buf: Vec<u8>,
}

#[derive(Clone, Default)]
struct Packet {
    bytes: Vec<u8>,
    iface: u8,
    /// Damaged once: further damage could restore the checksum, which is a sum.
    damaged: bool,
}

/// Returns the client's port in a packet from `side`.
fn client_port(side: usize, packet: &Passing<'_>) -> u16 {
    let (from, to) = packet.ports();
    if side == 0 { from } else { to }
}

/// Checks that an unfragmentable packet does not exceed the path MTU that its connection knows.
fn check_size(conns: &[Conn], side: usize, packet: &[u8], now: Instant) {
    let mut bytes = packet.to_vec();
    let Some(passing) = Passing::of(&mut bytes, 0) else { return };
    let port = client_port(side, &passing);
    let Some(conn) = conns.iter().rfind(|c| c.local.port() == port) else { return };
    if let Some((size, at)) = conn.size[side]
        && now.since(at) < SIZE_HOLDS
        && passing.is_whole()
    {
        assert!(passing.size() <= size, "{} bytes, and the path takes {size}: {conn:?}", passing.size());
    }
}

impl World {
    fn step(&mut self, input: &mut Input<'_>) {
        let kind = input.byte();
        if kind >= RARE {
            self.rare_step(kind - RARE, input);
        }
        match kind % 20 {
            _ if kind >= RARE => {}
            0 | 1 => self.connect(input),
            2 => self.accept(),
            3..=5 => self.write(input),
            6 | 7 => self.read_some(input),
            8 => self.end(input),
            9..=13 => {
                let (side, n) = (input.below(2), 1 + input.below(16));
                (0..n).for_each(|_| self.deliver(side));
            }
            14 | 15 => self.disturb(input),
            16 | 17 => self.advance(Duration::from_micros(u64::from(input.word()))),
            _ => {
                self.deadlines += 1;
                self.jump();
            }
        }
        self.transmit();
        self.hosts.iter().for_each(Host::check);
        self.check_promises();
    }

    /// Runs a rare step.
    fn rare_step(&mut self, kind: u8, input: &mut Input<'_>) {
        match kind % 8 {
            0 if self.two_ways => self.reroute(input),
            0 | 1 => self.too_large(input),
            2 => self.shut_both(input),
            3 => self.watch(input),
            4 => self.silence(),
            5 => self.budget = input.pick(&[64, 1, 2, 3, 5]),
            _ => self.wild_ack(input),
        }
    }

    /// Shuts down both directions: later data is answered with a reset.
    fn shut_both(&mut self, input: &mut Input<'_>) {
        let (at, side) = (input.below(self.conns.len()), input.below(2));
        let Some(conn) = self.conns.get_mut(at) else { return };
        let Some(id) = conn.ids[side] else { return };
        let stack = &mut self.hosts[side].stack;
        (conn.shut[side], conn.dirty) = (true, true);
        if stack.tcp_shutdown(id, Shutdown::Both).is_ok() {
            conn.deaf[side] = conn.deaf[side].or(stack.receiving(id).map(|r| r.nxt));
        }
    }

    /// Returns one end of the connection whose client has this port.
    fn owner(&self, side: usize, port: u16) -> Option<TcpId> {
        self.conns.iter().rfind(|c| c.local.port() == port)?.ids[side]
    }

    /// Checks invariants that hold at any time.
    fn check_promises(&self) {
        for conn in &self.conns {
            for side in 0..2 {
                let receiving = conn.ids[side].and_then(|id| self.hosts[side].stack.receiving(id));
                if let (Some(nxt), Some(now)) = (conn.deaf[side], receiving) {
                    let taken = now.nxt.wrapping_sub(nxt);
                    assert!(taken <= 1, "{taken} bytes taken by side {side}, which has shut both directions: {conn:?}");
                }
            }
        }
    }

    fn connect(&mut self, input: &mut Input<'_>) {
        if self.conns.len() >= CONNS_MAX {
            return;
        }
        let stream = self.conns.len() as u8 * 2;
        // Fast Open, if an earlier connection has got a cookie.
        let mut first = Vec::new();
        fill(0, stream, input.pick(&[0usize, 100, 3000]), &mut first);
        let stack = &mut self.hosts[0].stack;
        let remote = SocketAddr::from(([10, 0, 0, 2], PORT));
        let connect = Connect { remote, local: None, options: TcpOptions::default() };
        let Ok((id, taken)) = stack.tcp_connect_with(connect, &first) else { return };
        let Ok(local) = stack.tcp_local(id) else { panic!("a connection without an address") };
        let (written, read) = ([taken as u32, 0], [0; 2]);
        let conn = Conn {
            ids: [Some(id), None],
            local,
            stream,
            written,
            read,
            shut: [false; 2],
            ended: [false; 2],
            deaf: [None; 2],
            watched: [false; 2],
            size: [None; 2],
            dirty: false,
        };
        self.conns.push(conn);
    }

    fn accept(&mut self) {
        let Some((id, from)) = self.listener.and_then(|l| self.hosts[1].stack.tcp_accept(l).ok()) else { return };
        match self.conns.iter_mut().find(|c| c.local == from && c.ids[1].is_none() && !c.ended[1]) {
            Some(conn) => conn.ids[1] = Some(id),
            // A late duplicate has opened a cookie's connection again, as on Linux.
            None => self.hosts[1].stack.tcp_abort(id),
        }
    }

    fn write(&mut self, input: &mut Input<'_>) {
        let (at, side, n) = (input.below(self.conns.len()), input.below(2), usize::from(input.word() % 6000));
        self.write_at(at, side, n);
    }

    fn write_at(&mut self, at: usize, side: usize, n: usize) {
        let Some(conn) = self.conns.get_mut(at) else { return };
        let Some(id) = conn.ids[side].filter(|_| !conn.shut[side]) else { return };
        let mut bytes = Vec::new();
        fill(conn.written[side], conn.stream + side as u8, n, &mut bytes);
        match self.hosts[side].stack.tcp_send(id, &bytes) {
            Ok(n) => conn.written[side] += n as u32,
            Err(Error::WouldBlock | Error::NoBuffers) => {}
            Err(error) => self.fails(at, side, error),
        }
    }

    fn read_some(&mut self, input: &mut Input<'_>) {
        let (at, side, n) = (input.below(self.conns.len()), input.below(2), usize::from(input.word() % 8000));
        self.read_at(at, side, n);
    }

    /// Reads. Returns true if that changed anything.
    fn read_at(&mut self, at: usize, side: usize, n: usize) -> bool {
        let Some(conn) = self.conns.get_mut(at) else { return false };
        let Some(id) = conn.ids[side].filter(|_| !conn.ended[side] && n > 0) else { return false };
        let n = n.min(self.buf.len());
        let buf = &mut self.buf[..n];
        match self.hosts[side].stack.tcp_recv(id, buf) {
            Ok(0) => {
                conn.ended[side] = true;
                let other = 1 - side;
                let all = conn.shut[other] && conn.read[side] == conn.written[other];
                assert!(all || conn.dirty, "the stream ends early: {conn:?}");
                true
            }
            Ok(n) => {
                let (from, stream) = (conn.read[side], conn.stream + 1 - side as u8);
                assert!(from + n as u32 <= conn.written[1 - side], "more is read than was written");
                for (i, &byte) in buf[..n].iter().enumerate() {
                    assert_eq!(byte, pattern(from + i as u32, stream), "byte {} of {conn:?}", from as usize + i);
                }
                conn.read[side] += n as u32;
                true
            }
            Err(Error::WouldBlock) => false,
            Err(Error::NotConnected) if side == 0 => false,
            Err(error) => {
                self.fails(at, side, error);
                true
            }
        }
    }

    /// Handles a connection's failure: it has a cause, or it is a bug.
    fn fails(&mut self, at: usize, side: usize, error: Error) {
        let conn = &mut self.conns[at];
        // A neighbour's replies may be lost as well.
        let gone = self.two_ways && error == Error::HostUnreachable;
        assert!(conn.dirty || gone || self.deadlines > PATIENCE, "side {side} fails with {error:?}: {conn:?}");
        conn.dirty = true;
        conn.ended[side] = true;
    }

    fn end(&mut self, input: &mut Input<'_>) {
        let (at, side) = (input.below(self.conns.len()), input.below(2));
        let Some(conn) = self.conns.get_mut(at) else { return };
        let Some(id) = conn.ids[side] else { return };
        let stack = &mut self.hosts[side].stack;
        match input.below(8) {
            0..=4 => {
                // Before it is connected, the call is recorded and returns an error.
                conn.shut[side] = true;
                let _ = stack.tcp_shutdown(id, Shutdown::Write);
                return;
            }
            // All of the peer's data was read: queued data is still sent, for any SO_LINGER.
            5 | 6 if conn.ended[side] && !conn.dirty => {
                stack.tcp_close(id);
                (conn.shut[side], conn.ids[side]) = (true, None);
                return;
            }
            5 | 6 => stack.tcp_close(id),
            _ => stack.tcp_abort(id),
        }
        conn.dirty = true;
        conn.shut[side] = true;
        conn.ended[side] = true;
        conn.ids[side] = None;
    }

    /// Makes the link perfect, and lets applications read everything and finish.
    fn finish(mut self) {
        let mut idle = 0;
        for round in 0.. {
            assert!(round < 4000, "no end: {:?} {:?} {:?}", self.conns, self.hosts[0].stack, self.hosts[1].stack);
            self.transmit();
            let mut moved = false;
            for side in 0..2 {
                while !self.links[side].is_empty() {
                    self.deliver(side);
                    moved = true;
                }
            }
            self.accept();
            for at in 0..self.conns.len() {
                for side in 0..2 {
                    moved |= self.read_at(at, side, 1 << 16);
                }
                self.close_if_done(at);
            }
            if self.conns.iter().all(|c| c.ids == [None; 2]) {
                idle += 1;
                // A packet may still wait for a neighbour; if it waits indefinitely, it has leaked.
                let waits = |h: &Host| if idle < 50 { h.stack.pool().in_use() } else { 0 };
                let left = |h: &Host| {
                    h.stack.tcp_connections() + h.stack.tcp_time_waits() + h.stack.tcp_handshakes() + waits(h)
                };
                if let Some(listener) = self.listener.take() {
                    self.hosts[1].stack.tcp_close_listener(listener);
                } else if !moved && idle > 1 && self.hosts.iter().map(left).sum::<usize>() == 0 {
                    break;
                }
            }
            if !moved {
                self.jump();
            }
        }
        for host in &self.hosts {
            host.check();
            host.check_empty();
        }
    }

    /// In the finishing phase: each side shuts down when it has sent everything, and closes when it
    /// has read everything.
    fn close_if_done(&mut self, at: usize) {
        let conn = &mut self.conns[at];
        for side in 0..2 {
            let Some(id) = conn.ids[side] else { continue };
            let stack = &mut self.hosts[side].stack;
            if !conn.shut[side] {
                conn.shut[side] = true;
                let _ = stack.tcp_shutdown(id, Shutdown::Write);
            }
            // An end whose peer never existed, or has ended, has nothing to wait for.
            if conn.ended[side] || conn.dirty && conn.ids[1 - side].is_none() {
                stack.tcp_close(id);
                conn.ids[side] = None;
                conn.ended[side] = true;
            }
        }
    }
}
