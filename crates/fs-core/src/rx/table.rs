//! Demux: from a flow's hash to the index of its connection.
//!
//! Open addressing over buckets of one cache line:
//!
//! ```text
//! bytes  0..20   ten tags of 16 bits; 0 is an empty slot
//! bytes 20..24   overflow: entries whose home is here or before, and that had to go past this bucket
//! bytes 24..64   ten values of 32 bits
//! ```
//!
//! An entry lives in its home bucket or, when that is full, in the next one with room; each full bucket on
//! the way counts it, and removal takes the counts back. So a search stops at the first bucket that nobody
//! went past, there are no tombstones, and churn leaves no trace. Keys stay with the connections: the table asks the caller, who
//! compares the full key there, about one false candidate in 6500 searches.

mod hasher;

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

pub(crate) use hasher::FlowHasher;
pub(crate) use hasher::derive_key;

/// Entries a bucket has on average when the table is at its limit. What counts is how often an entry
/// that comes into a full table finds its home full: 3 % with 5, 7 % with 6, 23 % with 7 (measured under
/// churn; a table that is only filled up looks far better). Fewer: memory.
const LOAD: usize = 5;
#[cfg(test)]
const SLOTS: usize = 10;
/// A bucket's 64-bit words.
const WORDS: usize = 8;
/// Word with the tags of slots 8 and 9 (low half) and the overflow count (high half).
const META: usize = 2;
/// First word of values.
const VALUES: usize = 3;
const LANES: u64 = 0x0001_0001_0001_0001;

/// The table has reached the number of entries that it was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("flow table is full")
    }
}

impl core::error::Error for Full {}

/// A multimap from 64-bit hashes to 32-bit values (slot numbers). It neither stores nor compares keys.
///
/// The hash must be keyed (see [`FlowHasher`]): who can choose it can fill one chain of buckets.
pub(crate) struct FlowTable {
    /// Zeroed by the allocator, so that what is not used is not backed by memory. `u64`s and not a bucket
    /// type, because the standard library asks for zeroed pages only for plain integers.
    words: Vec<u64>,
    /// Where the first cache line begins in `words`.
    start: usize,
    buckets: usize,
    len: usize,
    capacity: usize,
}

impl fmt::Debug for FlowTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { words: _, start: _, buckets, len, capacity } = self;
        write!(f, "FlowTable {{ len: {len}, capacity: {capacity}, buckets: {buckets} }}")
    }
}

impl FlowTable {
    /// Room for `n` entries (at least one); the only allocation there will be, 12.8 bytes an entry.
    pub(crate) fn with_capacity(n: usize) -> Self {
        let capacity = n.max(1);
        let buckets = capacity.div_ceil(LOAD);
        let words = vec![0u64; buckets * WORDS + WORDS - 1];
        let misaligned = words.as_ptr() as usize / 8 % WORDS;
        Self { words, start: (WORDS - misaligned) % WORDS, buckets, len: 0, capacity }
    }

    /// Address and bytes of its memory.
    pub(crate) fn memory(&self) -> (*const u8, usize) {
        (self.words.as_ptr().cast(), size_of_val(self.words.as_slice()))
    }

    /// The first value under `hash` that `is_it` accepts.
    #[inline]
    pub(crate) fn find(&self, hash: u64, is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        self.position(hash, is_it).map(|(index, slot)| value_of(self.bucket(index), slot))
    }

    /// There will be a search for `hash` soon.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        fs_prefetch::lines(self.bucket(self.home(hash)));
    }

    /// A value that is probably under `hash`: its tag matches. Looks at the first bucket only, where nearly all are.
    #[inline(always)]
    pub(crate) fn candidate(&self, hash: u64) -> Option<u32> {
        let bucket = self.bucket(self.home(hash));
        let found = matches(bucket, tag_of(hash));
        if found == 0 { None } else { Some(value_of(bucket, slot_of(found))) }
    }

    /// A search for `hash` does not end in the bucket where it begins.
    #[inline]
    pub(crate) fn goes_on(&self, hash: u64) -> bool {
        self.bucket(self.home(hash))[META] >> 32 != 0
    }

    /// Adds `value` under `hash`, without looking whether it is there already.
    pub(crate) fn insert(&mut self, hash: u64, value: u32) -> Result<(), Full> {
        if self.len == self.capacity {
            return Err(Full);
        }
        let tag = tag_of(hash);
        let mut index = self.home(hash);
        // Ends: on average a bucket has at most LOAD entries, so there is one with room.
        loop {
            let bucket = self.bucket_mut(index);
            let room = matches(bucket, 0);
            if room != 0 {
                let slot = slot_of(room);
                set_tag(bucket, slot, tag);
                set_value(bucket, slot, value);
                self.len += 1;
                return Ok(());
            }
            bucket[META] += 1 << 32;
            index = self.after(index);
        }
    }

    /// Removes `value` from under `hash`; false if it is not there.
    pub(crate) fn remove(&mut self, hash: u64, value: u32) -> bool {
        let Some((found, slot)) = self.position(hash, |v| v == value) else { return false };
        let bucket = self.bucket_mut(found);
        set_tag(bucket, slot, 0);
        set_value(bucket, slot, 0);
        let mut index = self.home(hash);
        while index != found {
            self.bucket_mut(index)[META] -= 1 << 32;
            index = self.after(index);
        }
        self.len -= 1;
        true
    }

    /// Puts `new` in `old`'s place under `hash`; false if `old` is not there.
    pub(crate) fn replace(&mut self, hash: u64, old: u32, new: u32) -> bool {
        let Some((index, slot)) = self.position(hash, |v| v == old) else { return false };
        set_value(self.bucket_mut(index), slot, new);
        true
    }

    /// All values, in no particular order.
    #[cfg(test)]
    pub(crate) fn values(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.buckets).flat_map(move |index| {
            let bucket = self.bucket(index);
            (0..SLOTS).filter(move |&slot| tag_at(bucket, slot) != 0).map(move |slot| value_of(bucket, slot))
        })
    }

    /// Entries inside.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Entries that it can hold.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bucket and slot of the first value under `hash` that `is_it` accepts.
    #[inline]
    fn position(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<(usize, usize)> {
        let tag = tag_of(hash);
        let mut index = self.home(hash);
        for _ in 0..self.buckets {
            let bucket = self.bucket(index);
            let mut found = matches(bucket, tag);
            while found != 0 {
                let slot = slot_of(found);
                if is_it(value_of(bucket, slot)) {
                    return Some((index, slot));
                }
                found &= found - 1;
            }
            if bucket[META] >> 32 == 0 {
                return None;
            }
            index = self.after(index);
        }
        None
    }

    /// The low half of the hash, scaled to the number of buckets: no power of two needed, no division.
    #[inline]
    fn home(&self, hash: u64) -> usize {
        (((hash & 0xffff_ffff) * self.buckets as u64) >> 32) as usize
    }

    #[inline]
    fn after(&self, index: usize) -> usize {
        if index + 1 == self.buckets { 0 } else { index + 1 }
    }

    #[inline]
    fn bucket(&self, index: usize) -> &[u64; WORDS] {
        &self.words[self.start..].as_chunks().0[index]
    }

    #[inline]
    fn bucket_mut(&mut self, index: usize) -> &mut [u64; WORDS] {
        &mut self.words[self.start..].as_chunks_mut().0[index]
    }
}

/// From the bits that `home` does not use. Never 0, which marks an empty slot.
#[inline]
fn tag_of(hash: u64) -> u64 {
    (hash >> 48).max(1)
}

/// Slots whose tag is `tag`, one bit each, for [`slot_of`]: of all words at once, because in which one a tag stands
/// nobody can predict.
#[inline]
fn matches(bucket: &[u64; WORDS], tag: u64) -> u64 {
    let pattern = tag.wrapping_mul(LANES);
    // The overflow count is no tag.
    let last = zero_lanes(bucket[META] ^ pattern) & 0xffff_ffff;
    zero_lanes(bucket[0] ^ pattern) >> 15 | zero_lanes(bucket[1] ^ pattern) >> 14 | last >> 13
}

/// The slot that the lowest bit of [`matches`] stands for: 16 bits a lane, in them one a word.
#[inline]
fn slot_of(found: u64) -> usize {
    let bit = found.trailing_zeros() as usize;
    bit % 16 * 4 + bit / 16
}

/// Bit 15 of each 16-bit lane that is zero, and no other bit. (The shorter `(x - LANES) & !x` also marks
/// lanes above a zero one.)
#[inline]
fn zero_lanes(x: u64) -> u64 {
    const LOW: u64 = 0x7fff * LANES;
    !(((x & LOW) + LOW) | x | LOW)
}

#[inline]
#[cfg(test)]
fn tag_at(bucket: &[u64; WORDS], slot: usize) -> u64 {
    bucket[slot / 4] >> (slot % 4 * 16) & 0xffff
}

#[inline]
fn set_tag(bucket: &mut [u64; WORDS], slot: usize, tag: u64) {
    let shift = slot % 4 * 16;
    let word = &mut bucket[slot / 4];
    *word = *word & !(0xffff << shift) | tag << shift;
}

#[inline]
fn value_of(bucket: &[u64; WORDS], slot: usize) -> u32 {
    (bucket[VALUES + slot / 2] >> (slot % 2 * 32)) as u32
}

#[inline]
fn set_value(bucket: &mut [u64; WORDS], slot: usize, value: u32) {
    let shift = slot % 2 * 32;
    let word = &mut bucket[VALUES + slot / 2];
    *word = *word & !(0xffff_ffff << shift) | u64::from(value) << shift;
}

#[cfg(test)]
mod tests;
