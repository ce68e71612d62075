//! `W`, the word of a direction: which carrier is in use, and up to where the ring is written.
//!
//! Every change of it is one compare-exchange, so "bytes were published" and "the reader is about
//! to sleep" cannot both succeed. That is why the rules need no full fence.
//!
//! ```text
//!  bit 63                  16 15        10 9        4  3    2      1       0
//! |          tail           |   inline   |     I     | - |  G   |  Q   |  ring  |
//! ```
//!
//! `ring` is the complement of the design's `M`: memory of zeros, as a new or a punched file has
//! it, means that the kernel carries.

use crate::position::Position;
use crate::sync::{AtomicU64, Ordering};

const RING: u64 = 1;
const REQUESTED: u64 = 1 << 1;
const PINNED: u64 = 1 << 2;
const IN_FLIGHT_SHIFT: u32 = 4;
const IN_FLIGHT_ONE: u64 = 1 << IN_FLIGHT_SHIFT;
const IN_FLIGHT: u64 = 63 << IN_FLIGHT_SHIFT;
const INLINE_SHIFT: u32 = 10;
const INLINE: u64 = 63 << INLINE_SHIFT;
const TAIL_SHIFT: u32 = 16;

/// Sends in flight that the word can count. One more pins the direction.
pub const MAX_IN_FLIGHT: u32 = 63;

/// One reading of the word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Snapshot(u64);

impl Snapshot {
    /// The word of a new region: the kernel carries, and one send is in flight, which is all that
    /// the producer sends before it joins. No message has such a length that is in the line.
    #[cfg(not(all(loom, test)))]
    pub(crate) const NOT_JOINED: u64 = IN_FLIGHT_ONE | INLINE;

    pub(crate) fn of_bits(bits: u64) -> Self {
        Snapshot(bits)
    }

    /// Returns the position after the last byte in the ring.
    #[inline]
    #[must_use]
    pub fn tail(self) -> Position {
        Position::new(self.0 >> TAIL_SHIFT)
    }

    /// Returns how many bytes before the tail stand in the word's cache line too; 0: none.
    #[inline]
    #[must_use]
    pub fn inline_len(self) -> usize {
        ((self.0 & INLINE) >> INLINE_SHIFT) as usize
    }

    /// Returns whether the producer's end has promoted the connection.
    #[must_use]
    pub fn has_joined(self) -> bool {
        self.0 & INLINE != INLINE
    }

    /// Returns the number of sends in flight in the kernel (`I`).
    #[must_use]
    pub fn in_flight(self) -> u32 {
        ((self.0 & IN_FLIGHT) >> IN_FLIGHT_SHIFT) as u32
    }

    /// Returns whether the kernel carries (`M`).
    #[inline]
    #[must_use]
    pub fn kernel_carries(self) -> bool {
        self.0 & RING == 0
    }

    /// Returns whether the consumer asks for the ring as soon as no send is in flight (`Q`).
    #[must_use]
    pub fn is_requested(self) -> bool {
        self.0 & REQUESTED != 0
    }

    /// Returns whether the kernel carries for good (`G`).
    #[must_use]
    pub fn is_pinned(self) -> bool {
        self.0 & PINNED != 0
    }

    /// Returns whether the kernel carries and nobody has asked for another carrier: what may
    /// arrive, arrives in the kernel.
    #[inline]
    #[must_use]
    pub fn is_kernel_only(self) -> bool {
        self.0 & (RING | REQUESTED) == 0
    }

    /// Returns whether the consumer has asked for the ring and no send stands in the way.
    fn may_be_granted(self) -> bool {
        self.0 & (RING | REQUESTED | PINNED | IN_FLIGHT) == REQUESTED
    }

    /// Returns whether two readings differ in no more than the number of sends in flight.
    #[must_use]
    pub fn same_but_for_flights(self, other: Snapshot) -> bool {
        (self.0 ^ other.0) & !IN_FLIGHT == 0
    }
}

impl core::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("W")
            .field("tail", &self.tail())
            .field("inline", &self.inline_len())
            .field("I", &self.in_flight())
            .field("M", &self.kernel_carries())
            .field("Q", &self.is_requested())
            .field("G", &self.is_pinned())
            .finish()
    }
}

/// The outcome of [`Word::begin_kernel_send`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum KernelSend {
    /// The send is counted. [`Word::end_kernel_send`] has to follow.
    Counted,
    /// The direction is pinned, so nothing has to be counted any more.
    Uncounted,
    /// The word is another by now, or the ring carries: look again.
    Changed,
}

/// The word.
///
/// Transitions take the reading on which the caller's decision rests, and fail if the word is another by now.
#[derive(Debug)]
#[repr(transparent)]
pub struct Word(AtomicU64);

#[cfg(all(loom, test))]
impl Word {
    pub(crate) fn new() -> Self {
        Word(AtomicU64::new(0))
    }
}

impl Word {
    /// Accesses of a hostile peer.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn overwrite(&self, bits: u64) {
        self.0.store(bits, Ordering::Release);
    }

    /// Reads the word. What was written before it was published is visible afterwards.
    #[inline]
    #[must_use]
    pub fn load(&self) -> Snapshot {
        Snapshot(self.0.load(Ordering::Acquire))
    }

    #[inline]
    fn swap(&self, seen: Snapshot, next: u64) -> bool {
        self.0.compare_exchange(seen.0, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// P1: publishes `len` bytes behind the tail, of which `inline` stand in the line too. Fails if
    /// the carrier has changed, and then nothing was published.
    #[inline]
    pub fn publish(&self, seen: Snapshot, len: usize, inline: usize) -> bool {
        let tail = seen.tail().advance(len as u64);
        self.swap(seen, tail.bits() << TAIL_SHIFT | ((inline as u64) << INLINE_SHIFT) | RING)
    }

    /// P2: counts a send that is about to enter the kernel.
    ///
    /// With [`MAX_IN_FLIGHT`] sends in flight the direction is pinned instead: nobody waits for a turn.
    pub fn begin_kernel_send(&self, seen: Snapshot) -> KernelSend {
        if !seen.kernel_carries() {
            return KernelSend::Changed;
        }
        if seen.is_pinned() {
            return KernelSend::Uncounted;
        }
        let (next, outcome) = if seen.in_flight() == MAX_IN_FLIGHT {
            ((seen.0 | PINNED) & !REQUESTED, KernelSend::Uncounted)
        } else {
            (seen.0 + IN_FLIGHT_ONE, KernelSend::Counted)
        };
        if self.swap(seen, next) { outcome } else { KernelSend::Changed }
    }

    /// P2: a counted send has returned, and `K` includes its bytes. The last of several sends
    /// grants the ring to a consumer that asked for it.
    pub fn end_kernel_send(&self) {
        loop {
            let seen = self.load();
            if seen.in_flight() == 0 {
                // The word was overwritten by a hostile peer.
                return;
            }
            let less = Snapshot(seen.0 - IN_FLIGHT_ONE);
            let next = if less.may_be_granted() { less.0 & !REQUESTED | RING } else { less.0 };
            if self.swap(seen, next) {
                return;
            }
        }
    }

    /// The producer's end has promoted the connection, and `K` has what it sent before.
    pub fn join(&self) {
        loop {
            let seen = self.load();
            // Memory of zeros, or overwritten by a hostile peer.
            if seen.has_joined() || seen.in_flight() == 0 || self.swap(seen, (seen.0 & !INLINE) - IN_FLIGHT_ONE) {
                return;
            }
        }
    }

    /// P2: grants the ring to a consumer that has asked for it while no send is in flight. Returns whether it did.
    pub fn grant(&self, seen: Snapshot) -> bool {
        seen.may_be_granted() && self.swap(seen, seen.0 & !REQUESTED | RING)
    }

    /// P3, C4, G1: the kernel carries from here on, for good with `pin`. A request for the ring is taken back.
    ///
    /// The caller has made sure of what its rule demands: the boundary `B` is set where ring bytes may be unread.
    pub fn set_kernel(&self, seen: Snapshot, pin: bool) -> bool {
        let pinned = if pin { PINNED } else { 0 };
        self.swap(seen, (seen.0 | pinned) & !(RING | REQUESTED))
    }

    /// C5: the ring carries from here on, or as soon as no send is in flight. `seen` has an empty ring.
    pub fn set_ring(&self, seen: Snapshot) -> bool {
        let next = if seen.in_flight() == 0 { seen.0 & !REQUESTED | RING } else { seen.0 | REQUESTED };
        self.swap(seen, next)
    }
}
