//! A direction's large ring: memory of the arena, not of the slot, for as long as more is unread than the slot's rings hold.
//!
//! An arena has room for some of them (`Geometry::larges`); a producer whose ring is full takes one, whether the reader
//! reads or not, and gives it back as soon as all has been read. So a reader that sleeps takes what the kernel's would, and
//! a connection without such a queue costs nothing for it.
//!
//! 1. `OutRare::large` says which one, and from which position on bytes are in it. Only the producer writes it, and only
//!    sets it while it is 0 or means nothing; so a consumer that reads it after `tail` finds every position up to that `tail`.
//! 2. `TxOwn::lease` says who may touch the large ring: odd, the producer that writes; even and not 0, nobody at the moment,
//!    and whoever changes it to 0 by compare-exchange has taken the ring away and gives it back to the arena.
//! 3. It is taken away only when nothing is unread. The producer counts the lease up with each write, so who saw the lease,
//!    then no unread bytes, and then finds the lease unchanged, knows that nothing was written in between.
//! 4. Of two that make it empty and idle at the same time one sees the other: the consumer stores `head`, then looks at the
//!    lease; the producer stores the lease, then looks at `head`; each with a full barrier in between.
//! 5. The producer finds the lease 0 with its next write, and goes on in the slot's ring.
//! 6. `Head::larges` says which direction a large ring was taken for. Only who holds that one's send lock, or has just taken its
//!    lease, has a ring that its words do not name; so one that nobody holds the lock of was left by who has died in between.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};

use crate::arena::Arena;
use crate::layout::{Geometry, POSITION_BITS};
use crate::ring::{Broken, POSITION_MASK, Ring, is_before};

/// What is asked for at once ([`crate::Bells::may_use`]). Smaller: more looks. Larger: of several that ask at the same time more
/// is granted than there is.
pub(crate) const STEP: u64 = 256 << 10;

/// `Head::larges`: whom a ring was taken for.
pub(crate) const OWNER: u64 = (1 << 20) - 1;
/// `Head::larges`: there may be memory behind it.
pub(crate) const TOUCHED: u64 = 1 << 20;
/// `Head::larges`: one in the number of times that it was taken.
const ONCE: u64 = 1 << 32;

/// `OutRare::large`, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Large {
    switch: u64,
    number: usize,
    log2: u8,
}

const NUMBER_BITS: u32 = 10;

impl Large {
    const fn to_word(self) -> u64 {
        self.switch & POSITION_MASK
            | (self.number as u64 + 1) << POSITION_BITS
            | (self.log2 as u64) << (POSITION_BITS + NUMBER_BITS)
    }

    /// `None`: there is none.
    pub(crate) fn from_word(word: u64, geometry: Geometry) -> Result<Option<Self>, Broken> {
        if word == 0 {
            return Ok(None);
        }
        let number = (word >> POSITION_BITS) as usize & ((1 << NUMBER_BITS) - 1);
        let log2 = (word >> (POSITION_BITS + NUMBER_BITS)) as u8;
        let number = number.checked_sub(1).filter(|&number| number < geometry.larges()).ok_or(Broken)?;
        if log2 < geometry.ring_log2 || log2 > geometry.large_log2() {
            return Err(Broken);
        }
        Ok(Some(Large { switch: word & POSITION_MASK, number, log2 }))
    }

    pub(crate) const fn capacity(self) -> u64 {
        1 << self.log2
    }

    /// How many positions from this one on lie before it, in the slot's rings.
    pub(crate) fn before(self, position: u64) -> u64 {
        if is_before(position, self.switch) { self.switch.wrapping_sub(position) & POSITION_MASK } else { 0 }
    }

    /// Offset in the arena of `position`, which is in it, and how many bytes follow in one piece, at most `len`.
    pub(crate) fn place(self, arena: &Arena, position: u64, len: u64) -> (usize, usize) {
        let at = position & (self.capacity() - 1);
        (arena.large_offset(self.number) + at as usize, len.min(self.capacity() - at) as usize)
    }
}

impl Ring<'_> {
    /// The large ring, as far as its word says so.
    pub(crate) fn large(&self) -> Result<Option<Large>, Broken> {
        Large::from_word(self.rare.large.load(Relaxed), self.arena.geometry())
    }

    /// The producer begins to write: the large ring, if it has one, is its own until [`Ring::end_large`].
    #[cold]
    pub(crate) fn begin_large(&self) -> Result<Option<Large>, Broken> {
        let large = self.large()?;
        let lease = &self.tx.lease;
        let mut seen = lease.load(Acquire);
        // The consumer changes it once, to 0.
        for _ in 0..2 {
            if seen == 0 {
                self.rare.large.store(0, Relaxed);
                return Ok(None);
            }
            // Odd: this producer's own, or that of one that died while it wrote. This one has the send lock.
            match lease.compare_exchange(seen, self.next_lease(seen), AcqRel, Acquire) {
                Ok(_) => return Ok(large),
                Err(now) => seen = now,
            }
        }
        Err(Broken)
    }

    /// A lease for writing, which nobody has seen yet.
    fn next_lease(&self, seen: u64) -> u64 {
        let next = (self.tx.last_lease.load(Relaxed).max(seen) | 1).wrapping_add(2);
        self.tx.last_lease.store(next, Relaxed);
        next
    }

    /// The direction, as `Head::larges` has it.
    fn owner(&self) -> u64 {
        self.arena.direction(self.base) as u64 + 1
    }

    /// The producer goes over to a large ring from `tail` on; there is memory for the first [`STEP`]. `None`: there is none left.
    #[cold]
    pub(crate) fn enter_large(&self, tail: u64, limit: u64) -> Option<Large> {
        let number = self.arena.take_large(self.owner())?;
        let geometry = self.arena.geometry();
        let most = geometry.large_log2();
        // Not smaller than a quarter of the room there is, so that it need not grow when SO_SNDBUF does; rounded down if that
        // makes little difference, for the sake of the caches.
        let down = limit.ilog2() as u8;
        let enough = if limit - (1 << down) > (1 << down) / 4 { down + 1 } else { down };
        // What is unread in the slot's rings counts as well.
        let log2 = enough.max(most - 2).max(geometry.ring_max_log2() + 1).min(most);
        let large = Large { switch: tail & POSITION_MASK, number, log2 };
        self.tx.backed.store(STEP, Relaxed);
        self.rare.large.store(large.to_word(), SeqCst);
        self.tx.lease.store(self.next_lease(0), SeqCst);
        Some(large)
    }

    /// Of `room` bytes from `tail` on those that there is memory for; asks for what `want` bytes take.
    pub(crate) fn backed(&self, large: Large, tail: u64, room: u64, want: u64) -> u64 {
        let used = tail.wrapping_sub(large.switch) & POSITION_MASK;
        let backed = &self.tx.backed;
        let mut so_far = backed.load(Relaxed);
        while so_far < large.capacity() && so_far < used.saturating_add(room.min(want)) {
            if !self.arena.bells().may_use(STEP) {
                break;
            }
            so_far += STEP;
            backed.store(so_far, Relaxed);
        }
        if so_far >= large.capacity() { room } else { room.min(so_far.saturating_sub(used)) }
    }

    /// The producer has written, and published it.
    #[cold]
    pub(crate) fn end_large(&self) {
        let held = self.tx.lease.load(Relaxed);
        if held & 1 == 0 {
            return;
        }
        // With the loads that follow a full barrier, as all are sequentially consistent.
        self.tx.lease.swap(held.wrapping_add(1), SeqCst);
        self.leave_large();
    }

    /// Gives the large ring back if nothing is unread and nobody writes. Either end may call it.
    #[cold]
    pub(crate) fn leave_large(&self) {
        let seen = self.tx.lease.load(SeqCst);
        // The lease first: see 3.
        if seen == 0 || seen & 1 != 0 || self.out.tail.load(SeqCst) != self.inn.head.load(SeqCst) {
            return;
        }
        self.give_large(seen);
    }

    /// The connection has ended.
    pub(crate) fn drop_large(&self) {
        self.give_large(self.tx.lease.load(SeqCst));
    }

    fn give_large(&self, seen: u64) {
        // Before the lease is 0: then the producer may use the words for the next one.
        let Ok(Some(large)) = self.large() else { return };
        let taken = self.arena.head().larges[large.number].load(Acquire);
        if seen != 0
            && self.tx.lease.compare_exchange(seen, 0, SeqCst, Relaxed).is_ok()
            && taken & OWNER == self.owner()
        {
            self.arena.give_large(large.number, taken);
            self.arena.ask_trim();
        }
    }
}

impl Arena {
    /// Takes the lowest free large ring: the one that is likeliest to have its memory already.
    fn take_large(&self, owner: u64) -> Option<usize> {
        self.head().larges.iter().take(self.geometry().larges()).position(|word| {
            let seen = word.load(Relaxed);
            let taken = (seen & !OWNER | owner | TOUCHED).wrapping_add(ONCE);
            seen & OWNER == 0 && word.compare_exchange(seen, taken, AcqRel, Relaxed).is_ok()
        })
    }

    /// Whether [`Arena::take_large`] would find one.
    pub(crate) fn has_large(&self) -> bool {
        self.head().larges.iter().take(self.geometry().larges()).any(|word| word.load(Relaxed) & OWNER == 0)
    }

    /// Gives back the ring whose word is `taken`; nothing happens if somebody else has.
    fn give_large(&self, number: usize, taken: u64) {
        let _given = self.head().larges[number].compare_exchange(taken, taken & !OWNER, AcqRel, Relaxed);
    }

    /// Gives back the large rings of who has died between taking one and noting it down, or between taking its lease and
    /// giving it back (the daemon). `false`: it cannot be told of one, as somebody is writing just now.
    pub fn reclaim_larges(&self) -> bool {
        let mut all = true;
        for (number, word) in self.head().larges.iter().enumerate().take(self.geometry().larges()) {
            let taken = word.load(Acquire);
            let Some((slot, side)) = self.owner_of(taken) else { continue };
            let (tx, rare) = (&self.block(slot).tx[side], &self.block(slot).out[side].rare);
            // The mark first: who had the lock has noted by now what it took before.
            let idle = tx.writer.load(SeqCst) == 0;
            let word = Large::from_word(rare.large.load(SeqCst), self.geometry());
            let named =
                tx.lease.load(SeqCst) != 0 && word.is_ok_and(|large| large.is_some_and(|large| large.number == number));
            if !named && idle {
                self.give_large(number, taken);
                self.ask_trim();
            }
            all &= named || idle;
        }
        all
    }

    fn owner_of(&self, word: u64) -> Option<(u32, usize)> {
        let direction = (word & OWNER).checked_sub(1)?;
        let slot = (direction / 2) as u32;
        (slot < self.geometry().slots).then_some((slot, (direction % 2) as usize))
    }
}
