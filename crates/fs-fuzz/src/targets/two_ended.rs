//! Two stacks, calls on both sides in any order, and a link that loses, repeats, reorders and damages packets. What
//! is read is a prefix of what was written; while nobody aborts, all of it arrives; at the end both stacks are empty.

use super::{fill, pattern, tcp_config};
use crate::host::{Host, Plan};
use crate::input::Input;
use crate::peer::{PORT, listen};
use fs_core::{Connect, Duration, Error, ListenerId, Shutdown, TcpId, TcpOptions};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Connections that a script may open.
const CONNS_MAX: usize = 3;
/// Packets that a direction of the link holds; more are lost.
const QUEUE_MAX: usize = 200;
/// Deadlines passed before a connection may have timed out: fewer than a SYN has retries.
const PATIENCE: u32 = 5;

/// See the module.
pub fn two_ended(data: &[u8]) -> u64 {
    let mut input = Input::new(data);
    let tcp = tcp_config(&mut input);
    let mut make = |last| {
        let plan = Plan::new(tcp.clone());
        Host::new(Plan {
            last,
            frame_size: input.pick(&[2048, 1024, 512]),
            mtu: input.pick(&[1500, 600]),
            frames: 250,
            ..plan
        })
    };
    let hosts = [make(1), make(2)];
    let mut world = World {
        hosts,
        links: Default::default(),
        conns: Vec::new(),
        listener: None,
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
    /// Which stream's bytes the client writes; the server's is one more.
    stream: u8,
    written: [u32; 2],
    read: [u32; 2],
    shut: [bool; 2],
    ended: [bool; 2],
    /// Somebody aborted, closed early or gave up: bytes may be missing.
    dirty: bool,
}

struct World {
    hosts: [Host; 2],
    /// Packets on their way from host 0 and from host 1.
    links: [VecDeque<Packet>; 2],
    conns: Vec<Conn>,
    listener: Option<ListenerId>,
    /// Times that the script has jumped to a deadline.
    deadlines: u32,
    spare: Vec<Packet>,
    /// What is read, one after the other.
    buf: Vec<u8>,
}

#[derive(Clone, Default)]
struct Packet {
    bytes: Vec<u8>,
    /// A second damage could undo the first for the checksum, which is a sum.
    damaged: bool,
}

impl World {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.below(20) {
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
    }

    fn connect(&mut self, input: &mut Input<'_>) {
        if self.conns.len() >= CONNS_MAX {
            return;
        }
        let stream = self.conns.len() as u8 * 2;
        // Fast open, if a connection before has got a cookie.
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
            dirty: false,
        };
        self.conns.push(conn);
    }

    fn accept(&mut self) {
        let Some((id, from)) = self.listener.and_then(|l| self.hosts[1].stack.tcp_accept(l).ok()) else { return };
        match self.conns.iter_mut().find(|c| c.local == from && c.ids[1].is_none() && !c.ended[1]) {
            Some(conn) => conn.ids[1] = Some(id),
            // A late duplicate has opened a cookie's connection once more, as on Linux.
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

    /// Reads; true when that changed something.
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

    /// A connection has failed under its application: for a reason, or this is a bug.
    fn fails(&mut self, at: usize, side: usize, error: Error) {
        let conn = &mut self.conns[at];
        assert!(conn.dirty || self.deadlines > PATIENCE, "side {side} fails with {error:?}: {conn:?}");
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
                // Before it is connected, the call remembers it and says so.
                conn.shut[side] = true;
                let _ = stack.tcp_shutdown(id, Shutdown::Write);
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

    // ---- the link

    fn transmit(&mut self) {
        for (host, link) in self.hosts.iter_mut().zip(&mut self.links) {
            let spare = &mut self.spare;
            host.transmit(64, false, |packet| {
                if link.len() < QUEUE_MAX {
                    let mut copy = spare.pop().unwrap_or_default();
                    copy.bytes.clear();
                    copy.bytes.extend_from_slice(packet);
                    copy.damaged = false;
                    link.push_back(copy);
                }
            });
        }
    }

    fn deliver(&mut self, side: usize) {
        if let Some(packet) = self.links[side].pop_front() {
            self.hosts[1 - side].receive(&packet.bytes, false);
            self.spare.push(packet);
        }
    }

    fn disturb(&mut self, input: &mut Input<'_>) {
        let link = &mut self.links[input.below(2)];
        let at = input.below(link.len());
        if at >= link.len() {
            return;
        }
        match input.below(5) {
            0 => drop(link.remove(at)),
            1 => link.push_back(link[at].clone()),
            2 => link.swap(0, at),
            3 => link.clear(),
            _ => {
                let packet = &mut link[at];
                let place = usize::from(input.word()) % packet.bytes.len();
                if !std::mem::replace(&mut packet.damaged, true) {
                    packet.bytes[place] ^= 1 << input.below(8);
                }
            }
        }
    }

    fn advance(&mut self, by: Duration) {
        self.hosts.iter_mut().for_each(|h| h.advance(by));
    }

    /// To the next deadline of either. False: nothing is due.
    fn jump(&mut self) -> bool {
        let now = self.hosts[0].now;
        let Some(next) = self.hosts.iter().filter_map(|h| h.stack.next_deadline()).min() else { return false };
        self.advance(next.since(now));
        true
    }

    /// The link is perfect from now on, applications read what comes, then finish.
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
                let left = |h: &Host| h.stack.tcp_connections() + h.stack.tcp_time_waits() + h.stack.tcp_handshakes();
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

    /// In the finishing phase: each side shuts down when it has nothing more to say, and closes when all is read.
    fn close_if_done(&mut self, at: usize) {
        let conn = &mut self.conns[at];
        for side in 0..2 {
            let Some(id) = conn.ids[side] else { continue };
            let stack = &mut self.hosts[side].stack;
            if !conn.shut[side] {
                conn.shut[side] = true;
                let _ = stack.tcp_shutdown(id, Shutdown::Write);
            }
            // Whose peer never came, or has gone, has nothing to wait for.
            if conn.ended[side] || conn.dirty && conn.ids[1 - side].is_none() {
                stack.tcp_close(id);
                conn.ids[side] = None;
                conn.ended[side] = true;
            }
        }
    }
}
