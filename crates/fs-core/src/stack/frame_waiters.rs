//! Connections that wait for frames to send with, and the share that each may hold.
//!
//! A connection whose segments are acknowledged writes again at once. The connections that had the
//! frames when they ran out would therefore keep them, and others would starve. While a connection
//! waits, none takes more than its share, none takes any of the last eighth, and waiting
//! connections are notified in order.

use crate::tcb::Tcb;
use crate::tcb::flags::Flags;
use crate::tcb::send::store::TxStore;
use crate::tcb::slots::Slots;
use alloc::collections::VecDeque;

/// Minimum share in segments, for any number of waiting connections: a second segment makes the
/// receiver acknowledge at once (RFC 5681 4.2). With fewer frames than that, the connections take
/// turns.
const SHARE_MIN_SEGMENTS: usize = 2;

/// Connections whose application was refused space in the send queue for lack of frames, oldest
/// first: slot and generation.
#[derive(Debug, Default)]
pub(crate) struct FrameWaiters {
    queue: VecDeque<(u32, u32)>,
    /// Number of connections notified in this turn, which are about to take their share.
    told: usize,
    /// All waiting connections hold their share: each has segments in flight, whose acknowledgments
    /// or timers bring the next turn.
    all_hold_theirs: bool,
}

impl FrameWaiters {
    /// Returns true if no connection waits, and none has just been notified.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.told == 0
    }

    /// Returns true if a scan may find a connection to notify.
    pub(crate) fn is_due(&self) -> bool {
        !self.queue.is_empty() && !self.all_hold_theirs
    }

    /// Returns all waiting connections, for `Stack::check`.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u32)> {
        self.queue.iter().copied()
    }

    pub(crate) fn push(&mut self, index: u32, generation: u32) {
        self.queue.push_back((index, generation));
        self.all_hold_theirs = false;
    }

    /// Returns the bytes that a connection may hold, where a frame takes `payload`. A connection
    /// that holds its share and wants more waits as well, so all heavy senders are soon in the
    /// list.
    fn share(&self, store: &TxStore, payload: usize, tcb: &Tcb) -> u32 {
        // Counts the connection itself, unless it was notified, or waits and tries again.
        let other = usize::from(self.told == 0 && !tcb.flags.has(Flags::WAITS_FOR_POOL));
        let all = (self.queue.len() + self.told + other).max(1);
        let mss = usize::from(tcb.mss);
        let bytes = (store.most().div_ceil(all) * payload.min(mss)).max(SHARE_MIN_SEGMENTS * mss);
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }

    /// Returns the bytes that a connection may queue now.
    #[inline]
    pub(crate) fn room(&self, store: &TxStore, payload: usize, tcb: &Tcb) -> u32 {
        if self.is_empty() {
            u32::MAX
        } else if self.queue.is_empty() || store.has_room() {
            self.share(store, payload, tcb).saturating_sub(tcb.tx.bytes)
        } else {
            0
        }
    }

    /// Ends the reservation for connections that were notified in the last turn.
    pub(crate) fn begin_turn(&mut self) {
        self.told = 0;
    }

    /// Starts a turn's scan of the waiting connections; a frame takes `payload` bytes.
    pub(crate) fn look(&self, store: &TxStore, available: usize, payload: usize) -> Scan {
        let frames = store.room().min(available);
        Scan { frames, payload, entries: self.queue.len() }
    }

    /// Removes the oldest connection that can take half of its share, or an eighth of all frames.
    /// Returns `None` if there is none, or if all frames are promised.
    pub(crate) fn next(&mut self, look: &mut Scan, store: &TxStore, slots: &mut Slots) -> Option<u32> {
        while look.entries > 0 && look.frames > 0 {
            look.entries -= 1;
            let (index, generation) = self.queue.pop_front()?;
            let Some(tcb) = slots.open_mut(index).filter(|tcb| tcb.generation() == generation) else { continue };
            if tcb.flags.any(Flags::ORPHAN | Flags::FIN_QUEUED) {
                tcb.flags.clear(Flags::WAITS_FOR_POOL);
                continue;
            }
            self.queue.push_back((index, generation));
            let share = self.share(store, look.payload, tcb);
            let room = share.saturating_sub(tcb.tx.bytes) as usize;
            let frame = look.payload.clamp(1, usize::from(tcb.mss));
            // Requires at least one byte of space, also if an eighth of few frames is none: a
            // connection that is notified in vain waits again at once.
            if room < (share as usize / 2).min(store.eighth() * frame).max(1) {
                continue;
            }
            self.queue.pop_back();
            self.told += 1;
            look.frames = look.frames.saturating_sub((room / frame).max(1));
            tcb.flags.clear(Flags::WAITS_FOR_POOL);
            return Some(index);
        }
        self.all_hold_theirs = self.told == 0;
        None
    }
}

/// State of a scan: see [`FrameWaiters::look`].
pub(crate) struct Scan {
    /// Frames that are not promised.
    frames: usize,
    payload: usize,
    /// Entries that are not scanned yet.
    entries: usize,
}
