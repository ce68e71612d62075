//! Demultiplexing: from a flow's hash to the index of its connection.
//!
//! Open addressing over buckets of one cache line:
//!
//! ```text
//! bytes  0..20   ten tags of 16 bits; 0 is an empty slot
//! bytes 20..24   overflow: entries whose home is here or before, and that had to go past this bucket
//! bytes 24..64   ten values of 32 bits
//! ```
//!
//! An entry is stored in its home bucket or, if that is full, in the next one with a free slot.
//! Each full bucket that an insertion passes counts it, and removal decrements the counts. A search
//! therefore stops at the first bucket that no entry has passed, there are no tombstones, and churn
//! leaves no trace. Keys are stored with the connections: the caller compares the full key there,
//! for about one false candidate in 6500 searches.

mod hasher;

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

pub(crate) use hasher::FlowHasher;
pub(crate) use hasher::derive_key;

/// Average entries per bucket when the table is full. Determines how often an entry that is
/// inserted into a full table finds its home full: 3 % with 5, 7 % with 6, 23 % with 7. Measured
/// under churn; a table that is only filled up has far lower rates. Too low: more memory.
const LOAD: usize = 5;
#[cfg(test)]
const SLOTS: usize = 10;
/// 64-bit words of a bucket.
const WORDS: usize = 8;
/// Word with the tags of slots 8 and 9 (low half) and the overflow count (high half).
const META: usize = 2;
/// First word of values.
const VALUES: usize = 3;
const LANES: u64 = 0x0001_0001_0001_0001;

/// Error: the table contains its maximum number of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("flow table is full")
    }
}

impl core::error::Error for Full {}

/// A multimap from 64-bit hashes to 32-bit values (slot numbers). It neither stores nor compares
/// keys.
///
/// The hash must be keyed (see [`FlowHasher`]): an attacker that can choose it can fill one chain
/// of buckets.
pub(crate) struct FlowTable {
    /// Zeroed by the allocator, so that unused pages take no memory. `u64`s instead of a bucket
    /// type, because the standard library requests zeroed pages only for plain integers.
    words: Vec<u64>,
    /// Index in `words` of the first cache line.
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
    /// Makes a table for `n` entries (at least one). This is its only allocation, 12.8 bytes per
    /// entry.
    pub(crate) fn with_capacity(n: usize) -> Self {
        let capacity = n.max(1);
        let buckets = capacity.div_ceil(LOAD);
        let words = vec![0u64; buckets * WORDS + WORDS - 1];
        let misaligned = words.as_ptr() as usize / 8 % WORDS;
        Self { words, start: (WORDS - misaligned) % WORDS, buckets, len: 0, capacity }
    }

    /// Returns the address and size of its memory.
    pub(crate) fn memory(&self) -> (*const u8, usize) {
        (self.words.as_ptr().cast(), size_of_val(self.words.as_slice()))
    }

    /// Returns the first value under `hash` that `is_it` accepts.
    #[inline]
    pub(crate) fn find(&self, hash: u64, is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        self.position(hash, is_it).map(|(index, slot)| value_of(self.bucket(index), slot))
    }

    /// Prefetches the bucket in which a search for `hash` begins.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        fs_prefetch::lines(self.bucket(self.home(hash)));
    }

    /// Returns a value that is probably under `hash`: its tag matches. Checks the first bucket
    /// only, which contains nearly all entries.
    #[inline(always)]
    pub(crate) fn candidate(&self, hash: u64) -> Option<u32> {
        let bucket = self.bucket(self.home(hash));
        let found = matches(bucket, tag_of(hash));
        if found == 0 { None } else { Some(value_of(bucket, slot_of(found))) }
    }

    /// Returns true if a search for `hash` continues beyond the bucket in which it begins.
    #[inline]
    pub(crate) fn goes_on(&self, hash: u64) -> bool {
        self.bucket(self.home(hash))[META] >> 32 != 0
    }

    /// Adds `value` under `hash`, without checking for duplicates.
    pub(crate) fn insert(&mut self, hash: u64, value: u32) -> Result<(), Full> {
        if self.len == self.capacity {
            return Err(Full);
        }
        let tag = tag_of(hash);
        let mut index = self.home(hash);
        // Terminates: on average a bucket has at most LOAD entries, so one with a free slot exists.
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

    /// Removes `value` from under `hash`. Returns false if it is absent.
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

    /// Replaces `old` by `new` under `hash`. Returns false if `old` is absent.
    pub(crate) fn replace(&mut self, hash: u64, old: u32, new: u32) -> bool {
        let Some((index, slot)) = self.position(hash, |v| v == old) else { return false };
        set_value(self.bucket_mut(index), slot, new);
        true
    }

    /// Returns all values, in no particular order.
    #[cfg(test)]
    pub(crate) fn values(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.buckets).flat_map(move |index| {
            let bucket = self.bucket(index);
            (0..SLOTS).filter(move |&slot| tag_at(bucket, slot) != 0).map(move |slot| value_of(bucket, slot))
        })
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the maximum number of entries.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns bucket and slot of the first value under `hash` that `is_it` accepts.
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

    /// Returns the home bucket: the low half of the hash, scaled to the number of buckets. Needs
    /// neither a power of two nor a division.
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

/// Derives the tag from bits that `home` does not use. Never 0, which marks an empty slot.
#[inline]
fn tag_of(hash: u64) -> u64 {
    (hash >> 48).max(1)
}

/// Returns the slots whose tag is `tag`, one bit each, for [`slot_of`]. Compares all words at once:
/// a branch per word would be unpredictable.
#[inline]
fn matches(bucket: &[u64; WORDS], tag: u64) -> u64 {
    let pattern = tag.wrapping_mul(LANES);
    // Excludes the overflow count.
    let last = zero_lanes(bucket[META] ^ pattern) & 0xffff_ffff;
    zero_lanes(bucket[0] ^ pattern) >> 15 | zero_lanes(bucket[1] ^ pattern) >> 14 | last >> 13
}

/// Returns the slot of the lowest bit of [`matches`]: 16 bits per lane, one of them per word.
#[inline]
fn slot_of(found: u64) -> usize {
    let bit = found.trailing_zeros() as usize;
    bit % 16 * 4 + bit / 16
}

/// Returns bit 15 of each 16-bit lane that is zero, and no other bit. The shorter `(x - LANES) &
/// !x` also marks lanes above a zero one.
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
