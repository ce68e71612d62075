//! The sending half against a receiver with a slow model: segments are lost, ACKs are honest, late,
//! repeated or forged. For any of these, the stack sends the written bytes, within the offered
//! window, never loses one permanently, and its counters of in-flight data are consistent (see
//! `Stack::check`).

use super::{pattern, tcp_config};
use crate::host::{Host, Plan};
use crate::input::Input;
use crate::packet::ACK;
use crate::peer::{Offer, Peer, quiesce, segment, time_of};
use fs_core::internals::SeqNum;
use fs_core::{Duration, Error, TcpId, TcpOptions};

/// The target. See the module.
pub fn scoreboard(data: &[u8]) -> u64 {
    let mut input = Input::new(data);
    let tcp = tcp_config(&mut input);
    let (frame_size, frames) = (input.pick(&[2048, 1024, 512]), input.pick(&[250, 128]));
    let make = || Host::new(Plan { frame_size, frames, ..Plan::new(tcp) });
    // Often around the wrap of sequence numbers, and of their sign.
    let iss = input.pick(&[0u32, 0x8000_0000, 77_777]).wrapping_sub(u32::from(input.word() % 8192));
    let at = time_of(iss, || Host::new(Plan::new(fs_core::TcpConfig::default())));
    let mut host = make();
    host.advance(at.since(host.now));
    let offer = Offer {
        isn: 1000,
        mss: input.pick(&[Some(1460), Some(200), Some(536), None]),
        shift: input.pick(&[Some(3), None, Some(0)]),
        sack: input.byte() & 3 != 0,
        timestamps: input.byte() & 3 != 0,
    };
    let window = input.pick(&[u16::MAX, 3000, 500]);
    let (listener, peer, id) = Peer::first(&mut host, window, offer);
    let options = TcpOptions { nodelay: input.byte() & 1 == 0, ..TcpOptions::default() };
    let _ = host.stack.tcp_set_options(id, options);
    let base = peer.ack;
    let edge = u32::from(window) << peer.own_shift;
    let mut world =
        World { host, peer, id, base, got: Vec::new(), acked: 0, told: 0, seen: 0, written: 0, edge, gone: false };
    while !input.is_done() && !world.gone {
        world.step(&mut input);
    }
    let signature = world.host.signature();
    world.finish(listener);
    signature
}

struct World {
    host: Host,
    peer: Peer,
    id: TcpId,
    /// Sequence number of the first byte.
    base: u32,
    /// Ranges of bytes that the receiver has, sorted and disjoint.
    got: Vec<(u32, u32)>,
    /// Highest cumulative ACK that was sent, true or not.
    acked: u32,
    /// Highest ACK that the stack had to accept.
    told: u32,
    /// Bytes that the stack has sent, once or repeatedly.
    seen: u32,
    /// Bytes that the application has written.
    written: u32,
    /// Right edge of the widest window offered.
    edge: u32,
    gone: bool,
}

impl World {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.below(12) {
            0..=2 => self.write(usize::from(input.byte()) * input.pick(&[1, 10, 40])),
            3..=6 => self.ack(input),
            7 => self.lie(input),
            8 => self.window(input),
            9 => self.host.advance(Duration::from_millis(u64::from(input.byte()))),
            10 => self.host.advance(Duration::from_micros(u64::from(input.byte()) * 10)),
            _ => {
                self.host.advance_to_deadline();
            }
        }
        let (mask, budget) = (input.byte(), 1 + input.below(16));
        self.transmit(budget, |n| mask & (1 << (n % 8)) != 0);
    }

    fn write(&mut self, n: usize) {
        let bytes: Vec<u8> = (0..n as u32).map(|i| pattern(self.written + i, 0)).collect();
        match self.host.stack.tcp_send(self.id, &bytes) {
            Ok(n) => self.written += n as u32,
            Err(Error::WouldBlock | Error::NoBuffers) => {}
            Err(_) => self.gone = true,
        }
    }

    /// Sends an honest receiver's ACK, possibly several times or in part.
    fn ack(&mut self, input: &mut Input<'_>) {
        let in_order = self.got.first().filter(|r| r.0 == 0).map_or(0, |r| r.1);
        let to = if input.chance(32) { in_order - in_order.min(u32::from(input.byte()) * 16) } else { in_order };
        let mut blocks: Vec<_> = self.got.iter().filter(|r| r.0 > in_order).map(|&(a, b)| self.block(a, b)).collect();
        let turn = input.below(blocks.len());
        blocks.rotate_left(turn);
        if input.chance(16) && to > 200 {
            blocks.insert(0, self.block(to - 150, to - 20));
        }
        blocks.truncate(if input.chance(16) { 0 } else { 4 });
        for _ in 0..=input.pick(&[0, 0, 0, 3]) {
            self.say(to, &blocks);
        }
        if to < self.told && self.told - to <= 500 && self.told <= in_order && !blocks.is_empty() && self.peer.sack {
            // The ACK was overtaken. Its SACK blocks count all the same: the same blocks in an ACK
            // that was not overtaken must add nothing.
            let sacked = |world: &Self| world.host.stack.sending(world.id).map(|s| s.sacked);
            let before = sacked(self);
            self.say(self.told, &blocks);
            assert_eq!(before, sacked(self), "SACK blocks of an ACK below SND.UNA were not taken in");
        }
    }

    fn block(&self, a: u32, b: u32) -> (SeqNum, SeqNum) {
        (SeqNum(self.base.wrapping_add(a)), SeqNum(self.base.wrapping_add(b)))
    }

    /// Sends ACKs and SACKs of data that was never received, or never sent.
    fn lie(&mut self, input: &mut Input<'_>) {
        let to = match input.below(6) {
            // Optimistic: the receiver loses the data.
            0 => self.acked + (self.seen - self.acked.min(self.seen)) / 2,
            1 => self.seen + 1 + u32::from(input.byte()),
            2 => self.acked.saturating_sub(u32::from(input.word())),
            _ => self.acked,
        };
        let blocks: Vec<_> = (0..input.below(5))
            .map(|_| {
                let from = self.acked + u32::from(input.word() % 4000);
                let (a, b) = self.block(from, from + u32::from(input.byte()) * 12);
                if input.chance(20) { (b, a) } else { (a, b) }
            })
            .collect();
        self.say(to, &blocks);
    }

    fn window(&mut self, input: &mut Input<'_>) {
        self.peer.window = input.pick(&[0, u16::MAX, 1, 100, 2000, 8000]);
        self.say(self.acked, &[]);
    }

    fn say(&mut self, to: u32, blocks: &[(SeqNum, SeqNum)]) {
        if let Some((val, _)) = &mut self.peer.ts {
            *val += 1;
        }
        let before = self.host.stack.sending(self.id);
        let (seq, ack) = (self.peer.seq, self.base.wrapping_add(to));
        let blocks = if self.peer.sack { blocks } else { &[] };
        self.peer.send(
            &mut self.host,
            ACK,
            seq,
            ack,
            &blocks[..blocks.len().min(if self.peer.ts.is_some() { 3 } else { 4 })],
            &[],
        );
        if to <= self.seen {
            self.acked = self.acked.max(to);
            self.told = self.told.max(to);
            self.edge = self.edge.max(to + (u32::from(self.peer.window) << self.peer.own_shift));
        }
        let (Some(before), Some(now)) = (before, self.host.stack.sending(self.id)) else {
            self.gone = true;
            return;
        };
        assert!(SeqNum(now.una).at_or_after(SeqNum(before.una)), "SND.UNA went back");
        assert_eq!(now.una, self.base.wrapping_add(self.told), "SND.UNA is the highest true ACK");
        self.host.check();
    }

    /// Checks the packets that the stack sends; `arrives` selects those that reach the receiver.
    fn transmit(&mut self, budget: usize, arrives: impl Fn(usize) -> bool) {
        let Self { host, peer, base, got, seen, written, edge, gone, .. } = self;
        let mut n = 0;
        host.transmit(budget, false, |packet| {
            let Some(s) = segment(packet) else { return };
            peer.saw(&s);
            if s.flags.rst() {
                *gone = true;
                return;
            }
            let text = &packet[s.payload_off as usize..s.payload_off as usize + s.payload_len as usize];
            if text.is_empty() {
                return;
            }
            let from = s.seq.since(SeqNum(*base));
            let to = from.wrapping_add(text.len() as u32);
            assert!(from <= *seen && from < to, "sent {from}..{to} with a gap after {seen}");
            assert!(to <= *written, "sent {from}..{to} of {written}");
            assert!(to <= *edge, "sent {from}..{to} beyond the window's edge {edge}");
            for (i, &byte) in text.iter().enumerate() {
                assert_eq!(byte, pattern(from + i as u32, 0), "byte {}", from + i as u32);
            }
            *seen = (*seen).max(to);
            if arrives(n) {
                add(got, from, to);
            }
            n += 1;
        });
        self.host.check();
        if self.host.stack.sending(self.id).is_none() {
            self.gone = true;
        }
    }

    /// Repairs the network: everything must arrive.
    fn finish(mut self, listener: fs_core::ListenerId) {
        let mut rounds = 0;
        self.peer.window = u16::MAX;
        // The receiver does without data that it has falsely acknowledged.
        let told = self.told;
        add(&mut self.got, 0, told);
        while !self.gone {
            let before = self.seen;
            self.transmit(64, |_| true);
            let in_order = self.got.first().map_or(0, |r| r.1);
            if in_order == self.written && self.told == self.written {
                break;
            }
            let blocks: Vec<_> = self.got.iter().skip(1).map(|&(a, b)| self.block(a, b)).collect();
            self.say(in_order.min(self.seen), &blocks);
            if before == self.seen {
                self.host.advance_to_deadline();
            }
            rounds += 1;
            assert!(rounds < 3000, "stuck at {in_order} of {}: {:?}", self.written, self.host.stack.sending(self.id));
        }
        self.host.stack.tcp_abort(self.id);
        self.host.stack.tcp_close_listener(listener);
        quiesce(&mut self.host);
        self.host.check();
        self.host.check_empty();
    }
}

/// Adds a range to a sorted list of disjoint ranges; adjacent ranges are merged.
fn add(ranges: &mut Vec<(u32, u32)>, mut from: u32, mut to: u32) {
    if from == to {
        return;
    }
    ranges.retain(|&(a, b)| {
        let apart = b < from || a > to;
        if !apart {
            (from, to) = (from.min(a), to.max(b));
        }
        apart
    });
    let at = ranges.partition_point(|r| r.0 < from);
    ranges.insert(at, (from, to));
}
