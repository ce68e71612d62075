//! The queue in front of a link and its management. A packet's waiting time in a FIFO queue is
//! known when it arrives, so the packet is judged then, for the time at which a real queue would
//! judge it.

use crate::rng::Rng;
use fs_core::{Duration, Instant};
use std::collections::VecDeque;

/// Active queue management: feedback to senders before the queue overflows. It marks ECN-capable
/// packets (RFC 3168) and drops others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aqm {
    /// No management: the queue overflows.
    DropTail,
    /// ECN-capable packets that find this many packets waiting are marked (DCTCP's switches); for
    /// others only the overflow counts.
    Mark {
        /// Number of packets.
        at: usize,
    },
    /// Random early detection (Floyd and Jacobson 1993): by the average queue length.
    Red {
        /// Average in packets below which nothing happens.
        min: usize,
        /// Average above which every packet is marked or dropped.
        max: usize,
        /// Fraction of packets just below `max`.
        max_ppm: u32,
    },
    /// RFC 8289: by the packets' waiting time.
    CoDel {
        /// Acceptable waiting time.
        target: Duration,
        /// Time for which it may be exceeded.
        interval: Duration,
    },
}

/// Treatment of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Pass,
    /// Marked if ECN-capable, else dropped.
    MarkOrDrop,
    /// Marked if ECN-capable.
    Mark,
}

/// CoDel's variables under RFC 8289's names.
#[derive(Debug, Default)]
struct CoDel {
    first_above: Option<Instant>,
    dropping: bool,
    drop_next: Instant,
    count: u64,
    last_count: u64,
}

/// Weight of a packet in RED's average: 1/512, the authors' 0.002.
const RED_SHIFT: u32 = 9;
/// Unit of the average: 1/1024 packets.
const RED_SCALE: i64 = 1024;

/// The queue.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Departure time of each packet, and its bytes.
    waiting: VecDeque<(Instant, usize)>,
    bytes: u64,
    red_average: i64,
    /// The last packet's transmission time, and when it had left.
    last: (Duration, Instant),
    codel: CoDel,
}

impl Queue {
    /// Removes packets that have left by `now`.
    pub(super) fn advance(&mut self, now: Instant) {
        while let Some(&(at, bytes)) = self.waiting.front()
            && at <= now
        {
            self.bytes -= bytes as u64;
            self.waiting.pop_front();
        }
    }

    pub(super) fn packets(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn push(&mut self, departs: Instant, bytes: usize, took: Duration) {
        self.last = (took, departs);
        self.waiting.push_back((departs, bytes));
        self.bytes += bytes as u64;
    }

    /// Judges a packet that arrives at `now` and would begin to leave at `start`.
    pub(super) fn judge(&mut self, aqm: Aqm, now: Instant, start: Instant, rng: &mut Rng) -> Verdict {
        match aqm {
            Aqm::DropTail => Verdict::Pass,
            Aqm::Mark { at } if self.packets() >= at => Verdict::Mark,
            Aqm::Mark { .. } => Verdict::Pass,
            Aqm::Red { min, max, max_ppm } => {
                if self.packets() == 0 {
                    self.forget_while_idle(now);
                }
                self.red_average += (self.packets() as i64 * RED_SCALE - self.red_average) >> RED_SHIFT;
                let (min, max) = (min as i64 * RED_SCALE, max as i64 * RED_SCALE);
                let over = self.red_average - min;
                let ppm = match self.red_average {
                    average if average >= max => 1_000_000,
                    _ if over <= 0 => 0,
                    _ => (i64::from(max_ppm) * over / (max - min)) as u32,
                };
                if rng.chance(ppm) { Verdict::MarkOrDrop } else { Verdict::Pass }
            }
            Aqm::CoDel { target, interval } => {
                // One packet may always wait (RFC 8289 4.4: no dropping below one MTU).
                let below = start.since(now) < target || self.packets() <= 1;
                if self.codel.drops(start, below, interval) { Verdict::MarkOrDrop } else { Verdict::Pass }
            }
        }
    }
}

impl Queue {
    /// Reduces RED's average after an idle time, by as many packets as the link could have sent in
    /// that time (section 4 of the paper). Otherwise a queue that was full once would permanently
    /// drop packets that arrive one at a time.
    fn forget_while_idle(&mut self, now: Instant) {
        let (took, idle_since) = self.last;
        let missed = now.since(idle_since).as_nanos() / took.as_nanos().max(1);
        // After that many, a millionth of it is left.
        if missed >= 14 << RED_SHIFT {
            self.red_average = 0;
        }
        for _ in 0..missed.min(14 << RED_SHIFT) {
            self.red_average -= self.red_average >> RED_SHIFT;
        }
    }
}

impl CoDel {
    fn drops(&mut self, at: Instant, below: bool, interval: Duration) -> bool {
        if below {
            self.first_above = None;
            self.dropping = false;
            return false;
        }
        let first_above = *self.first_above.get_or_insert(at + interval);
        if at < first_above {
            self.dropping = false;
            return false;
        }
        if self.dropping {
            if at < self.drop_next {
                return false;
            }
            self.count += 1;
            self.drop_next = self.drop_next + control(interval, self.count);
            return true;
        }
        self.dropping = true;
        let delta = self.count - self.last_count;
        self.count = if delta > 1 && at.since(self.drop_next) < interval * 16 { delta } else { 1 };
        self.last_count = self.count;
        self.drop_next = at + control(interval, self.count);
        true
    }
}

/// Returns RFC 8289's control law: the interval over the square root of the count.
fn control(interval: Duration, count: u64) -> Duration {
    Duration::from_nanos(interval.as_nanos() as u64 * 1000 / (count * 1_000_000).isqrt())
}
