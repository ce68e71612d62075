//! A set of ports.

use alloc::boxed::Box;
use alloc::vec;
use core::fmt;
use core::ops::RangeInclusive;

const WORDS: usize = 65536 / 64;

/// A set of ports: one bit each, 8 KiB.
#[derive(Clone, PartialEq, Eq)]
pub struct PortSet {
    words: Box<[u64]>,
}

impl Default for PortSet {
    fn default() -> Self {
        Self::new()
    }
}

impl PortSet {
    /// Makes an empty set.
    pub fn new() -> Self {
        Self { words: vec![0; WORDS].into_boxed_slice() }
    }

    /// Makes a set of all ports of a range. A reversed range is empty.
    pub fn from_range(range: RangeInclusive<u16>) -> Self {
        let mut set = Self::new();
        set.insert_range(range);
        set
    }

    /// Adds a port. Returns false if it was present.
    pub fn insert(&mut self, port: u16) -> bool {
        let (word, bit) = place(port);
        let had = self.words[word] & bit != 0;
        self.words[word] |= bit;
        !had
    }

    /// Removes a port. Returns false if it was absent.
    pub fn remove(&mut self, port: u16) -> bool {
        let (word, bit) = place(port);
        let had = self.words[word] & bit != 0;
        self.words[word] &= !bit;
        had
    }

    /// Returns true if the set contains the port.
    #[inline]
    pub fn contains(&self, port: u16) -> bool {
        let (word, bit) = place(port);
        self.words[word] & bit != 0
    }

    /// Adds all ports of a range.
    pub(crate) fn insert_range(&mut self, range: RangeInclusive<u16>) {
        if range.is_empty() {
            return;
        }
        // Word by word: a stack starts with tens of thousands of ports.
        let (start, end) = (usize::from(*range.start()), usize::from(*range.end()));
        for word in start / 64..=end / 64 {
            let from = start.max(word * 64) % 64;
            let to = end.min(word * 64 + 63) % 64;
            self.words[word] |= u64::MAX >> (63 - (to - from)) << from;
        }
    }

    /// Returns the number of ports.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns true if the set contains no port.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Returns all ports, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        self.words.iter().enumerate().flat_map(|(index, word)| {
            let mut left = *word;
            core::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
                left &= left - 1;
                Some((index * 64 + bit) as u16)
            })
        })
    }

    /// Returns all maximal ranges, ascending.
    pub fn ranges(&self) -> impl Iterator<Item = RangeInclusive<u16>> + '_ {
        let mut ports = self.iter().peekable();
        core::iter::from_fn(move || {
            let first = ports.next()?;
            let mut last = first;
            while let Some(port) = ports.next_if(|port| u32::from(*port) == u32::from(last) + 1) {
                last = port;
            }
            Some(first..=last)
        })
    }
}

impl FromIterator<u16> for PortSet {
    fn from_iter<I: IntoIterator<Item = u16>>(ports: I) -> Self {
        let mut set = Self::new();
        ports.into_iter().for_each(|port| {
            set.insert(port);
        });
        set
    }
}

impl fmt::Debug for PortSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.ranges()).finish()
    }
}

/// Returns a port's word and its bit there.
#[inline]
fn place(port: u16) -> (usize, u64) {
    (usize::from(port) / 64, 1 << (port % 64))
}
