//! Invariants between any two calls, for any input: for tests and fuzzers (feature `check`).
//!
//! [`Stack::check`] walks everything that the stack owns and panics with a description at the first
//! contradiction. Its cost is proportional to all state, so it is not part of the engine.

use crate::flow::Protocol;
use crate::frame::FramePool;
use crate::net::neigh::PathState;
use crate::rx::owner::Owner;
use crate::slab::NIL;
use crate::socket::event::TcpId;
use crate::stack::Stack;
use crate::tcb::deadlines::Id;
use crate::tcb::flags::Flags;
use crate::tcb::send::segment::mark;
use crate::tcb::send::sender::Starved;
use crate::tcb::{Slot, Tcb};
use crate::timer::tick::{TICK_SHIFT, tick_before};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

/// A connection's receiving half, for tests. Sequence numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receiving {
    /// RCV.NXT.
    pub nxt: u32,
    /// Right edge of the offered window.
    pub edge: u32,
    /// Ranges received beyond RCV.NXT, in order.
    pub held: Vec<(u32, u32)>,
}

/// A connection's sending half, for tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sending {
    /// SND.UNA.
    pub una: u32,
    /// SND.NXT.
    pub nxt: u32,
    /// SND.WND.
    pub window: u32,
    /// Congestion window in bytes.
    pub cwnd: u32,
    /// Estimate of the bytes in the network.
    pub flight: u32,
    /// Bytes that the peer has SACKed.
    pub sacked: u32,
    /// Largest payload of a segment.
    pub mss: u16,
    /// Segments in the send queue.
    pub segments: usize,
}

/// Number of frames by owner.
#[derive(Default)]
struct Frames {
    receive: usize,
    segments: usize,
    /// Segments that are stored in their queues themselves.
    lone: usize,
    rest: usize,
    bare: usize,
}

impl<P: FramePool> Stack<P> {
    /// Selects whether ordinary packets take the fast path (the default) or the slow one. The
    /// results must be equal.
    pub fn set_fast_paths(&mut self, on: bool) {
        self.no_fast_paths = !on;
    }

    /// Returns the number of packets that took the fast path.
    pub fn fast_paths_taken(&self) -> u64 {
        self.fast_paths
    }

    /// Checks that each connection marked as waiting for frames has exactly one entry in the list,
    /// and no other has one; and so for starved ones.
    fn check_frame_waiters(&self) {
        let waits = |tcb: &Tcb| tcb.flags.has(Flags::WAITS_FOR_POOL);
        let starves = |tcb: &Tcb| tcb.ext.as_ref().is_some_and(|ext| ext.sender.starved == Starved::Waits);
        let marks: [&dyn Fn(&Tcb) -> bool; 2] = [&waits, &starves];
        for (list, is_marked) in self.frame_waiters.lists().into_iter().zip(marks) {
            let mut waiting = BTreeSet::new();
            for (index, generation) in list {
                let Some(tcb) = self.slots.open(index).filter(|tcb| tcb.generation() == generation) else { continue };
                assert!(is_marked(tcb), "{index}: listed as waiting for frames, and not marked");
                assert!(waiting.insert(index), "{index}: waits for frames twice");
            }
            for index in 0..self.slots.len() as u32 {
                let marked = self.slots.open(index).is_some_and(is_marked);
                assert!(!marked || waiting.contains(&index), "{index}: marked as waiting for frames, and not listed");
            }
        }
    }

    /// Panics if the stack's parts contradict one another. `outside` is the number of chunks that
    /// others hold (links, tests); with `None`, frames are not counted.
    pub fn check(&self, outside: Option<usize>) {
        self.check_frame_waiters();
        let mut frames = Frames::default();
        let (mut live, mut mapped) = (0, 0);
        let entries = self.deadlines.of_connections();
        for index in 0..self.slots.len() as u32 {
            let slot = self.slots.slot(index);
            live += !matches!(slot, Slot::Free { .. }) as usize;
            match slot {
                Slot::Open(tcb) => {
                    mapped += 1;
                    assert_eq!(self.owner_of(&tcb.key()), Some(Owner::Connection(index)), "{:?} not found", tcb.key());
                    self.check_sending(tcb, &mut frames);
                    self.check_receiving(tcb, &mut frames);
                    self.check_lists(index, tcb);
                    self.check_entries(index, tcb, &entries);
                }
                Slot::SynSent(s) => {
                    mapped += 1;
                    assert_eq!(self.owner_of(&s.key), Some(Owner::Connection(index)), "{:?} not found", s.key);
                    frames.segments += s.fast.as_ref().is_some_and(|f| !f.data.is_empty()) as usize;
                }
                Slot::Dead(dead) => dead.rx.for_each(&self.nodes, |_| frames.receive += 1),
                Slot::Free { .. } => {}
            }
        }
        assert_eq!(live, self.slots.live, "slots in use");
        // Handshakes of connections that Fast Open has opened are not in the table.
        let fast = self.handshakes.live().filter(|(_, entry)| entry.slot != NIL).count();
        let flows = mapped + self.handshakes.len() - fast + self.time_waits.len();
        assert_eq!(self.table.len(), flows, "entries of the flow table");
        for (index, entry) in self.handshakes.live().filter(|(_, entry)| entry.slot == NIL) {
            assert_eq!(self.owner_of(&entry.key), Some(Owner::Handshake(index)), "{:?} not found", entry.key);
        }
        for index in self.time_waits.live() {
            let key = self.time_waits.key(index);
            assert_eq!(self.owner_of(&key), Some(Owner::TimeWait(index)), "{key:?} not found");
        }
        let limits = &self.config.limits;
        assert!(self.slots.live <= limits.connections as usize, "too many connections");
        assert!(self.handshakes.len() <= limits.syn_cache as usize, "too many handshakes");
        assert!(self.time_waits.len() <= limits.time_wait as usize, "too many TIME-WAITs");
        assert_eq!(self.nodes.len(), frames.receive, "frames of receive queues");
        assert_eq!(self.store.segments.len(), frames.segments, "segments of send queues");
        assert_eq!(self.store.rest.len(), frames.rest, "further frames of send queues");
        let all = frames.segments + frames.lone + frames.rest;
        assert_eq!(self.store.frames(), all, "frames of send queues");
        if let Some(outside) = outside {
            self.check_frames(&frames, outside);
        }
    }

    fn check_frames(&self, frames: &Frames, outside: usize) {
        let control: usize = self.net.queues().iter().map(|queue| queue.lens()[0]).sum();
        let udp = self.udp.frames_held();
        let queued = frames.receive + frames.segments + frames.lone - frames.bare + frames.rest;
        // Packets that wait for a neighbour have at most four frames, most of which are shared with
        // a send queue.
        let (least, waiting) = (queued + control + udp + outside, 4 * self.net.waiting_and_paths().0);
        let in_use = self.pool.in_use();
        assert!(
            (least..=least + waiting).contains(&in_use),
            "{in_use} frames in use, against {queued} in queues, {control} to send, {udp} of UDP, {outside} outside"
        );
    }

    fn check_sending(&self, tcb: &Tcb, frames: &mut Frames) {
        let (snd_una, snd_nxt, tx) = (tcb.snd.una(), tcb.snd.nxt(), &tcb.tx);
        assert!(snd_una.at_or_before(snd_nxt), "SND.UNA {snd_una:?} after SND.NXT {snd_nxt:?}");
        let (mut at, mut seq, mut bytes, mut sent) = (NIL, snd_una, 0, true);
        if tx.is_inline() {
            assert_eq!(tx.next, NIL, "something unsent behind a segment that the queue holds itself");
            frames.lone += 1;
            (bytes, seq) = (tx.bytes, snd_una + tx.bytes);
        } else {
            at = tx.head();
        }
        let (mut sacked, mut sacked_segments, mut lost, mut retransmitted) = (0, 0, 0, 0);
        let mut last = NIL;
        while at != NIL {
            let segment = &self.store.segments[at];
            if at == tx.next {
                sent = false;
                assert_eq!(seq, snd_nxt, "the first unsent segment begins at SND.NXT");
            }
            assert_eq!(segment.seq, seq, "segments of the send queue touch");
            assert!(segment.span() > 0, "an empty segment");
            let mut held = segment.head.len() as u32 * (segment.len > 0) as u32;
            segment.rest.for_each(&self.store.rest, |frame| {
                held += frame.len() as u32;
                frames.rest += 1;
            });
            assert_eq!(held, segment.len, "a segment's frames hold its bytes");
            frames.segments += 1;
            frames.bare += (segment.len == 0) as usize;
            bytes += segment.len;
            seq += segment.span();
            assert!(sent || !segment.has(mark::SACKED | mark::LOST | mark::RETRANSMITTED), "a mark on unsent data");
            assert!(!segment.has(mark::SACKED) || !segment.has(mark::LOST), "SACKed and lost");
            sacked += segment.span() * segment.has(mark::SACKED) as u32;
            sacked_segments += segment.has(mark::SACKED) as u32;
            lost += segment.span() * segment.has(mark::LOST) as u32;
            retransmitted += segment.span() * segment.has(mark::RETRANSMITTED) as u32;
            (last, at) = (at, segment.next);
        }
        assert!(tx.is_inline() || last == tx.tail(), "the send queue's tail");
        assert_eq!(bytes, tx.bytes, "bytes of the send queue");
        if sent {
            assert_eq!(seq, snd_nxt, "what is queued and sent ends at SND.NXT");
        }
        let (nxt, una) = (snd_nxt, snd_una);
        let ext = tcb.ext.as_ref();
        assert_eq!(ext.map_or(0, |e| e.lost), lost, "bytes marked lost");
        assert_eq!(ext.map_or(0, |e| e.retransmitted), retransmitted, "bytes marked retransmitted");
        if tcb.flags.has(Flags::SACK) {
            assert_eq!(ext.map_or(0, |e| e.sacked), sacked, "bytes marked SACKed");
        }
        assert_eq!(ext.map_or(0, |e| e.sacked_segments), sacked_segments, "segments marked SACKed");
        let closed = ext.is_some_and(|e| e.sender.closed_since.is_some());
        assert!(
            !closed || tcb.snd.wnd() == 0,
            "the peer's window is open, and it is still remembered when it was closed"
        );
        let remembered = ext.and_then(|e| e.loss.as_deref()).map_or(0, |l| l.rack.resent_kept());
        assert!(tcb.flags.has(Flags::SACK) || remembered == 0, "times of {remembered} segments without SACK");
        if let Some(probe) = ext.and_then(|e| e.loss.as_deref()).map(|l| l.probe) {
            assert!(!probe.due || probe.end.is_none(), "a second tail loss probe, and the first one's fate is open");
            assert!(probe.end.is_none_or(|end| end.at_or_before(nxt)), "a tail loss probe beyond SND.NXT");
        }
        assert!(sacked + lost <= nxt.since(una), "more SACKed and lost than sent");
        assert!(tcb.flight() <= nxt.since(una) * 2, "flight");
        if nxt != una {
            assert!(tcb.timer_runs(), "data in flight without a timer");
        }
        if let Some(deadline) = tcb.deadline(self.now) {
            // A connection that has not finished its turn to send arms its timer afterwards.
            let sending = tcb.flags.has(Flags::IN_DATA_LIST);
            assert!(tcb.armed_at() != 0 || sending, "a deadline without an entry in the wheel");
            assert!(sending || !tick_before(deadline, tcb.armed_at()), "the wheel's entry is later than the deadline");
        }
    }

    /// Checks that the recorded wheel entry of a connection exists.
    fn check_entries(&self, index: u32, tcb: &Tcb, entries: &BTreeSet<(Id, u64)>) {
        let now = self.now.as_nanos() >> TICK_SHIFT;
        let later = tcb.ext.as_ref().map_or(0, |ext| ext.later_entry);
        for tick in [tcb.armed_at(), later].into_iter().filter(|&tick| tick != 0) {
            let ahead = i64::from(tick.wrapping_sub(now as u32).cast_signed());
            // A deadline that was due at once has its entry in the next tick. An earlier one would
            // be skipped.
            let (first, last) = (now.saturating_add_signed(ahead), now.saturating_add_signed(ahead.max(1)));
            let id = (index, tcb.generation());
            let stands = entries.range((id, first)..=(id, last)).next().is_some();
            // An expired later entry need not exist.
            assert!(stands || tick == later && ahead <= 0, "the wheel has no entry at tick {first}, now {now}");
        }
    }

    fn check_receiving(&self, tcb: &Tcb, frames: &mut Frames) {
        let mut bytes = 0;
        tcb.rx.for_each(&self.nodes, |frame| {
            assert!(!frame.is_empty(), "an empty frame in a receive queue");
            bytes += frame.len() as u32;
            frames.receive += 1;
        });
        assert_eq!(bytes, tcb.rx.bytes, "bytes of the receive queue");
        let Some(ext) = tcb.ext.as_ref() else { return };
        let (mut before, mut held) = (tcb.rcv.nxt(), 0);
        for range in ext.out_of_order.iter() {
            assert!(range.start.after(before), "ranges out of order, touching, or not beyond RCV.NXT");
            let mut bytes = 0;
            range.data.for_each(&self.nodes, |frame| {
                assert!(!frame.is_empty(), "an empty frame in a range");
                bytes += frame.len() as u32;
                frames.receive += 1;
            });
            assert!(bytes > 0 && bytes == range.data.bytes, "bytes of a range");
            before = range.end();
            held += bytes;
        }
        assert!(ext.out_of_order.is_empty() || before.at_or_before(tcb.rcv.edge()), "data beyond the window");
        assert_eq!(held, ext.held, "bytes held out of order");
    }

    fn check_lists(&self, index: u32, tcb: &Tcb) {
        let path = self.net.path(tcb.path);
        // A stale path may have belonged to any interface.
        let own = |at: usize| path.state() == PathState::Stale || at == usize::from(path.iface().0);
        let mut queues = self.net.queues().iter().enumerate().filter(|(at, _)| own(*at)).map(|(_, queue)| queue);
        if tcb.flags.has(Flags::IN_ACK_LIST) {
            assert!(
                queues.clone().any(|queue| queue.has_ack(index)),
                "marked as in its interface's ACK list, and is not"
            );
        }
        if tcb.flags.has(Flags::IN_DATA_LIST) {
            assert!(queues.any(|queue| queue.has_data(index)), "marked as in its interface's data list, and is not");
        }
        if tcb.flags.has(Flags::ACK_NOW) {
            assert!(tcb.flags.any(Flags::IN_ACK_LIST | Flags::IN_DATA_LIST), "an ACK is due on no transmit list");
        }
        if tcb.flags.has(Flags::UNACCEPTED) {
            assert!(self.listeners.waits(index), "not accepted, and in no accept queue");
        }
    }

    /// Returns the receiving half of a connection.
    pub fn receiving(&self, id: TcpId) -> Option<Receiving> {
        let tcb = self.slots.open(self.slot_of(id).ok()?)?;
        let ranges = tcb.ext.as_ref().into_iter().flat_map(|e| e.out_of_order.iter());
        let held = ranges.map(|i| (i.start.0, i.end().0)).collect();
        Some(Receiving { nxt: tcb.rcv.nxt().0, edge: tcb.rcv.edge().0, held })
    }

    /// Returns the sending half of a connection.
    pub fn sending(&self, id: TcpId) -> Option<Sending> {
        let tcb = self.slots.open(self.slot_of(id).ok()?)?;
        let mut segments = usize::from(tcb.tx.is_inline());
        let mut at = if tcb.tx.is_inline() { NIL } else { tcb.tx.head() };
        while at != NIL {
            segments += 1;
            at = self.store.segments[at].next;
        }
        Some(Sending {
            una: tcb.snd.una().0,
            nxt: tcb.snd.nxt().0,
            window: tcb.snd.wnd(),
            cwnd: tcb.window.cwnd,
            flight: tcb.flight(),
            sacked: tcb.ext.as_ref().map_or(0, |e| e.sacked),
            mss: tcb.mss,
            segments,
        })
    }

    /// Returns the memory of all tables and queues, in bytes as far as they grow with traffic. If
    /// it does not return to its earlier value after an attack, memory has leaked.
    pub fn footprint(&self) -> usize {
        let slots = self.slots.len() * size_of::<Slot>();
        let handshakes = self.handshakes.capacity_bytes();
        let lists: usize = self.net.queues().iter().flat_map(|queue| queue.lens()).sum();
        let paths = self.net.waiting_and_paths().1 * 64;
        let lists = lists + self.frame_waiters.lists().map(|list| list.len()).iter().sum::<usize>();
        slots + handshakes + paths + (lists + self.outbox.len() + self.deadlines.len() + self.time_waits.queued()) * 16
    }

    /// Returns the flow-table hash of a key, for tests that target one bucket.
    pub fn flow_hash(&self, key: &crate::flow::FlowKey) -> u64 {
        self.hasher.hash(Protocol::Tcp, key)
    }
}
