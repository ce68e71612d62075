//! One direction of the path.

use fs_core::{Frame, FramePool};
use std::collections::BTreeMap;
use std::time::Duration;

/// Preamble, check sequence and gap, which use time on the wire although no program sees them.
const ETHERNET_EXTRA: usize = 24;

/// The properties of a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) bytes_per_second: f64,
    pub(crate) delay: Duration,
    pub(crate) queue: u64,
    pub(crate) loss: f64,
    pub(crate) reorder: f64,
    pub(crate) duplicate: f64,
}

/// Counters of a direction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) packets: u64,
    pub(crate) lost: u64,
    pub(crate) overflow: u64,
    pub(crate) swapped: u64,
    pub(crate) doubled: u64,
}

/// Packets under way, by the time of their arrival.
pub(crate) struct Pipe {
    path: Path,
    random: fastrand::Rng,
    /// When the last byte that has entered will have left the queue.
    busy_until: Duration,
    under_way: BTreeMap<(Duration, u64), Frame>,
    pub(crate) counts: Counts,
}

impl Pipe {
    pub(crate) fn new(path: Path, seed: u64) -> Self {
        let counts = Counts::default();
        Self {
            path,
            random: fastrand::Rng::with_seed(seed),
            busy_until: Duration::ZERO,
            under_way: BTreeMap::new(),
            counts,
        }
    }

    /// Adds a packet.
    pub(crate) fn enter<P: FramePool>(&mut self, now: Duration, pool: &mut P, frame: Frame) {
        self.counts.packets += 1;
        let tcp = is_tcp(pool.bytes(&frame));
        // Each packet draws the same random numbers whatever happens to it, so a seed loses the
        // same packets.
        let [lost, swapped, doubled] =
            [self.path.loss, self.path.reorder, self.path.duplicate].map(|p| tcp && self.random.f64() < p);
        if lost {
            self.counts.lost += 1;
            return pool.free(frame);
        }
        let waiting = self.busy_until.saturating_sub(now).as_secs_f64() * self.path.bytes_per_second;
        if waiting > self.path.queue as f64 {
            self.counts.overflow += 1;
            return pool.free(frame);
        }
        let length = (frame.len() + ETHERNET_EXTRA) as f64;
        self.busy_until = self.busy_until.max(now) + Duration::from_secs_f64(length / self.path.bytes_per_second);
        let mut due = self.busy_until + self.path.delay;
        if swapped {
            self.counts.swapped += 1;
            due += (self.path.delay / 4).max(Duration::from_micros(200));
        }
        if doubled {
            self.counts.doubled += 1;
            if let Some(mut twin) = pool.alloc() {
                twin.grow_back(frame.len());
                let bytes = pool.bytes(&frame).to_vec();
                pool.bytes_mut(&mut twin).copy_from_slice(&bytes);
                self.under_way.insert((due, 2 * self.counts.packets + 1), twin);
            }
        }
        self.under_way.insert((due, 2 * self.counts.packets), frame);
    }

    /// Returns a packet that has arrived.
    pub(crate) fn leave(&mut self, now: Duration) -> Option<Frame> {
        let first = self.under_way.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// Returns the time at which the next packet arrives.
    pub(crate) fn next(&self) -> Option<Duration> {
        self.under_way.first_key_value().map(|((due, _), _)| *due)
    }
}

fn is_tcp(frame: &[u8]) -> bool {
    match frame.get(12..14) {
        Some([8, 0]) => frame.get(23) == Some(&6),
        Some([0x86, 0xdd]) => frame.get(20) == Some(&6),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fs_core::HeapPool;

    const PATH: Path = Path {
        bytes_per_second: 125e6,
        delay: Duration::from_millis(1),
        queue: 30_000,
        loss: 0.0,
        reorder: 0.0,
        duplicate: 0.0,
    };

    fn packet(pool: &mut HeapPool, number: u8) -> Frame {
        let mut frame = pool.alloc().unwrap();
        frame.grow_back(1514);
        let bytes = pool.bytes_mut(&mut frame);
        bytes.fill(0);
        bytes[12..14].copy_from_slice(&[8, 0]);
        bytes[23] = 6;
        bytes[40] = number;
        frame
    }

    fn send(path: Path, count: u8) -> (Vec<u8>, Counts, Duration) {
        let mut pool = HeapPool::new(512, 2048);
        let mut pipe = Pipe::new(path, 7);
        for number in 0..count {
            let frame = packet(&mut pool, number);
            pipe.enter(Duration::ZERO, &mut pool, frame);
        }
        let (mut seen, mut last) = (Vec::new(), Duration::ZERO);
        while let Some(due) = pipe.next() {
            assert!(pipe.leave(due - Duration::from_nanos(1)).is_none(), "left too early");
            let frame = pipe.leave(due).unwrap();
            seen.push(pool.bytes(&frame)[40]);
            pool.free(frame);
            last = due;
        }
        assert_eq!(pool.in_use(), 0);
        (seen, pipe.counts, last)
    }

    #[test]
    fn rate_delay_and_queue() {
        let (seen, counts, last) = send(PATH, 100);
        // 30,000 bytes wait, and the packet that crosses the limit.
        assert_eq!(seen, (0..20).collect::<Vec<u8>>());
        assert_eq!(counts.overflow, 80);
        let expected = Duration::from_millis(1) + Duration::from_secs_f64(20.0 * 1538.0 / 125e6);
        assert!(last.abs_diff(expected) < Duration::from_nanos(100), "{last:?} {expected:?}");
    }

    #[test]
    fn mischief() {
        let (seen, counts, _) = send(Path { queue: 1 << 20, loss: 0.2, ..PATH }, 200);
        assert_eq!(seen.len() as u64, 200 - counts.lost);
        assert!((20..70).contains(&counts.lost), "{counts:?}");
        let (seen, counts, _) = send(Path { queue: 1 << 20, reorder: 0.1, duplicate: 0.1, ..PATH }, 200);
        assert_eq!(seen.len() as u64, 200 + counts.doubled);
        assert!(counts.doubled > 5 && counts.swapped > 5, "{counts:?}");
        assert!(!seen.is_sorted());
    }
}
