//! The memory of this process's sockets: an array that grows, and the list of those that are free.

use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use super::{Kind, Socket};
use crate::sys::array::Array;

const COUNT: usize = 1 << 20;
static SOCKETS: Array<Socket, COUNT> = Array::new();
/// Sockets used at least once.
static USED: AtomicU32 = AtomicU32::new(0);
/// Head of the free list: place + 1 in the low half, a count against ABA in the high one.
static FREE: AtomicU64 = AtomicU64::new(0);
static NEXT_IDENTITY: AtomicU64 = AtomicU64::new(1);

/// All sockets that are made from here on have this identity or a higher one.
pub(crate) fn next_identity() -> u64 {
    NEXT_IDENTITY.load(Acquire)
}

/// See [`Array::grow_to`].
pub(crate) fn grow(count: usize) {
    SOCKETS.grow_to(count);
}

impl Socket {
    /// A new one with one hold, for the descriptors; `None`: no memory.
    pub(crate) fn make(kind: Kind) -> Option<&'static Socket> {
        let socket = Self::from_free().or_else(Self::from_unused)?;
        for word in [
            &socket.marks,
            &socket.linger,
            &socket.descriptors,
            &socket.index,
            &socket.life,
            &socket.status,
            &socket.low_water,
            &socket.receive_buffer,
            &socket.send_buffer,
            &socket.options_count,
            &socket.wishes,
            &socket.kept,
            &socket.made,
        ] {
            word.store(0, Relaxed);
        }
        for word in [&socket.slot, &socket.receive_timeout, &socket.send_timeout] {
            word.store(0, Relaxed);
        }
        socket.arena.store(None);
        socket.kind.store(kind as u32, Relaxed);
        socket.identity.store(NEXT_IDENTITY.fetch_add(1, Relaxed), Release);
        socket.holds.store(1, Release);
        Some(socket)
    }

    fn from_unused() -> Option<&'static Socket> {
        loop {
            let place = USED.load(Acquire);
            // First: where there is no memory no place is used up.
            let socket = SOCKETS.make(place as usize)?;
            if USED.compare_exchange(place, place + 1, AcqRel, Relaxed).is_ok() {
                return Some(socket);
            }
        }
    }

    fn from_free() -> Option<&'static Socket> {
        loop {
            let head = FREE.load(Acquire);
            let socket = SOCKETS.at((head as u32).checked_sub(1)? as usize)?;
            let next = (head >> 32).wrapping_add(1) << 32 | u64::from(socket.next_free.load(Relaxed));
            if FREE.compare_exchange(head, next, AcqRel, Relaxed).is_ok() {
                return Some(socket);
            }
        }
    }

    pub(super) fn give_back(&'static self) {
        self.identity.store(0, Release);
        self.kind.store(Kind::Free as u32, Release);
        let Some(place) = SOCKETS.place(self) else { return };
        loop {
            let head = FREE.load(Acquire);
            self.next_free.store(head as u32, Relaxed);
            let new = (head >> 32).wrapping_add(1) << 32 | (place as u64 + 1);
            if FREE.compare_exchange(head, new, AcqRel, Relaxed).is_ok() {
                return;
            }
        }
    }

    /// Every socket in use. Others may change meanwhile.
    pub(crate) fn each(mut visit: impl FnMut(&'static Socket)) {
        for place in 0..USED.load(Acquire) as usize {
            if let Some(socket) = SOCKETS.at(place)
                && socket.identity() != 0
            {
                visit(socket);
            }
        }
    }
}
