//! What a descriptor of a process stands for, as one word: it lies in the attachment page and in messages.

/// Bits of a slot's number; `Object`'s layout has room for it.
const SLOT_BITS: u32 = 24;
const CHANNEL: u64 = 1 << 63;
const LISTENER: u64 = 1 << 62;
const KERNEL: u64 = 1 << 61;

pub use crate::layout::Side as PeerSide;

/// What a descriptor stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Object {
    /// One side of a channel.
    Channel {
        /// The arena, as the daemon numbers it.
        arena: u32,
        /// The channel's place in it, below 2^24.
        slot: u32,
        /// Whose side.
        side: PeerSide,
    },
    /// A listener.
    Listener(u32),
    /// A socket that is on the kernel, and why: for `fastsock ss` only.
    Kernel(super::KernelReason),
}

impl Object {
    /// The word: 0 is no object; bit 63 a channel (arena in bits 32..63, slot in 1..25, side in 0); bit 62 a
    /// listener (number in 0..32); bit 61 a kernel socket (reason in 0..8).
    pub fn to_word(self) -> u64 {
        match self {
            Object::Channel { arena, slot, side } => {
                CHANNEL | u64::from(arena & 0x7fff_ffff) << 32 | u64::from(slot) << 1 | side as u64
            }
            Object::Listener(id) => LISTENER | u64::from(id),
            Object::Kernel(reason) => KERNEL | reason as u64,
        }
    }

    /// The object, or `None` for 0 and for what no process writes.
    pub fn from_word(word: u64) -> Option<Self> {
        let slot = (word as u32) >> 1;
        if word & CHANNEL != 0 {
            let side = if word & 1 == 0 { PeerSide::A } else { PeerSide::B };
            let arena = (word >> 32) as u32 & 0x7fff_ffff;
            (slot < 1 << SLOT_BITS).then_some(Object::Channel { arena, slot, side })
        } else if word & LISTENER != 0 {
            (word & !LISTENER <= u64::from(u32::MAX)).then_some(Object::Listener(word as u32))
        } else if word & KERNEL != 0 {
            let reason = u8::try_from(word & !KERNEL).ok()?;
            super::KernelReason::from_code(reason).map(Object::Kernel)
        } else {
            None
        }
    }
}

/// What of an arena's memory comes with an answer: who has one free number for a descriptor asks for one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ArenaPart {
    /// The memory that both sides have, and the locks of one.
    Both = 0,
    /// The memory alone.
    Shared = 1,
    /// The locks alone.
    Locks = 2,
}

impl ArenaPart {
    pub(super) fn from_number(number: u8) -> Option<Self> {
        [ArenaPart::Both, ArenaPart::Shared, ArenaPart::Locks].into_iter().find(|part| *part as u8 == number)
    }
}
