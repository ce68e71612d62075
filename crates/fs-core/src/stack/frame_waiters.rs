//! Who waits for frames to send with, and what each may hold meanwhile.
//!
//! A connection whose segments are acknowledged writes again at once, so those that had the frames when they ran out would keep them,
//! and others would have none: while somebody waits, nobody takes more than its share, nobody takes any of the last eighth, and those
//! who wait are told one after the other.

use crate::tcb::Tcb;
use crate::tcb::flags::Flags;
use crate::tcb::send::store::TxStore;
use crate::tcb::slots::Slots;
use alloc::collections::VecDeque;

/// Segments that each may hold, however many wait: the second has the receiver answer at once (RFC 5681 4.2). Where there are
/// fewer frames than that they have turns.
const LEAST: usize = 2;

/// Connections whose application was refused room in the send queue for want of frames, oldest first: slot and generation.
#[derive(Debug, Default)]
pub(crate) struct FrameWaiters {
    queue: VecDeque<(u32, u32)>,
    /// Those who were told in this turn, and are about to take their share.
    told: usize,
    /// All hold theirs: each has segments in flight, whose acknowledgments or timers bring the next turn.
    all_hold_theirs: bool,
}

impl FrameWaiters {
    /// Nobody waits, and nobody has just been told.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.told == 0
    }

    /// A look may find one to tell.
    pub(crate) fn is_due(&self) -> bool {
        !self.queue.is_empty() && !self.all_hold_theirs
    }

    /// For the check of all state.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u32)> {
        self.queue.iter().copied()
    }

    pub(crate) fn push(&mut self, index: u32, generation: u32) {
        self.queue.push_back((index, generation));
        self.all_hold_theirs = false;
    }

    /// Bytes that a connection may hold, of which a frame takes `payload`. Who holds its share and wants more waits as well, so those
    /// who wait are soon all who send much.
    fn share(&self, store: &TxStore, payload: usize, tcb: &Tcb) -> u32 {
        // One of those that were told, one that waits and tries again, or another.
        let other = usize::from(self.told == 0 && !tcb.flags.has(Flags::WAITS_FOR_POOL));
        let all = (self.queue.len() + self.told + other).max(1);
        let mss = usize::from(tcb.mss);
        let bytes = (store.most().div_ceil(all) * payload.min(mss)).max(LEAST * mss);
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }

    /// Bytes that a connection may queue now.
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

    /// Those who were told have had their turn.
    pub(crate) fn begin_turn(&mut self) {
        self.told = 0;
    }

    /// A turn's look at those who wait; a frame takes `payload` bytes.
    pub(crate) fn look(&self, store: &TxStore, available: usize, payload: usize) -> Look {
        let frames = store.room().min(available);
        Look { frames, payload, entries: self.queue.len() }
    }

    /// Takes out the oldest one that has half of its share to take, or an eighth of all frames; `None`: no more of them, or all frames
    /// are promised.
    pub(crate) fn next(&mut self, look: &mut Look, store: &TxStore, slots: &mut Slots) -> Option<u32> {
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
            // Never without room, also where an eighth of few frames is none: who is told in vain waits again at once.
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

/// See [`FrameWaiters::look`].
pub(crate) struct Look {
    /// That are not promised.
    frames: usize,
    payload: usize,
    /// That have not been looked at.
    entries: usize,
}
