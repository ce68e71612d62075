//! Histogram of durations.

use core::time::Duration;

/// Durations below 2^10 ns share one bucket.
const FIRST: u32 = 10;
/// Buckets for each power of two.
const PARTS: u32 = 4;
/// Buckets reach 2^36 ns (69 s). Longer durations are counted in the last one.
const BUCKETS: usize = ((36 - FIRST) * PARTS) as usize;

/// Counts durations in four buckets for each power of two of nanoseconds, so quantiles are at most
/// a quarter too high. Recording takes some ten instructions and never allocates; the caller
/// already has the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; BUCKETS],
    sum_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], sum_ns: 0 }
    }
}

impl Histogram {
    /// Records one duration.
    #[inline]
    pub fn record(&mut self, time: Duration) {
        let ns = crate::time::nanos(time);
        let log2 = ns.max(1 << FIRST).ilog2();
        let part = (ns >> (log2 - PARTS.ilog2())) as u32 % PARTS;
        let bucket = ((log2 - FIRST) * PARTS + if ns < 1 << FIRST { 0 } else { part }) as usize;
        self.counts[bucket.min(BUCKETS - 1)] += 1;
        self.sum_ns = self.sum_ns.wrapping_add(ns);
    }

    /// Returns the number of recorded durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the sum of all durations in nanoseconds, modulo 2^64.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// Returns the non-empty buckets in ascending order: the exclusive upper bound in nanoseconds,
    /// and the count. The last bucket is unbounded: `u64::MAX`.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let end = |bucket: usize| match bucket as u32 {
            last if last as usize == BUCKETS - 1 => u64::MAX,
            bucket => u64::from(PARTS + bucket % PARTS + 1) << (FIRST + bucket / PARTS - PARTS.ilog2()),
        };
        self.counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(move |(bucket, count)| (end(bucket), *count))
    }

    /// Returns the upper bound of the bucket that contains the given quantile (0 to 1), in
    /// nanoseconds. Returns 0 if nothing was recorded.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let rank = (self.count() as f64 * share).max(1.0);
        let mut seen = 0;
        let at = self.buckets().find(|(_, count)| {
            seen += count;
            seen as f64 >= rank
        });
        at.map_or(0, |(end, _)| end)
    }

    /// Adds the counts of another core.
    pub fn add(&mut self, other: &Histogram) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bucket_error_is_at_most_a_quarter(ns in 0u64..1 << 36) {
            let mut one = Histogram::default();
            one.record(Duration::from_nanos(ns));
            let [(end, 1)] = one.buckets().collect::<Vec<_>>()[..] else { panic!("{one:?}") };
            if end == u64::MAX {
                prop_assert!(ns >= 7 << 33);
            } else {
                prop_assert!(ns < end && (ns < 1280 || end <= ns + ns / 4 + 1), "{} in the bucket up to {}", ns, end);
            }
            prop_assert_eq!((one.count(), one.sum_ns()), (1, ns));
        }
    }

    #[test]
    fn quantiles() {
        let mut times = Histogram::default();
        assert_eq!((times.quantile_ns(0.5), times.count()), (0, 0));
        (0..98).for_each(|_| times.record(Duration::from_micros(3)));
        times.record(Duration::from_millis(5));
        let mut other = Histogram::default();
        other.record(Duration::from_secs(100_000));
        times.add(&other);
        assert_eq!(times.count(), 100);
        assert_eq!(times.quantile_ns(0.5), 3072);
        assert_eq!(times.quantile_ns(0.98), 3072);
        assert!((5_000_000..6_250_000).contains(&times.quantile_ns(0.99)));
        assert_eq!(times.quantile_ns(1.0), u64::MAX);
    }
}
