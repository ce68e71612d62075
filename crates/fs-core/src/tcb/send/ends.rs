//! Location of a send queue's segments: in the core's store, or a single one in the control block
//! itself.

use crate::slab::NIL;

/// The segments of a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Segments {
    /// In the store, linked from `head` to `tail`; both are `NIL` if there is none.
    Stored { head: u32, tail: u32 },
    /// An ordinary segment that has been sent: the chunk of its frame, and when it was sent.
    Inline { chunk: u32, sent_us: u32 },
}

/// Encodes [`Segments`] in eight bytes, the space in the control block: the chunk of an inline
/// segment has this bit, which no index of a stored one has.
const INLINE: u32 = 1 << 31;

/// Encoded [`Segments`]: see [`INLINE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends(u32, u32);

impl Ends {
    /// No segment.
    pub(super) const NONE: Ends = Ends(NIL, NIL);

    /// Returns true if the chunk of an inline segment can be distinguished from an index.
    #[inline(always)]
    pub(super) fn can_hold(chunk: u32) -> bool {
        chunk < !INLINE
    }

    #[inline(always)]
    pub(super) fn stored(head: u32, tail: u32) -> Ends {
        debug_assert!(head < INLINE || head == NIL);
        Ends(head, tail)
    }

    #[inline(always)]
    pub(super) fn inline(chunk: u32, sent_us: u32) -> Ends {
        debug_assert!(Ends::can_hold(chunk));
        Ends(INLINE | chunk, sent_us)
    }

    #[inline(always)]
    pub(super) fn get(self) -> Segments {
        let Ends(head, tail) = self;
        if head >= INLINE && head != NIL {
            Segments::Inline { chunk: head & !INLINE, sent_us: tail }
        } else {
            Segments::Stored { head, tail }
        }
    }

    #[inline(always)]
    pub(super) fn is_none(self) -> bool {
        self.0 == NIL
    }

    #[inline(always)]
    pub(super) fn is_inline(self) -> bool {
        matches!(self.get(), Segments::Inline { .. })
    }

    /// Returns the first stored segment.
    #[inline(always)]
    pub(super) fn head(self) -> u32 {
        debug_assert!(!self.is_inline());
        self.0
    }

    /// Returns the last stored segment.
    #[inline(always)]
    pub(super) fn tail(self) -> u32 {
        debug_assert!(!self.is_inline());
        self.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_round_trip() {
        for (head, tail) in [(0, 0), (5, INLINE - 1), (NIL, NIL)] {
            assert_eq!(Ends::stored(head, tail).get(), Segments::Stored { head, tail });
        }
        for (chunk, sent_us) in [(0, 0), (7, NIL), (INLINE - 2, INLINE)] {
            assert!(Ends::can_hold(chunk));
            assert_eq!(Ends::inline(chunk, sent_us).get(), Segments::Inline { chunk, sent_us });
        }
        assert!(!Ends::can_hold(INLINE - 1), "it would be no segment");
        assert!(Ends::NONE.is_none() && !Ends::NONE.is_inline() && Ends::inline(0, 0).is_inline());
    }
}
