//! A two-level timer wheel whose slots are arrays of tokens.
//!
//! Slots are not lists through the connections: a list costs a cache miss per neighbour on each
//! insertion and removal (measured at 1M connections: 232 ns a packet against 95 ns). There is
//! therefore no removal: the owner stores the true deadline, ignores stale tokens, and inserts
//! again when its deadline has moved. A connection then needs one token in the wheel for any number
//! of changes.
//!
//! | level | slots | a slot's width | reach |
//! |---|---|---|---|
//! | near | 4096 | 2^20 ns, about 1 ms | 4.3 s |
//! | far | 256 | 2^32 ns, about 4.3 s | 18 min |
//!
//! The near level contains every retransmission, persist and FIN-WAIT timeout without a second
//! move; the far level contains all others except keepalives, which are moved in its last slot
//! until they are within reach.

use super::bitmap::Bitmap;
use crate::time::Instant;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// log2 of a tick in nanoseconds. 1.05 ms is far below the shortest TCP timer (a delayed ACK of 40
/// ms has its own queue). Too low: more slots to pass. Too high: later timeouts.
const TICK_SHIFT: u32 = 20;
/// Width of a tick: the maximum delay of a token after its deadline.
#[cfg(test)]
pub(crate) const GRANULE: core::time::Duration = core::time::Duration::from_nanos(1 << TICK_SHIFT);
/// log2 of the near level's slots: the maximum that one summary word covers.
const NEAR_SHIFT: u32 = 12;
const NEAR: u64 = 1 << NEAR_SHIFT;
const FAR: u64 = 256;

/// Arrays of at most this capacity (tokens) are never shrunk. Too low: a slot allocates if it gets
/// a few tokens more than its array's last slot. Too high: unused memory, times the slots in use.
const CAPACITY_KEPT: usize = 16;
/// Maximum number of unused arrays. Too low: allocations when the number of occupied slots varies.
/// Too high: memory.
const SPARE_KEPT: usize = 64;
/// Number of slots emptied between two checks for unused arrays: all of the near level, which is
/// 4.3 s when timers are dense.
const SPARE_PERIOD: usize = NEAR as usize;

/// Deadlines of one core. `T` names what is due, for example index and generation.
///
/// A token is never delivered before its deadline. It is delivered by the first [`Wheel::expire`]
/// that is called a [`GRANULE`] or more after it. Tokens that are delivered together are in no
/// particular order.
#[derive(Clone, Debug)]
pub(crate) struct Wheel<T: Copy> {
    /// Ticks up to this one have been delivered.
    tick: u64,
    len: usize,
    /// Tokens that were due when they were inserted.
    due: Vec<T>,
    near_used: Bitmap<{ NEAR as usize / 64 }>,
    far_used: Bitmap<{ FAR as usize / 64 }>,
    /// Slot t mod 4096: tokens of tick t, for t in (tick, tick + 4096).
    near: Box<[Vec<T>]>,
    /// Slot b mod 256: tokens of ticks in block b = t / 4096, for b in (tick / 4096, tick / 4096 +
    /// 256). The last of these also contains everything beyond.
    far: Box<[Vec<(u64, T)>]>,
    near_spare: Spare<T>,
    far_spare: Spare<(u64, T)>,
}

impl<T: Copy> Wheel<T> {
    /// Makes an empty wheel that starts at `now`.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            tick: now.as_nanos() >> TICK_SHIFT,
            len: 0,
            due: Vec::new(),
            near_used: Bitmap::new(),
            far_used: Bitmap::new(),
            near: (0..NEAR).map(|_| Vec::new()).collect(),
            far: (0..FAR).map(|_| Vec::new()).collect(),
            near_spare: Spare::new(),
            far_spare: Spare::new(),
        }
    }

    /// Adds a token that is due at `at`. A deadline in the past is due at the next [`Wheel::expire`].
    #[inline]
    pub(crate) fn insert(&mut self, at: Instant, token: T) {
        self.len += 1;
        // Rounded up: a tick has passed only after all its deadlines.
        let tick = at.as_nanos().div_ceil(1 << TICK_SHIFT);
        if !self.place(tick, token) {
            self.due.push(token);
        }
    }

    /// Moves all tokens that are due at `now` to the end of `out`. The cost depends on the moved
    /// tokens and the occupied slots, not on the time that has passed. With an earlier `now` than
    /// before, only tokens that were already due are delivered.
    pub(crate) fn expire(&mut self, now: Instant, out: &mut Vec<T>) {
        let before = out.len();
        out.append(&mut self.due);
        let (from, to) = (self.tick, now.as_nanos() >> TICK_SHIFT);
        if to > from {
            self.tick = to;
            self.expire_near(from, out);
            self.expire_far(from, out);
        }
        self.len -= out.len() - before;
    }

    /// Returns a time no later than the earliest deadline's tick; `None` if the wheel is empty.
    /// Calling [`Wheel::expire`] then delivers a token or moves it from the far level to the near
    /// one, so a loop that sleeps until this time always makes progress.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        if self.len == 0 {
            return None;
        }
        if !self.due.is_empty() {
            return Some(Instant(self.tick << TICK_SHIFT));
        }
        let near = self.near_used.distance((self.tick + 1) as usize % NEAR as usize).map(|d| self.tick + 1 + d as u64);
        let block = (self.tick >> NEAR_SHIFT) + 1;
        let far = self.far_used.distance(block as usize % FAR as usize).map(|d| (block + d as u64) << NEAR_SHIFT);
        let tick = near.into_iter().chain(far).min()?;
        // The last tick before the end of time would not fit.
        Some(Instant(tick.min(u64::MAX >> TICK_SHIFT) << TICK_SHIFT))
    }

    /// Returns the number of tokens, including stale ones.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns every token with its tick. A token that was due when inserted has the last passed
    /// tick.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn entries(&self) -> impl Iterator<Item = (u64, T)> + '_ {
        let near = (1..NEAR).map(|ahead| self.tick + ahead);
        let near = near.flat_map(|tick| self.near[(tick % NEAR) as usize].iter().map(move |&token| (tick, token)));
        let due = self.due.iter().map(|&token| (self.tick, token));
        due.chain(near).chain(self.far.iter().flatten().copied())
    }

    /// Returns true if the wheel is empty.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts a token into its slot. Returns false if its tick has passed.
    #[inline]
    fn place(&mut self, tick: u64, token: T) -> bool {
        if tick <= self.tick {
            return false;
        }
        if tick - self.tick < NEAR {
            let slot = (tick % NEAR) as usize;
            self.near_used.set(slot);
            self.near_spare.lend(&mut self.near[slot]).push(token);
        } else {
            let last = (self.tick >> NEAR_SHIFT) + FAR - 1;
            let slot = ((tick >> NEAR_SHIFT).min(last) % FAR) as usize;
            self.far_used.set(slot);
            self.far_spare.lend(&mut self.far[slot]).push((tick, token));
        }
        true
    }

    /// Empties the near slots of ticks in (from, self.tick].
    fn expire_near(&mut self, from: u64, out: &mut Vec<T>) {
        let mut tick = from + 1;
        let last = self.tick.min(from + NEAR - 1);
        while tick <= last {
            let Some(distance) = self.near_used.distance((tick % NEAR) as usize) else { return };
            tick += distance as u64;
            if tick > last {
                return;
            }
            let slot = (tick % NEAR) as usize;
            self.near_used.clear(slot);
            let mut tokens = core::mem::take(&mut self.near[slot]);
            let count = tokens.len();
            out.append(&mut tokens);
            self.near_spare.take_back(tokens, count);
            tick += 1;
        }
    }

    /// Distributes the far slots of blocks that have begun since tick `from`: due tokens are
    /// delivered, others move to their current slot (which may be a far slot again).
    fn expire_far(&mut self, from: u64, out: &mut Vec<T>) {
        let mut block = (from >> NEAR_SHIFT) + 1;
        // No block is further ahead than FAR - 1, and none is visited twice: placement depends only
        // on self.tick, which is already the new one.
        let last = (self.tick >> NEAR_SHIFT).min(block + FAR - 2);
        while block <= last {
            let Some(distance) = self.far_used.distance((block % FAR) as usize) else { return };
            block += distance as u64;
            if block > last {
                return;
            }
            let slot = (block % FAR) as usize;
            self.far_used.clear(slot);
            let mut tokens = core::mem::take(&mut self.far[slot]);
            let count = tokens.len();
            for (tick, token) in tokens.drain(..) {
                if !self.place(tick, token) {
                    out.push(token);
                }
            }
            self.far_spare.take_back(tokens, count);
            block += 1;
        }
    }
}

/// Empty arrays for the next slot that needs one. Last in, first out, so that the memory in use is
/// what the occupied slots need, and is in the cache.
///
/// A steady load does not allocate. Memory left by a burst is freed as slots are used: an array
/// much larger than its use is halved each time, and one that was unused for a whole period is
/// freed.
#[derive(Clone, Debug)]
struct Spare<E> {
    arrays: Vec<Vec<E>>,
    /// Minimum number of arrays in this period: that many were not needed.
    idle: usize,
    /// Slots left until the period's end.
    left: usize,
}

impl<E> Spare<E> {
    fn new() -> Self {
        Self { arrays: Vec::new(), idle: 0, left: SPARE_PERIOD }
    }

    /// Gives an array to `slot` if it has none.
    #[inline]
    fn lend<'a>(&mut self, slot: &'a mut Vec<E>) -> &'a mut Vec<E> {
        if slot.capacity() == 0
            && let Some(array) = self.arrays.pop()
        {
            *slot = array;
            self.idle = self.idle.min(self.arrays.len());
        }
        slot
    }

    /// Takes back an empty array that has contained `count` tokens.
    fn take_back(&mut self, mut array: Vec<E>, count: usize) {
        let capacity = array.capacity();
        if capacity > CAPACITY_KEPT && count < capacity / 8 {
            array.shrink_to(capacity / 2);
        }
        self.arrays.push(array);
        self.left -= 1;
        if self.left == 0 {
            // The arrays at the bottom were not used.
            self.arrays.drain(..self.idle.saturating_sub(SPARE_KEPT));
            (self.idle, self.left) = (self.arrays.len(), SPARE_PERIOD);
        }
    }
}

#[cfg(test)]
mod tests;
