//! Sets of unwrapped sequence numbers: SYN is 0, the first byte of data 1.

/// Disjoint ranges in order; adjacent ones are merged.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges(Vec<(i64, i64)>);

impl Ranges {
    /// Adds `start..end`. Returns true if some of it was present before.
    pub(super) fn insert(&mut self, start: i64, end: i64) -> bool {
        if start >= end {
            return false;
        }
        let Self(all) = self;
        let first = all.partition_point(|r| r.1 < start);
        let after = first + all[first..].partition_point(|r| r.0 <= end);
        let overlaps = all[first..after].iter().any(|r| r.0 < end && start < r.1);
        let joined = all[first..after].iter().fold((start, end), |j, r| (j.0.min(r.0), j.1.max(r.1)));
        all.splice(first..after, [joined]);
        overlaps
    }

    /// Returns the parts of `start..end` that are present.
    pub(super) fn within(&self, start: i64, end: i64) -> impl Iterator<Item = (i64, i64)> + '_ {
        let first = self.0.partition_point(|r| r.1 <= start);
        self.0[first..].iter().take_while(move |r| r.0 < end).map(move |r| (r.0.max(start), r.1.min(end)))
    }

    /// Returns true if all of `start..end` is present.
    pub(super) fn has(&self, start: i64, end: i64) -> bool {
        self.within(start, end).next() == Some((start, end))
    }

    /// Returns the end of the range that contains `at` or begins there; `at` itself if it is
    /// absent.
    pub(super) fn end_from(&self, at: i64) -> i64 {
        let next = self.0.partition_point(|r| r.0 <= at);
        next.checked_sub(1).map_or(at, |i| self.0[i].1.max(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn ranges_equal_set_of_numbers() {
        let mut rng = Rng::new(9);
        for _ in 0..200 {
            let (mut ranges, mut model) = (Ranges::default(), [false; 100]);
            for _ in 0..20 {
                let start = rng.below(90) as usize;
                let end = start + rng.below(10) as usize;
                let overlaps = model[start..end].contains(&true);
                assert_eq!(ranges.insert(start as i64, end as i64), overlaps);
                model[start..end].fill(true);
            }
            assert!(ranges.0.windows(2).all(|w| w[0].1 < w[1].0), "{ranges:?}");
            for at in 0..99 {
                let end = (at..100).find(|&i| !model[i]).unwrap_or(100);
                assert_eq!(ranges.end_from(at as i64), end as i64, "from {at} in {ranges:?}");
                assert_eq!(ranges.has(at as i64, at as i64 + 1), model[at]);
                let count = model[at..].iter().filter(|&&there| there).count() as i64;
                assert_eq!(ranges.within(at as i64, 100).map(|(s, e)| e - s).sum::<i64>(), count);
            }
        }
    }
}
