//! The receiving half against a map of bytes: segments in any order, overlapping, contradictory,
//! beyond the window, around the wrap of sequence numbers. The model's rule: a byte that the stack
//! has once accepted is what the application reads, whatever arrives later.

use super::{fill, tcp_config};
use crate::host::{Host, Plan};
use crate::input::Input;
use crate::packet::{ACK, FIN};
use crate::peer::{self, Offer, Peer, segment};
use fs_core::internals::SeqNum;
use fs_core::internals::sack_blocks;
use fs_core::{Duration, Error, FramePool, TcpId};

/// Size of the model in bytes of the stream.
const SPACE: u32 = 1 << 17;

/// The target. See the module.
pub fn reassembly(data: &[u8]) -> u64 {
    let mut input = Input::new(data);
    let tcp = tcp_config(&mut input);
    let frame_size = input.pick(&[2048, 512, 1024]);
    let frames = input.pick(&[128, 40, 250]);
    let isn = input.near(0, 0x1000);
    let offer = Offer {
        isn,
        mss: input.pick(&[Some(1460), Some(100), None]),
        shift: input.pick(&[Some(7), None, Some(14)]),
        sack: input.byte() & 3 != 0,
        timestamps: input.byte() & 3 != 0,
    };
    let mut host = Host::new(Plan { frame_size, frames, ..Plan::new(tcp) });
    let (listener, peer, id) = Peer::first(&mut host, 65535, offer);
    let base = peer.seq;
    let mut world = World {
        host,
        peer,
        id,
        base,
        model: Vec::new(),
        held: Vec::new(),
        used: 0,
        nxt: 0,
        edge: 0,
        read: 0,
        fin: None,
        ended: false,
        buf: vec![0; 8192],
    };
    world.observe(None);
    while !input.is_done() && !world.ended {
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
    /// Sequence number of the stream's first byte.
    base: u32,
    /// Bytes that the stack has accepted.
    model: Vec<Option<u8>>,
    /// Ranges beyond `nxt` at the last observation.
    held: Vec<(u32, u32)>,
    /// Number of frames in use at the last observation.
    used: usize,
    /// Offset of RCV.NXT.
    nxt: u32,
    /// Offset of the window's right edge.
    edge: u32,
    /// Offset that the application has read up to.
    read: u32,
    /// Offset of the FIN, if all sent FINs agree.
    fin: Option<u32>,
    /// The connection has ended.
    ended: bool,
    buf: Vec<u8>,
}

impl World {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.below(16) {
            0..=10 => self.segment(input),
            11..=13 => self.read(input.up_to(5000) as usize),
            14 => self.host.advance(Duration::from_millis(u64::from(input.byte()))),
            _ => {
                self.host.advance_to_deadline();
            }
        }
        let held = self.host.stack.receiving(self.id).map(|r| r.held);
        self.transmit(held);
        self.host.check();
    }

    /// Sends a segment near a relevant offset, with bytes that may contradict others.
    fn segment(&mut self, input: &mut Input<'_>) {
        let room = self.edge - self.nxt;
        let at = match input.below(8) {
            0..=2 => self.nxt,
            3 => self.nxt + u32::from(input.byte()),
            4 => self.nxt + u32::from(input.word()) % room.max(1),
            5 => (self.edge + u32::from(input.byte()) % 32).saturating_sub(16),
            6 => self.nxt.saturating_sub(u32::from(input.byte())),
            _ => self.nxt + u32::from(input.byte() % 16) * 100,
        };
        let len = match input.below(6) {
            0 => 1,
            1 => 100,
            2 => usize::from(input.byte()),
            3 => 1460,
            4 => usize::from(input.byte()) * 8,
            _ => 0,
        };
        if at + len as u32 >= SPACE - 1 {
            return;
        }
        let stream = input.byte() % 3;
        let mut bytes = Vec::new();
        fill(at, stream, len, &mut bytes);
        let end = at + len as u32;
        // A FIN before received data would contradict the model's stream; the engine target covers
        // that.
        let last = self.held.last().map_or(self.nxt, |h| h.1);
        let fin = input.chance(12) && self.fin.map_or(end >= last, |f| f == end);
        if fin {
            self.fin = Some(end);
        } else if self.fin.is_some_and(|f| end > f) {
            // Text beyond its own FIN: the stack's behaviour is unspecified.
            return;
        }
        if let Some((val, _)) = &mut self.peer.ts {
            *val += 1;
        }
        let flags = ACK | if fin { FIN } else { 0 };
        let seq = self.base.wrapping_add(at);
        let ack = self.peer.ack;
        self.peer.send(&mut self.host, flags, seq, ack, &[], &bytes);
        self.observe(Some((at, &bytes)));
    }

    /// Checks that accepted bytes are old, or from the segment that has just arrived.
    fn observe(&mut self, segment: Option<(u32, &[u8])>) {
        let Some(now) = self.host.stack.receiving(self.id) else {
            self.ended = true;
            return;
        };
        let offset = |seq: u32| seq.wrapping_sub(self.base);
        let fin_taken = self.fin.is_some_and(|f| offset(now.nxt) == f + 1);
        let nxt = offset(now.nxt) - u32::from(fin_taken);
        let edge = offset(now.edge);
        assert!(nxt >= self.nxt, "RCV.NXT went back");
        assert!(edge >= self.edge, "the window's right edge went back");
        if let Some((at, bytes)) = segment
            && !bytes.is_empty()
            && at <= self.nxt
            && at + bytes.len() as u32 > self.nxt
            && self.edge > self.nxt
            && self.host.has_room()
        {
            assert!(nxt > self.nxt, "text at RCV.NXT was not taken");
        }
        let mut ranges = vec![(self.nxt, nxt)];
        ranges.extend(now.held.iter().map(|&(a, b)| (offset(a), offset(b))));
        for &range in &ranges {
            for (from, to) in without(range, self.nxt, &self.held) {
                self.take_in(from, to, segment);
            }
        }
        // Stored data is not dropped, since the peer may have received SACKs of it. Exception (RFC
        // 2018 section 8): if frames are short, to accept in-order data. Then it may arrive again,
        // with other bytes.
        let pool = self.host.stack.pool();
        let short = self.used.max(pool.in_use()) * 8 >= pool.capacity() * 3;
        self.used = pool.in_use();
        for &(from, to) in &self.held {
            let kept = to <= nxt || ranges.iter().any(|&(a, b)| a <= from.max(nxt) && to <= b);
            assert!(kept || short, "bytes {from}..{to} were held and are gone: {ranges:?}, RCV.NXT {nxt}");
            if short && let Some((at, bytes)) = segment {
                // Dropped and accepted from this segment, or not: both are right.
                let end = nxt.min(to).min(at + bytes.len() as u32);
                (from.max(at)..end).for_each(|place| self.model[place as usize] = None);
            }
        }
        ranges.remove(0);
        self.held = ranges;
        (self.nxt, self.edge) = (nxt, edge);
    }

    /// Checks that newly accepted bytes are the segment's.
    fn take_in(&mut self, from: u32, to: u32, segment: Option<(u32, &[u8])>) {
        if self.model.len() < to as usize {
            self.model.resize(to as usize, None);
        }
        let part =
            segment.and_then(|(at, bytes)| bytes.get(from.checked_sub(at)? as usize..to.checked_sub(at)? as usize));
        let Some(part) = part else { panic!("bytes {from}..{to} appeared from nowhere") };
        for (slot, &byte) in self.model[from as usize..to as usize].iter_mut().zip(part) {
            *slot = Some(byte);
        }
    }

    fn read(&mut self, n: usize) {
        let n = n.min(self.buf.len());
        let buf = &mut self.buf[..n];
        match self.host.stack.tcp_recv(self.id, buf) {
            Ok(got) => {
                assert!(self.read + got as u32 <= self.nxt, "more was read than has come in");
                for (i, &byte) in buf[..got].iter().enumerate() {
                    let place = self.read as usize + i;
                    let first = self.model[place].unwrap_or(byte);
                    assert_eq!(byte, first, "byte {place}: the first one taken in wins");
                }
                self.read += got as u32;
                if got == 0 && n > 0 {
                    assert_eq!(Some(self.read), self.fin, "the stream ends where the FIN stands");
                }
            }
            Err(Error::WouldBlock) => assert_eq!(self.read, self.nxt, "there is something to read"),
            Err(_) => self.ended = true,
        }
    }

    /// Checks that ACKs and SACK blocks are true.
    fn transmit(&mut self, held: Option<Vec<(u32, u32)>>) {
        let Self { host, peer, .. } = self;
        let mut last_ack = None;
        host.transmit(64, false, |packet| {
            let Some(s) = segment(packet) else { return };
            peer.saw(&s);
            if s.flags.rst() {
                return;
            }
            last_ack = Some(s.ack);
            let Some(held) = &held else { return };
            for (i, &(start, end)) in sack_blocks(s.options(packet)).as_slice().iter().enumerate() {
                assert!(start.before(end), "an empty or backward SACK block");
                let is_held = held.contains(&(start.0, end.0));
                // RFC 2883: the first block may report a duplicate, below the ACK or within another
                // block.
                let duplicate = i == 0
                    && (end.at_or_before(s.ack)
                        || held.iter().any(|&(a, b)| SeqNum(a).at_or_before(start) && end.at_or_before(SeqNum(b)))
                        || start.before(s.ack));
                assert!(is_held || duplicate, "SACK block {start:?}..{end:?} of {held:?}");
            }
        });
        self.observe(None);
        if let (Some(ack), Some(now)) = (last_ack, self.host.stack.receiving(self.id)) {
            assert_eq!(ack.0, now.nxt, "the ACK is RCV.NXT");
        }
    }

    fn finish(mut self, listener: fs_core::ListenerId) {
        while !self.ended && self.read < self.nxt {
            self.read(1 << 16);
        }
        self.host.stack.tcp_abort(self.id);
        self.host.stack.tcp_close_listener(listener);
        self.host.transmit(64, false, |_| {});
        peer::quiesce(&mut self.host);
        self.host.check();
        self.host.check_empty();
    }
}

/// Returns the parts of `range` that are neither below `nxt` nor in `held`, which is sorted.
fn without((from, to): (u32, u32), nxt: u32, held: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let mut at = from.max(nxt);
    let mut new = Vec::new();
    for &(a, b) in held {
        if a.min(to) > at {
            new.push((at, a.min(to)));
        }
        at = at.max(b);
    }
    if at < to {
        new.push((at, to));
    }
    new
}
