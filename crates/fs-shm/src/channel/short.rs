//! The fast path of sending and receiving, over a connection without any trouble: one buffer that goes inline or, sent, in one piece
//! into the slot's ring. It does what `io.rs` and `ring.rs` would do with such a message, in fewer instructions
//! (`docs/decisions/0007-fast-path-for-short-messages.md`); what it cannot do it leaves to them, with nothing done.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use super::state::State;
use super::{CAPTURED, CORKED, CUT, Channel, DEFERRED, HOLDING, RESET_SEEN, SND_SHUT};
use crate::copy_unsafe::Chunk;
use crate::layout::{Block, INLINE};
use crate::ring::{self, Map, inline_word};

impl Channel<'_> {
    /// Open (accepted or not), nobody closed or reset, the handle not stale.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        State(self.block().state.load(Acquire)).is_plain_of(self.generation())
    }

    /// May send without a further look: open, not shut for sending, no error pending, known to its acceptor, nothing held back,
    /// nobody who follows it.
    #[inline]
    pub(super) fn may_send(&self) -> bool {
        self.is_untroubled(0)
    }

    /// [`Channel::may_send`], and has none of these flags either.
    #[inline]
    fn is_untroubled(&self, besides: u32) -> bool {
        const TROUBLE: u32 = SND_SHUT | RESET_SEEN | DEFERRED | CORKED | HOLDING | CAPTURED;
        let own = self.own();
        own.flags.load(Acquire) & (TROUBLE | besides) == 0 && own.error.load(Relaxed) == 0 && self.is_open()
    }

    /// Sends all of `buf`: in the producer's own line if it fits and the ring is empty as far as is known without asking, else in the
    /// slot's ring if that is known to have room for it in one piece. The caller holds the send lock. False: not this way.
    #[inline]
    pub(super) fn send_short(&self, buf: &[u8]) -> bool {
        let (me, peer) = (self.side().index(), self.side().other().index());
        let (out, back) = (&self.block().out[me].hot, &self.block().out[peer].hot);
        // With CUT `note_cut` is called for it.
        if buf.is_empty() || !self.is_untroubled(CUT) {
            return false;
        }
        let tail = out.tail.load(Relaxed);
        // Acquire: the peer's copy out of what was there before happened before it wrote `ack`.
        let is_empty = || back.ack.load(Acquire) == tail || self.block().tx[me].head_seen.load(Relaxed) == tail;
        if buf.len() <= INLINE && is_empty() {
            Chunk::inline(&out.inline).copy_from_short(buf);
            out.inline_at.store(inline_word(tail, buf.len()), Relaxed);
        } else if !self.put_known(buf, tail) {
            return false;
        }
        // As in `Ring::publish`.
        out.ack.store(self.block().inn[me].hot.head.load(Acquire), Release);
        out.tail.swap(tail.wrapping_add(buf.len() as u64), SeqCst);
        self.notify_published(self.side().other(), true, false);
        true
    }

    /// Copies to where the bytes behind `tail` are, if the slot's ring is known to have room for all of them in one piece. Does what the
    /// way by `Ring::make_space` does then. False: nothing is written that anybody can see, but for `TxOwn::head_seen`.
    ///
    /// Out of line: what goes inline has no use for it.
    #[inline(never)]
    fn put_known(&self, buf: &[u8], tail: u64) -> bool {
        let (me, peer) = (self.side().index(), self.side().other().index());
        let Block { out, tx, own, .. } = self.block();
        let (rare, arena) = (&out[me].rare, self.arena());
        if rare.large.load(Relaxed) != 0 {
            return false;
        }
        let geometry = arena.geometry();
        let Ok(map) = Map::from_word(rare.map.load(Relaxed), geometry) else { return false };
        let head = ring::head_known(tail, &tx[me], &out[peer].hot);
        let buffers = [&own[me].buffers[0], &own[peer].buffers[1]];
        let room = ring::capacity_of(map, geometry, buffers).saturating_sub(tail.wrapping_sub(head));
        let (at, piece) = map.place(tail, buf.len() as u64);
        if room < buf.len() as u64 || piece < buf.len() || map.settled(head, tail).is_some() {
            return false;
        }
        ring::retire_inline(&out[me].hot, head);
        let chunk = arena.region().chunk(arena.ring_offset(self.slot(), self.side()) + at, piece);
        if piece <= INLINE {
            chunk.copy_from_short(buf);
        } else {
            chunk.copy_from(buf);
        }
        true
    }

    /// Receives all that is unread, if that is inline and `buf` has room for it. The caller holds the receive lock. `None`:
    /// not this way.
    ///
    /// Nobody can wait for the space (`docs/SHM.md`, "Space"): it is less than a quarter of any ring, and that of an empty
    /// one. Nor has another such message come before the producer knew of this one's end.
    #[inline]
    pub(super) fn recv_short(&self, buf: &mut [u8]) -> Option<usize> {
        let (me, peer) = (self.side().index(), self.side().other().index());
        let (from, inn) = (&self.block().out[peer], &self.block().inn[me].hot);
        let head = inn.head.load(Relaxed);
        let tail = from.hot.tail.load(Acquire);
        let unread = tail.wrapping_sub(head);
        if unread > INLINE.min(buf.len()) as u64 || unread == 0 || !self.is_open() {
            return None;
        }
        let unread = unread as usize;
        if from.hot.inline_at.load(Relaxed) != inline_word(head, unread) || from.rare.urgent.load(Relaxed) != 0 {
            return None;
        }
        Chunk::inline(&from.hot.inline).copy_to_short(&mut buf[..unread]);
        inn.head.store(tail, Release);
        Some(unread)
    }
}
