//! One direction of a channel: a byte ring over shared memory.
//!
//! Positions are free-running 64-bit byte counts. Size class k (a ring of 2^k bytes) has its own place in the stride,
//! bytes 2^k .. 2^(k+1), so the producer may move to a larger ring at any time without moving a byte: positions
//! before the switch are in the old place, the others in the new one.
//!
//! 1. `tail` and the bytes between `tail` and `head + capacity` are the producer's (who holds the tx lock).
//! 2. `head` and the bytes between `head` and `tail` are the consumer's (who holds the rx lock).
//! 3. `tail` is stored (release) after the bytes, `map`, `urgent` and inline bytes that it covers.
//! 4. `head` is stored with release after the bytes were copied out, by a swap unless they were inline.
//! 5. The inline bytes are written only while the ring is empty, so they are the first unread bytes or none, and a
//!    consumer that has unread bytes sees them at rest. `inline_at` is cleared only when they have been read.
//! 6. `map` changes only while no unread byte lies before its switch position; a consumer that reads it after `tail`
//!    finds every position up to that `tail` in its right place, whichever of two successive values it gets.

use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use crate::copy_unsafe::Chunk;
use crate::layout::{Geometry, INLINE, In, Out, OutRare, POSITION_BITS, TxOwn};
use crate::region_unsafe::Region;
use crate::word::AtomicU8;

/// The peer (or who scribbles) broke the protocol: an index is impossible. The channel is to be reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

const POSITION_MASK: u64 = (1 << POSITION_BITS) - 1;
const PACK: u32 = 64 - POSITION_BITS;

/// Ring sizes and the position where one ends and the other begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Map {
    switch: u64,
    old: u8,
    new: u8,
}

impl Map {
    pub(crate) const fn uniform(log2: u8) -> Self {
        Map { switch: 0, old: log2, new: log2 }
    }

    pub(crate) const fn to_word(self) -> u64 {
        self.switch & POSITION_MASK | (self.old as u64) << 48 | (self.new as u64) << 56
    }

    pub(crate) fn from_word(word: u64, geometry: Geometry) -> Result<Self, Broken> {
        let map = Map { switch: word & POSITION_MASK, old: (word >> 48) as u8, new: (word >> 56) as u8 };
        let fits = |log2: u8| log2 >= geometry.ring_log2 && log2 <= geometry.ring_max_log2();
        if fits(map.old) && fits(map.new) { Ok(map) } else { Err(Broken) }
    }

    pub(crate) const fn capacity(self) -> u64 {
        1 << self.new
    }

    /// Whether `position` lies before the switch (in the old place).
    fn before_switch(self, position: u64) -> bool {
        (position.wrapping_sub(self.switch) << PACK).cast_signed() < 0
    }

    /// Offset in the stride of `position`, and how many bytes follow it in one piece, at most `len`.
    fn place(self, position: u64, len: u64) -> (usize, usize) {
        let old = self.old != self.new && self.before_switch(position);
        let log2 = if old { self.old } else { self.new };
        let capacity = 1u64 << log2;
        let at = position & (capacity - 1);
        let mut piece = len.min(capacity - at);
        if old {
            piece = piece.min(self.switch.wrapping_sub(position) & POSITION_MASK);
        }
        ((capacity + at) as usize, piece as usize)
    }
}

/// `Out::inline_at` for `len` inline bytes at `position`.
#[inline]
pub(crate) const fn inline_word(position: u64, len: usize) -> u64 {
    position & POSITION_MASK | (len as u64) << POSITION_BITS
}

/// Both ends' view of one direction.
#[derive(Clone, Copy)]
pub(crate) struct Ring<'a> {
    pub(crate) region: &'a Region,
    pub(crate) geometry: Geometry,
    /// Offset of the stride.
    pub(crate) base: usize,
    /// Offset of the producer's inline bytes.
    pub(crate) inline: usize,
    /// The producer's lines.
    pub(crate) out: &'a Out,
    pub(crate) rare: &'a OutRare,
    pub(crate) tx: &'a TxOwn,
    /// The consumer's line, and the consumer's line as producer of the other direction (its `ack`).
    pub(crate) inn: &'a In,
    pub(crate) back: &'a Out,
    /// The producer's line as consumer of the other direction: what it acknowledges.
    pub(crate) ack: &'a In,
    /// What the producer's side and the consumer's side say of the largest ring (`SideOwn::ring_limit`).
    pub(crate) limits: [&'a AtomicU8; 2],
}

impl<'a> Ring<'a> {
    fn map(&self) -> Result<Map, Broken> {
        Map::from_word(self.rare.map.load(Relaxed), self.geometry)
    }

    // Producer. All under the tx lock.

    /// Writes what fits; 0: full. Bytes are visible to the consumer on return; the caller wakes it.
    #[inline]
    pub(crate) fn write(&self, bufs: &[IoSlice<'_>], total: usize) -> Result<usize, Broken> {
        let tail = self.out.tail.load(Relaxed);
        let head = self.head_known(tail);
        if head == tail && total <= INLINE {
            let mut at = 0;
            for buf in bufs {
                at += self.region.chunk(self.inline + at, INLINE - at).copy_from(buf);
            }
            self.out.inline_at.store(inline_word(tail, at), Relaxed);
            self.publish(tail.wrapping_add(at as u64));
            return Ok(at);
        }
        let mut limit = self.make_space(tail, head, total)?;
        let map = self.map()?;
        let mut position = tail;
        'all: for buf in bufs {
            let mut rest: &[u8] = buf;
            while !rest.is_empty() {
                if limit == 0 {
                    break 'all;
                }
                let (at, piece) = map.place(position, limit);
                let n = self.region.chunk(self.base + at, piece).copy_from(rest);
                rest = &rest[n..];
                position = position.wrapping_add(n as u64);
                limit -= n as u64;
            }
        }
        if position != tail {
            self.publish(position);
        }
        Ok(position.wrapping_sub(tail) as usize)
    }

    /// Free space in one piece, for writing in place; empty: full. Asks for room for `want` bytes.
    pub(crate) fn reserve(&self, want: usize) -> Result<Chunk<'a>, Broken> {
        let tail = self.out.tail.load(Relaxed);
        let limit = self.make_space(tail, self.head_known(tail), want)?;
        let (at, piece) = self.map()?.place(tail, limit);
        Ok(self.region.chunk(self.base + at, piece))
    }

    /// Publishes `n` bytes written into the last [`Ring::reserve`]d chunk; the caller checked `n` against its length.
    pub(crate) fn commit(&self, n: usize) {
        self.publish(self.out.tail.load(Relaxed).wrapping_add(n as u64));
    }

    /// A swap, not a store: the full barrier that must stand between publishing and looking at who sleeps
    /// (`Channel::notify_published`), for less than a fence of its own.
    fn publish(&self, tail: u64) {
        // Release: what is acknowledged was copied out before (`head` says so to those who look there).
        self.out.ack.store(self.ack.head.load(Relaxed), Release);
        self.out.tail.swap(tail, SeqCst);
    }

    /// log2 of the largest ring that both sides allow.
    fn limit_log2(&self) -> u8 {
        let limit = |limit: &AtomicU8| match limit.load(Relaxed) {
            0 => self.geometry.ring_max_log2(),
            limit => limit.clamp(self.geometry.ring_log2, self.geometry.ring_max_log2()),
        };
        limit(self.limits[0]).min(limit(self.limits[1]))
    }

    /// The newest `head` that costs nothing to know: the one seen last, or the one that came with the peer's data.
    #[inline]
    fn head_known(&self, tail: u64) -> u64 {
        let seen = self.tx.head_seen.load(Relaxed);
        // Acquire: the copy out of the bytes before `ack` happened before it was written.
        let ack = self.back.ack.load(Acquire);
        // An old `ack` (or a hostile one beyond tail) is further away.
        if tail.wrapping_sub(ack) < tail.wrapping_sub(seen) {
            self.tx.head_seen.store(ack, Relaxed);
            ack
        } else {
            seen
        }
    }

    /// Bytes that may be written at `tail`, after reading the consumer's head, and growing, if `want` do not fit.
    fn make_space(&self, tail: u64, head: u64, want: usize) -> Result<u64, Broken> {
        let mut map = self.map()?;
        let free = |map: Map, head: u64| map.capacity().checked_sub(tail.wrapping_sub(head)).ok_or(Broken);
        let known = free(map, head)?;
        if known >= want as u64 {
            return Ok(known);
        }
        let head = self.head_now();
        let now = free(map, head)?;
        if now >= want as u64 || map.new >= self.limit_log2() {
            return Ok(now);
        }
        if map.old != map.new {
            if map.before_switch(head) {
                return Ok(now);
            }
            map.old = map.new;
        }
        let needed = tail.wrapping_sub(head) + want as u64;
        let log2 = (needed.next_power_of_two().trailing_zeros() as u8).clamp(map.new + 1, self.limit_log2());
        let grown = Map { switch: tail & POSITION_MASK, old: map.new, new: log2 };
        self.rare.map.store(grown.to_word(), Relaxed);
        free(grown, head)
    }

    #[cold]
    fn head_now(&self) -> u64 {
        let head = self.inn.head.load(Acquire);
        self.tx.head_seen.store(head, Relaxed);
        self.retire_inline(head);
        head
    }

    fn retire_inline(&self, head: u64) {
        let inline = self.out.inline_at.load(Relaxed);
        if inline != 0 && head.wrapping_sub(inline) & POSITION_MASK >= inline >> POSITION_BITS {
            // Read long ago; not to be found again when 48 bits of positions have gone round.
            self.out.inline_at.store(0, Relaxed);
        }
    }

    /// Whether a writer need not wait: a quarter is free, or the ring may grow. If not, asks to be told. Without the tx
    /// lock, so it writes nothing but the wish.
    pub(crate) fn writable(&self) -> Result<bool, Broken> {
        let map = self.map()?;
        let tail = self.out.tail.load(Relaxed);
        let used = tail.wrapping_sub(self.inn.head.load(Acquire));
        if is_roomy(used, map.capacity()) || map.new < self.limit_log2() && map.old == map.new {
            return Ok(true);
        }
        self.want_space();
        let used = self.out.tail.load(Relaxed).wrapping_sub(self.inn.head.load(Acquire));
        // A sender on another thread may have moved on, or grown the ring, since; twice the size is beyond doubt.
        if used > 2 << self.geometry.ring_max_log2() { Err(Broken) } else { Ok(is_roomy(used, map.capacity())) }
    }

    /// Asks the consumer to tell when there is space. The caller looks at the head once more afterwards.
    pub(crate) fn want_space(&self) {
        self.rare.want_space.store(1, SeqCst);
        fence(SeqCst);
    }

    // Consumer. All under the rx lock.

    /// Unread bytes: their first position and their number.
    #[inline]
    pub(crate) fn unread(&self) -> Result<(u64, u64), Broken> {
        let head = self.inn.head.load(Relaxed);
        let tail = self.out.tail.load(Acquire);
        let unread = tail.wrapping_sub(head);
        if unread > 1 << self.geometry.ring_max_log2() { Err(Broken) } else { Ok((head, unread)) }
    }

    /// The unread bytes from `position` on, in one piece, at most `len` (which must be unread).
    #[inline]
    pub(crate) fn piece(&self, position: u64, len: u64) -> Result<Chunk<'a>, Broken> {
        let inline = self.out.inline_at.load(Relaxed);
        let inline_len = inline >> POSITION_BITS;
        let into = position.wrapping_sub(inline) & POSITION_MASK;
        if into < inline_len {
            if inline_len > INLINE as u64 {
                return Err(Broken);
            }
            return Ok(self.region.chunk(self.inline + into as usize, (inline_len - into).min(len) as usize));
        }
        let (at, piece) = self.map()?.place(position, len);
        Ok(self.region.chunk(self.base + at, piece))
    }

    /// Copies up to `len` unread bytes from `position` into `bufs`; returns how many.
    #[inline]
    pub(crate) fn copy_out(&self, position: u64, len: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<usize, Broken> {
        let mut done = 0;
        'all: for buf in bufs {
            let mut rest: &mut [u8] = buf;
            while !rest.is_empty() {
                if done == len {
                    break 'all;
                }
                let n = self.piece(position.wrapping_add(done), len - done)?.copy_to(rest);
                rest = &mut rest[n..];
                done += n as u64;
            }
        }
        Ok(done as usize)
    }

    /// Gives `n` bytes after `head` back. Returns whether the producer is to be woken for space.
    ///
    /// A swap: the barrier between the news and the look at who wants it (`docs/SHM.md`, "Space").
    #[inline]
    pub(crate) fn consume(&self, head: u64, n: u64) -> bool {
        let after = head.wrapping_add(n);
        self.inn.head.swap(after, SeqCst);
        self.rare.want_space.load(SeqCst) != 0 && self.is_space_due(after)
    }

    #[cold]
    fn is_space_due(&self, head: u64) -> bool {
        let capacity = 1u64 << (self.rare.map.load(Relaxed) >> 56).clamp(12, 24);
        let used = self.out.tail.load(Acquire).wrapping_sub(head);
        is_roomy(used, capacity) && self.rare.want_space.swap(0, SeqCst) != 0
    }
}

/// Whether a producer that wants space is to be told of it, and need not wait for it: a quarter of the ring is free.
pub(crate) const fn is_roomy(used: u64, capacity: u64) -> bool {
    used <= capacity / 4 * 3
}
