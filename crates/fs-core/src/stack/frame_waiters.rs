//! Connections that wait for frames to send with, and the share that each may hold.
//!
//! A connection whose segments are acknowledged writes again at once. The connections that had the
//! frames when they ran out would therefore keep them, and others would starve. While a connection
//! waits, none takes more than its share, and waiting connections are notified in order.
//!
//! Peers that take no data may hold frames indefinitely. The last eighth of the frames is therefore
//! for connections that have nothing queued, two segments for each, if the peer's window is open
//! (Linux grants `tcp_wmem[0]` to each socket whatever others hold). A connection that was refused
//! even that is *starved*: until it is notified and has written, or that turn has ended, others leave
//! it the frames of two segments.

use crate::frame::FramePool;
use crate::tcb::Tcb;
use crate::tcb::flags::Flags;
use crate::tcb::send::sender::Starved;
use crate::tcb::send::store::TxStore;
use crate::tcb::slots::Slots;
use crate::time::{Duration, Instant};
use alloc::collections::VecDeque;

/// Minimum share in segments, for any number of waiting connections: a second segment makes the
/// receiver acknowledge at once (RFC 5681 4.2). With fewer frames than that, the connections take
/// turns.
const SHARE_MIN_SEGMENTS: usize = 2;

/// Number of free frames from which on one write needs no look at what is left: enough for the least of
/// a connection with the largest segments.
const PLENTY: usize = 128;

/// Time that a connection starves after which peers that acknowledge nothing are given up early. Too low:
/// under load, where each waits its turn, clients that have lost their network for two minutes are
/// reset. Too high: silent peers deny service for longer. Each is checked when its retransmission timer
/// expires, up to two minutes apart.
const STARVED_LONG: Duration = Duration::from_secs(10);

/// Connections whose application was refused space in the send queue for lack of frames, oldest
/// first: slot and generation.
#[derive(Debug, Default)]
pub(crate) struct FrameWaiters {
    queue: VecDeque<(u32, u32)>,
    /// Starved connections, with the time since which each starves. They may be in `queue`, too.
    starved: VecDeque<(u32, u32, Instant)>,
    /// Number of connections notified in this turn, which are about to take their share.
    told: usize,
    /// Number of those that starved and have not written yet. Another connection may write earlier in
    /// the turn, as its ACK was processed before them.
    promised: usize,
    /// Number of connections that have ended while they waited, since they were last removed.
    ended: usize,
    /// All waiting connections hold their share: each has segments in flight, whose acknowledgments
    /// or timers bring the next turn.
    all_hold_theirs: bool,
}

impl FrameWaiters {
    /// Returns true if no connection waits, and none has just been notified.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.starved.is_empty() && self.told == 0
    }

    /// Returns true if a scan may find a connection to notify.
    pub(crate) fn is_due(&self, store: &TxStore) -> bool {
        !self.starved.is_empty() && store.frames_left() > 0
            || !self.queue.is_empty() && !self.all_hold_theirs && store.room() > 0
    }

    /// Returns all waiting connections, and all starved ones, for `Stack::check`.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn lists(&self) -> [alloc::vec::Vec<(u32, u32)>; 2] {
        let starved = self.starved.iter().map(|&(index, generation, _)| (index, generation));
        [self.queue.iter().copied().collect(), starved.collect()]
    }

    /// Returns true if a connection has starved for long: the frames do not go around, because peers that
    /// acknowledge nothing hold them.
    pub(crate) fn starve_for_long(&mut self, slots: &mut Slots, now: Instant) -> bool {
        while let Some(&(index, generation, since)) = self.starved.front() {
            match slots.open_mut(index).filter(|tcb| tcb.generation() == generation) {
                Some(tcb) if is_writer(tcb) => return now.since(since) >= STARVED_LONG,
                Some(tcb) => tcb.ext_mut().sender.starved = Starved::No,
                None => {}
            }
            self.starved.pop_front();
        }
        false
    }

    /// Makes a connection wait whose application was refused space.
    #[cold]
    pub(crate) fn wait(&mut self, index: u32, tcb: &mut Tcb, now: Instant) {
        let generation = tcb.generation();
        if tcb.tx.bytes == 0 && tcb.snd.wnd() > 0 {
            let starved = &mut tcb.ext_mut().sender.starved;
            if core::mem::replace(starved, Starved::Waits) != Starved::Waits {
                self.starved.push_back((index, generation, now));
            }
        } else if !tcb.flags.has(Flags::WAITS_FOR_POOL) {
            tcb.flags.set(Flags::WAITS_FOR_POOL);
            self.queue.push_back((index, generation));
            self.all_hold_theirs = false;
        }
    }

    /// Returns the bytes that a connection may hold, where a frame takes `payload`. A connection
    /// that holds its share and wants more waits as well, so all heavy senders are soon in the
    /// list.
    fn share(&self, store: &TxStore, payload: usize, tcb: &Tcb) -> usize {
        // Counts the connection itself, unless it was notified, or waits and tries again.
        let other = usize::from(self.told == 0 && !tcb.flags.has(Flags::WAITS_FOR_POOL));
        let all = (self.queue.len() + self.starved.len() + self.told + other).max(1);
        let mss = usize::from(tcb.mss);
        (store.most().div_ceil(all) * payload.min(mss)).max(SHARE_MIN_SEGMENTS * mss)
    }

    /// Returns the bytes that a connection may queue now.
    #[inline]
    pub(crate) fn room<P: FramePool>(&mut self, store: &TxStore, pool: &P, tcb: &mut Tcb) -> usize {
        let (frames, payload) = (store.room(), pool.payload_room());
        if self.is_empty() && frames >= PLENTY {
            return frames * payload.min(usize::from(tcb.mss));
        }
        self.scarce_room(store, payload, pool.available(), tcb)
    }

    #[cold]
    #[inline(never)]
    fn scarce_room(&mut self, store: &TxStore, payload: usize, available: usize, tcb: &mut Tcb) -> usize {
        let mss = usize::from(tcb.mss);
        let (frame, mut left) = (payload.min(mss), store.frames_left());
        let mut room = store.room() * frame;
        if !self.is_empty() {
            let reserved = self.starved_before(tcb) * SHARE_MIN_SEGMENTS * mss.div_ceil(frame.max(1));
            if reserved > 0 {
                left = left.min(available).saturating_sub(reserved);
            }
            let share = self.share(store, payload, tcb).saturating_sub(tcb.tx.bytes as usize);
            room = room.min(left * frame).min(share);
        }
        let least = SHARE_MIN_SEGMENTS * mss;
        if room < least && tcb.tx.bytes == 0 {
            room = room.max(least.min(left * frame).min(tcb.snd.wnd() as usize));
        }
        room
    }

    /// Returns the number of other, starved connections whose frames a write must leave.
    fn starved_before(&mut self, tcb: &mut Tcb) -> usize {
        let starved = tcb.ext.as_ref().map_or(Starved::No, |ext| ext.sender.starved);
        if starved == Starved::Told {
            tcb.ext_mut().sender.starved = Starved::No;
            // It may have been notified in an earlier turn.
            self.promised = self.promised.saturating_sub(1);
            return 0;
        }
        (self.starved.len() + self.promised).saturating_sub(usize::from(starved == Starved::Waits))
    }

    /// Returns true if the connection is in a list.
    pub(crate) fn holds(tcb: &Tcb) -> bool {
        tcb.flags.has(Flags::WAITS_FOR_POOL) || tcb.ext.as_ref().is_some_and(|ext| ext.sender.starved == Starved::Waits)
    }

    /// Records that a connection that waited has ended. Removes such connections once they are half of
    /// all: while peers that take no data hold the frames, nothing else would.
    #[cold]
    pub(crate) fn end(&mut self, slots: &Slots) {
        self.ended += 1;
        if self.ended * 2 > self.queue.len() + self.starved.len() {
            let is_open = |index, generation| slots.open(index).is_some_and(|tcb| tcb.generation() == generation);
            self.queue.retain(|&(index, generation)| is_open(index, generation));
            self.starved.retain(|&(index, generation, _)| is_open(index, generation));
            self.ended = 0;
        }
    }

    /// Ends the reservation for connections that were notified in the last turn.
    pub(crate) fn begin_turn(&mut self) {
        (self.told, self.promised) = (0, 0);
    }

    /// Starts a turn's scan of the waiting connections; a frame takes `payload` bytes.
    pub(crate) fn look(&self, store: &TxStore, available: usize, payload: usize) -> Scan {
        let (frames, least) = (store.room().min(available), store.frames_left().min(available));
        Scan { frames, least, payload, entries: self.queue.len() }
    }

    /// Removes the oldest starved connection, or the oldest one that can take half of its share, or an
    /// eighth of all frames. Returns `None` if there is none, or if all frames are promised.
    pub(crate) fn next(&mut self, look: &mut Scan, store: &TxStore, slots: &mut Slots) -> Option<u32> {
        while look.least > 0 {
            let Some((index, generation, _)) = self.starved.pop_front() else { break };
            let Some(tcb) = slots.open_mut(index).filter(|tcb| tcb.generation() == generation) else { continue };
            tcb.ext_mut().sender.starved = Starved::Told;
            if !is_writer(tcb) {
                continue;
            }
            self.told += 1;
            self.promised += 1;
            look.least = look.least.saturating_sub(SHARE_MIN_SEGMENTS);
            look.frames = look.frames.saturating_sub(SHARE_MIN_SEGMENTS);
            return Some(index);
        }
        while look.entries > 0 && look.frames > 0 {
            look.entries -= 1;
            let (index, generation) = self.queue.pop_front()?;
            let Some(tcb) = slots.open_mut(index).filter(|tcb| tcb.generation() == generation) else { continue };
            if !is_writer(tcb) {
                tcb.flags.clear(Flags::WAITS_FOR_POOL);
                continue;
            }
            self.queue.push_back((index, generation));
            let share = self.share(store, look.payload, tcb);
            let room = share.saturating_sub(tcb.tx.bytes as usize);
            let frame = look.payload.clamp(1, usize::from(tcb.mss));
            // Requires at least one byte of space, also if an eighth of few frames is none: a
            // connection that is notified in vain waits again at once.
            if room < (share / 2).min(store.eighth() * frame).max(1) {
                continue;
            }
            self.queue.pop_back();
            self.told += 1;
            look.frames = look.frames.saturating_sub((room / frame).max(1));
            tcb.flags.clear(Flags::WAITS_FOR_POOL);
            return Some(index);
        }
        self.all_hold_theirs = self.told == 0 && look.frames > 0;
        None
    }
}

/// Returns true if the application can still write.
fn is_writer(tcb: &Tcb) -> bool {
    !tcb.flags.any(Flags::ORPHAN | Flags::FIN_QUEUED)
}

/// State of a scan: see [`FrameWaiters::look`].
pub(crate) struct Scan {
    /// Frames in front of the last eighth that are not promised.
    frames: usize,
    /// All frames that are not promised.
    least: usize,
    payload: usize,
    /// Entries that are not scanned yet.
    entries: usize,
}
