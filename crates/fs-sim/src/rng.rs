//! The world's randomness: xoshiro256++ seeded through SplitMix64 (Blackman and Vigna), so that a
//! seed determines the whole run on every machine. Probabilities are parts per million: replays
//! must not depend on floating point.

use fs_core::Duration;

/// SplitMix64's finalizer: a good 64-bit mix.
#[inline]
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// 2^64 / golden ratio: SplitMix64's increment.
pub const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A seeded generator.
#[derive(Clone, Debug)]
pub struct Rng([u64; 4]);

impl Rng {
    /// Makes a generator from a seed. Different seeds yield unrelated streams.
    pub fn new(seed: u64) -> Self {
        Self([1, 2, 3, 4].map(|i: u64| mix(seed.wrapping_add(GOLDEN.wrapping_mul(i)))))
    }

    /// Returns an independent generator for a part of the world, so that parts do not affect one
    /// another.
    pub fn fork(&mut self) -> Self {
        Self::new(self.next())
    }

    /// Returns 64 random bits.
    #[inline]
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        let s = &mut self.0;
        let out = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        out
    }

    /// Returns a uniform number in `0..n`; 0 for `n == 0`.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// Returns a uniform number in `low..=high`.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Returns true with a probability of `ppm` in a million.
    #[inline]
    pub fn chance(&mut self, ppm: u32) -> bool {
        ppm != 0 && self.below(1_000_000) < u64::from(ppm)
    }

    /// Returns a uniform duration between two.
    pub fn duration(&mut self, low: Duration, high: Duration) -> Duration {
        Duration::from_nanos(self.range(low.as_nanos() as u64, high.as_nanos() as u64))
    }

    /// Returns a size over several orders of magnitude, each equally likely.
    pub fn log_size(&mut self, low: u64, high: u64) -> u64 {
        let (a, b) = (u64::from(low.max(1).ilog2()), u64::from(high.max(1).ilog2()));
        let top = 1u64 << self.range(a, b);
        self.range(top, top * 2 - 1).clamp(low, high)
    }

    /// Returns one of `items`.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }
}
