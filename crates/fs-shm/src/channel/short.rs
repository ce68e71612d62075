//! The fast path of sending and receiving: one buffer and at most [`INLINE`] bytes, over a connection without any
//! trouble. It does what `io.rs` and `ring.rs` would do with such a message, in a third of the instructions; what it
//! cannot do it leaves to them, with nothing done.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use super::state::State;
use super::{CAPTURED, CORKED, CUT, Channel, DEFERRED, HOLDING, RESET_SEEN, SND_SHUT};
use crate::copy_unsafe::Chunk;
use crate::layout::INLINE;
use crate::ring::inline_word;

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
        let own = self.own();
        let untroubled = own.flags.load(Acquire) & (SND_SHUT | RESET_SEEN | DEFERRED | CORKED | HOLDING | CAPTURED)
            == 0
            && own.error.load(Relaxed) == 0;
        untroubled && self.is_open()
    }

    /// Sends all of `buf` in the producer's own line, if it fits and the ring is empty as far as is known without asking.
    /// The caller holds the send lock. False: not this way.
    #[inline]
    pub(super) fn send_short(&self, buf: &[u8]) -> bool {
        let (me, peer) = (self.side().index(), self.side().other().index());
        let (out, back) = (&self.block().out[me].hot, &self.block().out[peer].hot);
        if buf.len() > INLINE || buf.is_empty() || !self.may_send() {
            return false;
        }
        let tail = out.tail.load(Relaxed);
        // Acquire: the peer's copy out of what was there before happened before it wrote `ack`.
        if back.ack.load(Acquire) != tail && self.block().tx[me].head_seen.load(Relaxed) != tail {
            return false;
        }
        if self.own().flags.load(Relaxed) & CUT != 0 {
            // `note_cut` is called for it.
            return false;
        }
        Chunk::inline(&out.inline).copy_from_short(buf);
        out.inline_at.store(inline_word(tail, buf.len()), Relaxed);
        // As in `Ring::publish`.
        out.ack.store(self.block().inn[me].hot.head.load(Acquire), Release);
        out.tail.swap(tail.wrapping_add(buf.len() as u64), SeqCst);
        self.notify_published(self.side().other(), true, false);
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
