//! Who waits for frames to send with, and what each may hold meanwhile.
//!
//! A connection whose segments are acknowledged writes again at once, so those that had the frames when they ran out would keep them,
//! and others would have none: while somebody waits, nobody takes more than its share, and those who wait are told one after the other.

use crate::tcb::Tcb;
use crate::tcb::flags::Flags;
use crate::tcb::send::store::TxStore;
use crate::tcb::slots::Slots;
use alloc::collections::VecDeque;

/// Segments that each may hold, however many wait: the second has the receiver answer at once (RFC 5681 4.2). Where there are
/// fewer frames than that they have turns.
const LEAST: usize = 2;
/// Those who wait that are looked at in a turn without finding one to tell. More: time for each turn. Fewer: frames lie idle.
const LOOKS: usize = 64;

/// Connections whose application was refused room in the send queue for want of frames, oldest first: slot and generation.
#[derive(Debug, Default)]
pub(crate) struct FrameWaiters {
    queue: VecDeque<(u32, u32)>,
    /// So many in a row were found to hold their share. If it is all of them, each has segments in flight, whose acknowledgments or
    /// timers bring the next turn.
    in_vain: usize,
}

impl FrameWaiters {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// A look may find one to tell.
    pub(crate) fn is_due(&self) -> bool {
        self.in_vain < self.queue.len()
    }

    pub(crate) fn push(&mut self, index: u32, generation: u32) {
        self.queue.push_back((index, generation));
        self.in_vain = 0;
    }

    /// Bytes that a connection may hold, of which a frame takes `payload`. Who holds its share and wants more waits as well, so those
    /// who wait are soon all who send much.
    #[inline]
    pub(crate) fn share(&self, store: &TxStore, payload: usize, tcb: &Tcb) -> u32 {
        match self.queue.len() {
            0 => u32::MAX,
            waiters => {
                let mss = usize::from(tcb.mss);
                let bytes = (store.most().div_ceil(waiters) * payload.min(mss)).max(LEAST * mss);
                u32::try_from(bytes).unwrap_or(u32::MAX)
            }
        }
    }

    /// A turn's look at those who wait, with so many frames for them, each of which takes `payload` bytes.
    pub(crate) fn look(&mut self, frames: usize, payload: usize) -> Look {
        if !self.is_due() {
            self.in_vain = 0;
        }
        Look { frames, payload, entries: LOOKS.min(self.queue.len()) }
    }

    /// Takes out the oldest one that has at least half of its share to take; `None`: no more of them, or all frames are promised.
    pub(crate) fn next(&mut self, look: &mut Look, store: &TxStore, slots: &mut Slots) -> Option<u32> {
        while look.entries > 0 && look.frames > 0 {
            let &(index, generation) = self.queue.front()?;
            let Some(tcb) = slots.open_mut(index).filter(|tcb| tcb.generation() == generation) else {
                self.queue.pop_front();
                continue;
            };
            let share = self.share(store, look.payload, tcb);
            let room = share.saturating_sub(tcb.tx.bytes);
            self.queue.pop_front();
            if room < share / 2 {
                self.queue.push_back((index, generation));
                look.entries -= 1;
                self.in_vain += 1;
                continue;
            }
            self.in_vain = 0;
            let frame = look.payload.clamp(1, usize::from(tcb.mss));
            look.frames = look.frames.saturating_sub((room as usize / frame).max(1));
            tcb.flags.clear(Flags::WAITS_FOR_POOL);
            return Some(index);
        }
        None
    }
}

/// See [`FrameWaiters::look`].
pub(crate) struct Look {
    /// That are not promised.
    frames: usize,
    payload: usize,
    /// That may still be found to hold their share.
    entries: usize,
}
