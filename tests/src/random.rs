//! Random numbers from a seed.

use std::time::{SystemTime, UNIX_EPOCH};

/// A random generator with the draws that this program needs.
#[derive(Clone, Debug)]
pub struct Random(fastrand::Rng);

impl Random {
    /// Begins with a seed.
    pub fn new(seed: u64) -> Random {
        Random(fastrand::Rng::with_seed(seed))
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// Returns a number below `most`, or 0 if `most` is 0.
    pub fn below(&mut self, most: u64) -> u64 {
        self.0.u64(..most.max(1))
    }

    /// One of these.
    pub fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize].clone()
    }

    /// Fills in the bytes that follow those drawn before, for any split: `at` of them have been
    /// drawn.
    pub fn fill(&mut self, into: &mut [u8], at: u64, word: &mut [u8; 8]) {
        for (n, byte) in into.iter_mut().enumerate() {
            let at = (at + n as u64) as usize % 8;
            if at == 0 {
                *word = self.bits().to_le_bytes();
            }
            *byte = word[at];
        }
    }
}

/// A seed that differs from run to run.
pub fn by_the_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_micros() as u64 % 1_000_000_000_000)
}
