//! Histograms of times, as in the daemon's counters: a row for each bucket.

use fs_shm::control::{BUCKETS, CounterRow};
use std::collections::BTreeMap;

/// Counts of times, by bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Histogram {
    /// Key: the exclusive upper bound of a bucket in nanoseconds; `u64::MAX`: unbounded.
    counts: BTreeMap<u64, u64>,
    sum_ns: u64,
}

/// Parses a row of a histogram: its name, the core, and the bucket's upper bound (`None`: the sum).
pub(crate) fn bucket(row: &CounterRow) -> Option<(&str, &str, Option<u64>)> {
    let name = row.name.as_str().strip_suffix(BUCKETS)?;
    let (core, end) = row.label.as_str().split_once(',')?;
    match end {
        "sum" => Some((name, core, None)),
        end => Some((name, core, Some(end.parse().ok()?))),
    }
}

impl Histogram {
    pub(crate) fn add(&mut self, end: Option<u64>, value: u64) {
        let sum = match end {
            Some(end) => self.counts.entry(end).or_default(),
            None => &mut self.sum_ns,
        };
        *sum = sum.wrapping_add(value);
    }

    pub(crate) fn count(&self) -> u64 {
        self.counts.values().sum()
    }

    pub(crate) fn sum_seconds(&self) -> f64 {
        self.sum_ns as f64 / 1e9
    }

    /// Returns the time below which this share of the values lies.
    pub(crate) fn quantile_ns(&self, share: f64) -> u64 {
        let rank = (self.count() as f64 * share).max(1.0);
        let mut seen = 0;
        let at = self.counts.iter().find(|(_, count)| {
            seen += **count;
            seen as f64 >= rank
        });
        at.map_or(0, |(end, _)| *end)
    }

    /// Buckets for Prometheus: powers of two from 1 µs to 69 s. Empty buckets are included, so that
    /// no series starts late.
    pub(crate) fn powers_of_two(&self) -> Vec<(f64, u64)> {
        let ends = (10..36).map(|log2| 1u64 << log2).chain([u64::MAX]);
        let mut from = 0;
        let count = |end| {
            let counts = self.counts.range((std::ops::Bound::Excluded(from), std::ops::Bound::Included(end)));
            from = end;
            (if end == u64::MAX { f64::INFINITY } else { end as f64 / 1e9 }, counts.map(|(_, count)| count).sum())
        };
        ends.map(count).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fs_shm::control::Text;

    #[test]
    fn rows_become_a_histogram() {
        let row = |name: &str, label: &str, value| {
            let (name, label) = (Text::new(name.as_bytes()), Text::new(label.as_bytes()));
            CounterRow { name, label, gauge: false, value }
        };
        let rows = [
            row("turn_time_buckets", "0,1280", 97),
            row("turn_time_buckets", "1,4096", 2),
            row("turn_time_buckets", "1,18446744073709551615", 1),
            row("turn_time_buckets", "1,sum", 2_000_000_000),
        ];
        let mut times = Histogram::default();
        for row in &rows {
            let (name, _core, end) = bucket(row).unwrap();
            assert_eq!(name, "turn_time");
            times.add(end, row.value);
        }
        assert_eq!((times.count(), times.quantile_ns(0.5), times.quantile_ns(0.99)), (100, 1280, 4096));
        assert_eq!((times.quantile_ns(1.0), times.sum_seconds()), (u64::MAX, 2.0));
        let counts = times.powers_of_two();
        assert_eq!((counts.len(), counts[0], counts[1].1, counts[2].1, counts[26].1), (27, (1.024e-6, 0), 97, 2, 1));
        // Rows that are not buckets are ignored.
        for other in [row("turn_time_p50_ns", "0", 1), row("x_buckets", "0", 1), row("x_buckets", "0,y", 1)] {
            assert_eq!(bucket(&other), None);
        }
    }
}
