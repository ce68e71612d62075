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
//!    finds every position up to that `tail` in its right place, whichever of two successive values it gets. It has 48 bits of the
//!    switch, so it names no old size any more long before positions have gone half round from there ([`Map::settled`]).
//! 7. A producer that finds the ring full and cannot grow it, for its size or for 6, goes over to a large ring
//!    (`large.rs`), and comes back when all has been read. `map` stays as it is meanwhile.

use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use crate::arena::Arena;
use crate::copy_unsafe::Chunk;
use crate::large::{Large, STEP};
use crate::layout::{Geometry, INLINE, In, Out, OutRare, POSITION_BITS, TxOwn};
use crate::word::AtomicU32;

/// The peer (or who scribbles) broke the protocol: an index is impossible. The channel is to be reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

pub(crate) const POSITION_MASK: u64 = (1 << POSITION_BITS) - 1;
const PACK: u32 = 64 - POSITION_BITS;

/// What a ring that was full grows to at least: a queue of small messages does not pass each size.
pub(crate) const FIRST_GROWTH_LOG2: u8 = 16;

/// net.ipv4.tcp_wmem[2] and net.ipv4.tcp_rmem[1] of a system that nobody has tuned.
pub(crate) const DEFAULT_BUFFERS: [u32; 2] = [4 << 20, 128 << 10];

/// Whether `position` lies before `switch`, of which 48 bits count.
pub(crate) fn is_before(position: u64, switch: u64) -> bool {
    (position.wrapping_sub(switch) << PACK).cast_signed() < 0
}

/// More than is unread of any connection: a reader that has not come to the switch yet is nearer to it.
const UNREAD_MAX: u64 = 1 << 32;

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

    #[inline]
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
        is_before(position, self.switch)
    }

    /// If `position` lies in the old place: its capacity, and how many positions from there on lie there too.
    pub(crate) fn old_until(self, position: u64) -> Option<(u64, u64)> {
        (self.old != self.new && self.before_switch(position))
            .then(|| (1 << self.old, self.switch.wrapping_sub(position) & POSITION_MASK))
    }

    /// What it becomes when a ring's length has been read behind the switch: nobody, who follows the connection included, looks for what
    /// lies before. `None`: not yet, or it is so already.
    #[inline]
    pub(crate) fn settled(self, head: u64, tail: u64) -> Option<Self> {
        if self.old == self.new {
            return None;
        }
        // Half round and more, too: a large ring may have had all meanwhile, or all was inline.
        let behind = head.wrapping_sub(self.switch) & POSITION_MASK;
        let is_behind = behind >= self.capacity() && (behind < POSITION_MASK - UNREAD_MAX || head == tail);
        is_behind.then(|| Map::uniform(self.new))
    }

    /// Whether what has been written since it was `before`, which is another one, is where this says.
    pub(crate) const fn has_grown_from(self, before: Self) -> bool {
        self.old == before.new
    }

    /// Offset in the stride of `position`, and how many bytes follow it in one piece, at most `len`.
    #[inline]
    pub(crate) fn place(self, position: u64, len: u64) -> (usize, usize) {
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

/// Where the bytes of a direction are.
#[derive(Clone, Copy)]
struct Places {
    map: Map,
    large: Option<Large>,
}

/// `Out::inline_at` for `len` inline bytes at `position`.
#[inline]
pub(crate) const fn inline_word(position: u64, len: usize) -> u64 {
    position & POSITION_MASK | (len as u64) << POSITION_BITS
}

/// A segment's bytes on the kernel's loopback device: half of the window that a connection begins with, as
/// tcp_bound_to_half_wnd() has it. So much is not held back.
pub(crate) const SEGMENT: u64 = 32741;

/// Both ends' view of one direction.
#[derive(Clone, Copy)]
pub(crate) struct Ring<'a> {
    pub(crate) arena: &'a Arena,
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
    /// SO_SNDBUF of the producer's side and SO_RCVBUF of the consumer's (`SideOwn::buffers`).
    pub(crate) buffers: [&'a AtomicU32; 2],
}

impl<'a> Ring<'a> {
    fn map(&self) -> Result<Map, Broken> {
        Map::from_word(self.rare.map.load(Relaxed), self.arena.geometry())
    }

    /// Offset in the arena of `position`, and how many bytes follow it in one piece, at most `len`.
    fn place(&self, places: Places, position: u64, len: u64) -> (usize, usize) {
        let len = match places.large {
            None => len,
            Some(large) => match large.before(position) {
                0 => return large.place(self.arena, position, len),
                before => len.min(before),
            },
        };
        let (at, piece) = places.map.place(position, len);
        (self.base + at, piece)
    }

    // Producer. All under the tx lock.

    /// Writes what fits; 0: full. Bytes are visible to the consumer on return; the caller wakes it. `enter`: a large ring may
    /// be taken for it.
    #[inline]
    pub(crate) fn write(&self, bufs: &[IoSlice<'_>], total: usize, enter: bool) -> Result<usize, Broken> {
        self.write_or_hold(bufs, total, enter, false)
    }

    /// [`Ring::write`]; with `hold` what does not fill a segment stays out of sight, unless not all could be written.
    #[inline]
    pub(crate) fn write_or_hold(
        &self,
        bufs: &[IoSlice<'_>],
        total: usize,
        enter: bool,
        hold: bool,
    ) -> Result<usize, Broken> {
        let tail = self.end();
        let head = self.head_known(tail);
        if head == tail && total <= INLINE {
            let mut at = 0;
            for buf in bufs {
                at += self.arena.region().chunk(self.inline + at, INLINE - at).copy_from(buf);
            }
            self.out.inline_at.store(inline_word(tail, at), Relaxed);
            self.publish_or_hold(tail.wrapping_add(at as u64), hold);
            return Ok(at);
        }
        self.write_between((tail, head), bufs, total, enter, hold)
    }

    /// [`Ring::write_or_hold`], never inline.
    #[cold]
    pub(crate) fn write_in_ring(
        &self,
        bufs: &[IoSlice<'_>],
        total: usize,
        enter: bool,
        hold: bool,
    ) -> Result<usize, Broken> {
        let tail = self.end();
        self.write_between((tail, self.head_known(tail)), bufs, total, enter, hold)
    }

    #[inline]
    fn write_between(
        &self,
        (tail, head): (u64, u64),
        bufs: &[IoSlice<'_>],
        total: usize,
        enter: bool,
        hold: bool,
    ) -> Result<usize, Broken> {
        let (mut limit, places) = self.make_space(tail, head, total, enter)?;
        let mut position = tail;
        'all: for buf in bufs {
            let mut rest: &[u8] = buf;
            while !rest.is_empty() {
                if limit == 0 {
                    break 'all;
                }
                let (at, piece) = self.place(places, position, limit);
                let n = self.arena.region().chunk(at, piece).copy_from(rest);
                rest = &rest[n..];
                position = position.wrapping_add(n as u64);
                limit -= n as u64;
            }
        }
        let written = position.wrapping_sub(tail) as usize;
        if written != 0 || !hold {
            // Who has read all that is published gives a large ring back.
            self.publish_or_hold(position, hold && written == total && places.large.is_none());
        }
        if places.large.is_some() {
            self.end_large();
        }
        Ok(written)
    }

    /// Where the next byte goes: behind those that are held back.
    #[inline]
    fn end(&self) -> u64 {
        self.out.tail.load(Relaxed).wrapping_add(self.tx.held.load(Relaxed))
    }

    /// Bytes that are held back.
    #[inline]
    pub(crate) fn held(&self) -> u64 {
        self.tx.held.load(Relaxed)
    }

    /// What was held back is nobody's any more.
    pub(crate) fn forget_held(&self) {
        self.tx.held.store(0, Relaxed);
    }

    /// Nothing is held back any more; true if something was.
    pub(crate) fn let_go(&self) -> bool {
        let end = self.end();
        let held = self.held() != 0;
        if held {
            self.publish_or_hold(end, false);
        }
        held
    }

    #[inline]
    fn publish_or_hold(&self, end: u64, hold: bool) {
        let tail = self.out.tail.load(Relaxed);
        if hold {
            let all = end.wrapping_sub(tail);
            let rest = all % SEGMENT;
            self.tx.held.store(rest, Relaxed);
            if rest != all {
                self.publish(end.wrapping_sub(rest));
            }
            return;
        }
        if self.tx.held.load(Relaxed) != 0 {
            self.tx.held.store(0, Relaxed);
        }
        if end != tail {
            self.publish(end);
        }
    }

    /// Free space in one piece, for writing in place; empty: full. Asks for room for `want` bytes. [`Ring::end_reserve`] follows.
    pub(crate) fn reserve(&self, want: usize, enter: bool) -> Result<Chunk<'a>, Broken> {
        let tail = self.end();
        let (limit, places) = self.make_space(tail, self.head_known(tail), want, enter)?;
        let (at, piece) = self.place(places, tail, limit);
        Ok(self.arena.region().chunk(at, piece))
    }

    /// Publishes `n` bytes written into the last [`Ring::reserve`]d chunk; the caller checked `n` against its length.
    pub(crate) fn commit(&self, n: usize) {
        self.publish_or_hold(self.end().wrapping_add(n as u64), false);
    }

    /// Nothing more is written in place.
    pub(crate) fn end_reserve(&self) {
        if self.rare.large.load(Relaxed) != 0 {
            self.end_large();
        }
    }

    /// A swap, not a store: sequentially consistent with the look at who sleeps (`Channel::notify_published`, `sleep.rs`), for less than
    /// a fence of its own.
    fn publish(&self, tail: u64) {
        // Acquire and release: what is acknowledged was copied out before, perhaps by another thread of this side.
        self.out.ack.store(self.ack.head.load(Acquire), Release);
        self.out.tail.swap(tail, SeqCst);
    }

    /// See [`limit_of`].
    pub(crate) fn limit(&self) -> u64 {
        limit_of(self.arena.geometry(), self.buffers)
    }

    /// Bytes that may be unread at once with the rings as they are.
    fn capacity(&self, places: Places) -> u64 {
        match places.large {
            Some(large) => large.capacity().min(self.limit()),
            None => capacity_of(places.map, self.arena.geometry(), self.buffers),
        }
    }

    fn free(&self, places: Places, used: u64) -> Result<u64, Broken> {
        let holds = places.large.map_or(places.map.capacity(), Large::capacity);
        // A limit that was lowered since is no reason to give up.
        if used > holds { Err(Broken) } else { Ok(self.capacity(places).saturating_sub(used)) }
    }

    #[inline]
    fn head_known(&self, tail: u64) -> u64 {
        head_known(tail, self.tx, self.back)
    }

    /// Bytes that may be written at `tail`, and where, after reading the consumer's head, and growing, if `want` do not fit.
    fn make_space(&self, tail: u64, head: u64, want: usize, enter: bool) -> Result<(u64, Places), Broken> {
        let (large, head) = match self.rare.large.load(Relaxed) {
            0 => (None, head),
            _ => match self.begin_large()? {
                // It was given back, as all was read: more than the head that was seen last says.
                None => (None, self.head_now()),
                large => (large, head),
            },
        };
        retire_inline(self.out, head);
        let mut places = Places { map: self.map()?, large };
        if large.is_none()
            && let Some(settled) = places.map.settled(head, tail)
        {
            // Release: who follows sees the tail that it is of.
            self.rare.map.store(settled.to_word(), Release);
            places.map = settled;
        }
        let mut known = self.free(places, tail.wrapping_sub(head))?;
        if let Some(large) = large {
            if known < want as u64 {
                known = self.free(places, tail.wrapping_sub(self.head_now()))?;
            }
            return Ok((self.with_memory(large, tail, known, want as u64), places));
        }
        if known >= want as u64 {
            return Ok((known, places));
        }
        let head = self.head_now();
        let now = self.free(places, tail.wrapping_sub(head))?;
        if now >= want as u64 || self.limit() <= places.map.capacity() {
            self.record_short(0);
            return Ok((now, places));
        }
        self.grow(tail, head, want as u64, enter, places)
    }

    /// Of `room` bytes of a large ring those that there is memory for.
    fn with_memory(&self, large: Large, tail: u64, room: u64, want: u64) -> u64 {
        let backed = self.backed(large, tail, room, want);
        if want != 0 {
            let is_short = backed < room.min(want);
            let unread = if is_short { tail.wrapping_sub(self.head_now()) } else { 0 };
            self.record_short(if is_short { (unread + backed).max(1) } else { 0 });
        }
        backed
    }

    /// There was no memory for more when so many bytes were unread; 0: there was.
    fn record_short(&self, unread: u64) {
        if self.tx.short.load(Relaxed) != unread {
            self.tx.short.store(unread, SeqCst);
        }
    }

    /// The ring is full, and its limit allows a larger one.
    #[cold]
    fn grow(&self, tail: u64, head: u64, want: u64, enter: bool, now: Places) -> Result<(u64, Places), Broken> {
        let geometry = self.arena.geometry();
        let used = tail.wrapping_sub(head);
        let needed = (used + want.min(1 << geometry.large_log2())).min(self.limit());
        let mut places = now;
        let mut memory = true;
        if needed <= 1 << geometry.ring_max_log2() || !enter {
            memory = self.grow_map(&mut places.map, tail, head, needed);
        }
        if memory && enter && self.free(places, used)? < needed.saturating_sub(used) {
            memory = self.arena.bells().may_use(STEP);
            if memory {
                places.large = self.enter_large(tail, self.limit());
                memory = places.large.is_some() || self.grow_map(&mut places.map, tail, head, needed);
            }
        }
        let room = self.free(places, used)?;
        if let Some(large) = places.large {
            return Ok((self.with_memory(large, tail, room, want), places));
        }
        self.record_short(if memory { 0 } else { (used + room).max(1) });
        Ok((room, places))
    }

    /// A larger ring in the stride, if there is one. `false`: there is, and no memory for it.
    fn grow_map(&self, map: &mut Map, tail: u64, head: u64, needed: u64) -> bool {
        let next = self.next_map(*map, tail, head, needed);
        if next == *map {
            return true;
        }
        if !self.arena.bells().may_use(next.capacity()) {
            return false;
        }
        *map = next;
        self.rare.map.store(next.to_word(), Relaxed);
        true
    }

    /// Of how many unread bytes a writer that waits is to be told when a quarter is read, with the rings as they are.
    fn waits_for(&self, places: Places) -> u64 {
        match self.tx.short.load(SeqCst) {
            0 => self.capacity(places),
            short => short.min(self.capacity(places)),
        }
    }

    /// The map with a larger ring from `tail` on; the same one if there is none, or if bytes before the last switch are unread.
    fn next_map(&self, map: Map, tail: u64, head: u64, needed: u64) -> Map {
        let most = self.arena.geometry().ring_max_log2();
        if map.new >= most || map.old != map.new && map.before_switch(head) {
            return map;
        }
        let log2 = (needed.next_power_of_two().trailing_zeros() as u8).max(FIRST_GROWTH_LOG2);
        Map { switch: tail & POSITION_MASK, old: map.new, new: log2.clamp(map.new + 1, most) }
    }

    #[cold]
    fn head_now(&self) -> u64 {
        let head = self.inn.head.load(Acquire);
        self.tx.head_seen.store(head, Relaxed);
        retire_inline(self.out, head);
        head
    }

    /// Whether a producer that would take a large ring now finds a quarter of the slot's ring free if it lets the reader run.
    pub(crate) fn is_near_room(&self) -> bool {
        let Ok(map) = self.map() else { return false };
        let used = self.out.tail.load(Relaxed).wrapping_sub(self.inn.head.load(Acquire));
        is_roomy(used, self.capacity(Places { map, large: None }))
    }

    /// Whether a writer need not wait: a quarter is free, or would be in a larger ring (`enter`: also in one of the large ones).
    /// If not, asks to be told. Without the tx lock, so it writes nothing but the wish.
    #[inline]
    pub(crate) fn writable(&self, enter: bool) -> Result<bool, Broken> {
        let tail = self.out.tail.load(Relaxed);
        let known = self.tx.head_seen.load(Relaxed);
        let ack = self.back.ack.load(Acquire);
        let used = tail.wrapping_sub(known).min(tail.wrapping_sub(ack));
        // Every ring is as large as the first, and no limit is lower. The consumer's line stays where it is.
        if self.tx.short.load(Relaxed) == 0 && is_roomy(used, 1 << self.arena.geometry().ring_log2) {
            return Ok(true);
        }
        self.writable_now(enter)
    }

    /// The same by what the consumer has read until now.
    fn writable_now(&self, enter: bool) -> Result<bool, Broken> {
        let geometry = self.arena.geometry();
        // One that has been given back is found out by the next write; nothing is unread then.
        let places = Places { map: self.map()?, large: self.large()? };
        let tail = self.out.tail.load(Relaxed);
        let head = self.inn.head.load(Acquire);
        let used = tail.wrapping_sub(head);
        let mut most = self.waits_for(places);
        if is_roomy(used, most) {
            return Ok(true);
        }
        if places.large.is_none() && self.tx.short.load(Relaxed) == 0 && self.limit() > most {
            if enter && self.arena.has_large() {
                most = self.limit();
            } else if self.next_map(places.map, tail, head, 0) != places.map {
                most = self.limit().min(1 << geometry.ring_max_log2());
            }
            if is_roomy(used, most) {
                return Ok(true);
            }
        }
        self.want_space();
        let used = self.out.tail.load(Relaxed).wrapping_sub(self.inn.head.load(Acquire));
        // A sender on another thread may have moved on, or grown the ring, since; twice the size is beyond doubt.
        if used > 2 << geometry.large_log2() { Err(Broken) } else { Ok(is_roomy(used, most)) }
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
        if unread > 1 << self.arena.geometry().large_log2() {
            return Err(Broken);
        }
        let skipped = self.skipped(head).min(unread);
        Ok((head.wrapping_add(skipped), unread - skipped))
    }

    /// Bytes from `head` on that the producer has said are not to be read.
    #[inline]
    fn skipped(&self, head: u64) -> u64 {
        match self.rare.skipped.load(Relaxed) {
            0 => 0,
            end => end.wrapping_sub(head).cast_signed().max(0).cast_unsigned(),
        }
    }

    /// The producer, about to write an urgent byte: one that is next for the reader is not read any more (tcp_check_urg() of the
    /// kernel).
    pub(crate) fn skip_urgent(&self) {
        let mark = self.rare.urgent.load(Relaxed);
        let head = self.inn.head.load(Acquire);
        if mark != 0 && head.wrapping_add(self.skipped(head)) == mark.wrapping_sub(1) {
            self.rare.skipped.store(mark, Relaxed);
        }
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
            return Ok(self.arena.region().chunk(self.inline + into as usize, (inline_len - into).min(len) as usize));
        }
        let (at, piece) = self.place(Places { map: self.map()?, large: self.large()? }, position, len);
        Ok(self.arena.region().chunk(at, piece))
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

    /// Gives `n` of `unread` bytes after `head` back. Returns whether the producer is to be woken for space.
    ///
    /// A swap, and loads that are sequentially consistent with it: between the news and the look at who wants it, or the large ring back
    /// (`docs/SHM.md`, "Space").
    #[inline]
    pub(crate) fn consume(&self, head: u64, n: u64, unread: u64) -> bool {
        let after = head.wrapping_add(n);
        self.inn.head.swap(after, SeqCst);
        if n >= unread && self.rare.large.load(SeqCst) != 0 {
            self.leave_large();
        }
        self.rare.want_space.load(SeqCst) != 0 && self.is_space_due(after)
    }

    #[cold]
    fn is_space_due(&self, head: u64) -> bool {
        let (Ok(map), Ok(large)) = (self.map(), self.large()) else { return true };
        let used = self.out.tail.load(Acquire).wrapping_sub(head);
        is_roomy(used, self.waits_for(Places { map, large })) && self.rare.want_space.swap(0, SeqCst) != 0
    }
}

/// The producer, about to write other than inline: what was inline and is read is not to be found again when 48 bits of positions have
/// gone round.
#[inline]
pub(crate) fn retire_inline(out: &Out, head: u64) {
    let inline = out.inline_at.load(Relaxed);
    if inline != 0 && head.wrapping_sub(inline) & POSITION_MASK >= inline >> POSITION_BITS {
        out.inline_at.store(0, Relaxed);
    }
}

/// The newest `head` that costs nothing to know: the one seen last (`TxOwn::head_seen`), or the one that came with the peer's data.
#[inline]
pub(crate) fn head_known(tail: u64, tx: &TxOwn, back: &Out) -> u64 {
    let seen = tx.head_seen.load(Relaxed);
    // Acquire: the copy out of the bytes before `ack` happened before it was written.
    let ack = back.ack.load(Acquire);
    // An old `ack` (or a hostile one beyond tail) is further away.
    if tail.wrapping_sub(ack) < tail.wrapping_sub(seen) {
        tx.head_seen.store(ack, Relaxed);
        ack
    } else {
        seen
    }
}

/// Bytes that may be unread at once, whatever the rings. On the kernel a reader that does not read holds up what its own buffer takes,
/// bytes and bookkeeping, and behind it the sender's buffer is filled.
fn limit_of(geometry: Geometry, buffers: [&AtomicU32; 2]) -> u64 {
    let bytes = |side: usize| match buffers[side].load(Relaxed) {
        0 => DEFAULT_BUFFERS[side],
        bytes => bytes,
    };
    let limit = u64::from(bytes(0)) + u64::from(bytes(1)) / 4 * 3;
    limit.clamp(1 << geometry.ring_log2, 1 << geometry.large_log2())
}

/// Bytes that may be unread at once in the slot's ring. The first ring has no limit: so a connection that never needed another one does
/// not look at the limits.
#[inline]
pub(crate) fn capacity_of(map: Map, geometry: Geometry, buffers: [&AtomicU32; 2]) -> u64 {
    if map.new == geometry.ring_log2 { map.capacity() } else { map.capacity().min(limit_of(geometry, buffers)) }
}

/// Whether a producer that wants space is to be told of it, and need not wait for it: a quarter of the ring is free.
pub(crate) const fn is_roomy(used: u64, capacity: u64) -> bool {
    used <= capacity / 4 * 3
}
