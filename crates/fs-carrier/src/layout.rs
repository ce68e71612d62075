//! The words of a direction and of a side, as they lie in memory.
//!
//! A **direction** is mapped by both ends: the producer's end writes lines A and B, the consumer's
//! end line C. A **side** is mapped by the holders of one end only, and never by the peer: locks,
//! and the positions that must not be believed from the peer's memory. Each line is a cache line of
//! its own, so that a message of up to [`INLINE`] bytes moves one line from one processor to the
//! other.

use crate::lock::Lock;
use crate::sync::{AtomicU32, AtomicU64};
use crate::word::Word;

/// The longest message that is published in the word's own line as well.
///
/// More: a line has no room. Fewer: requests of 40 bytes, redis' replies of 5 to 40, would move two lines.
pub const INLINE: usize = 48;

/// One direction, in memory that both ends map. Processors fetch lines in pairs, so a direction begins with a pair.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct Direction {
    pub(crate) line_a: LineA,
    pub(crate) line_b: LineB,
    pub(crate) line_c: LineC,
}

/// Line A: what a short message moves.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct LineA {
    /// `W`.
    pub(crate) word: Word,
    /// Consumer position of the *other* direction, which the producer of this one stores before it
    /// publishes: room without a miss.
    pub(crate) credit: AtomicU64,
    /// The last message again.
    pub(crate) inline: [AtomicU64; INLINE / 8],
}

/// Line B: what the kernel was given.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct LineB {
    /// `K`: bytes that send(2) took, from the connection's first.
    pub(crate) sent: AtomicU64,
    /// `B`: `K` at the moment in which the kernel became the carrier while ring bytes were unread.
    /// So many kernel bytes precede them.
    pub(crate) boundary: AtomicU64,
}

/// Line C: what the consumer has read.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct LineC {
    pub(crate) head: AtomicU64,
}

/// An end's own words, in memory that its holders map and its peer does not.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Side {
    pub(crate) receive: ReceiveWords,
    pub(crate) send: SendWords,
}

/// Guarded by the receive lock.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct ReceiveWords {
    pub(crate) lock: Lock,
    /// Not 0: the peer's words made no sense. The ring is not read any more.
    pub(crate) distrusted: AtomicU32,
    /// Ring bytes read. `LineC::head` is its copy for the peer.
    pub(crate) head: AtomicU64,
    /// `R`: kernel bytes read, from the connection's first.
    pub(crate) received: AtomicU64,
    /// The position after the ring bytes that are known to be next. They are read without a look at the sender's line.
    pub(crate) known_tail: AtomicU64,
    /// Not 0: the kernel is the carrier, as only a holder of this lock makes the ring the carrier.
    /// The sender's line is left alone.
    pub(crate) kernel_only: AtomicU32,
}

/// Guarded by the send lock.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct SendWords {
    pub(crate) lock: Lock,
    /// The consumer position that is known.
    pub(crate) known_head: AtomicU64,
    /// From when on a send asks whether the connection has failed, and whether the kernel has to carry (P4, P5).
    pub(crate) due_ns: AtomicU64,
    /// When bytes last had to go by the kernel (P5).
    pub(crate) passed_ns: AtomicU64,
}

#[cfg(not(all(loom, test)))]
const _: () = {
    assert!(size_of::<Direction>() == 256);
    assert!(size_of::<LineA>() == 64 && size_of::<Side>() == 128);
};

#[cfg(all(loom, test))]
mod fresh {
    use super::*;

    impl Direction {
        pub(crate) fn new() -> Self {
            Direction {
                line_a: LineA {
                    word: Word::new(),
                    credit: AtomicU64::new(0),
                    inline: std::array::from_fn(|_| AtomicU64::new(0)),
                },
                line_b: LineB { sent: AtomicU64::new(0), boundary: AtomicU64::new(0) },
                line_c: LineC { head: AtomicU64::new(0) },
            }
        }
    }

    impl Side {
        pub(crate) fn new() -> Self {
            Side {
                receive: ReceiveWords {
                    lock: Lock::new(),
                    distrusted: AtomicU32::new(0),
                    head: AtomicU64::new(0),
                    received: AtomicU64::new(0),
                    known_tail: AtomicU64::new(0),
                    kernel_only: AtomicU32::new(0),
                },
                send: SendWords {
                    lock: Lock::new(),
                    known_head: AtomicU64::new(0),
                    due_ns: AtomicU64::new(0),
                    passed_ns: AtomicU64::new(0),
                },
            }
        }
    }
}
