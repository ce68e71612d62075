//! Chance from a seed.

use std::time::{SystemTime, UNIX_EPOCH};

/// xorshift64*, begun by splitmix64: seeds that differ by one have nothing else in common.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Random((z ^ (z >> 31)) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `most`.
    pub(crate) fn below(&mut self, most: u64) -> u64 {
        (self.next() >> 32) % most.max(1)
    }

    pub(crate) fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize].clone()
    }

    /// Fills in the bytes that follow those drawn before, for any split: `at` of them have been
    /// drawn.
    pub(crate) fn fill(&mut self, into: &mut [u8], at: u64, word: &mut [u8; 8]) {
        for (n, byte) in into.iter_mut().enumerate() {
            let at = (at + n as u64) as usize % 8;
            if at == 0 {
                *word = self.next().to_le_bytes();
            }
            *byte = word[at];
        }
    }
}

pub(crate) fn by_the_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_micros() as u64 % 1_000_000_000_000)
}
