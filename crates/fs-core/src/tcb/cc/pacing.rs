//! Pacing: the rate at which a connection's segments leave.
//!
//! Segments leave in bursts of about a millisecond's worth, as Linux sizes its TSO segments
//! (`tcp_tso_autosize`): a gate for each segment would cost a timer for each. A connection that
//! waits for its next burst is in the core's [`PacingQueue`], whose times are exact; the timer
//! wheel's resolution is milliseconds.

use crate::time::{Duration, Instant};
use alloc::collections::BinaryHeap;
use core::cmp::Reverse;

/// Duration of a burst at the connection's rate: Linux `sk_pacing_shift`, 10 (1/1024 s). Too high:
/// queues at the bottleneck. Too low: more wake-ups.
const BURST: Duration = Duration::from_millis(1);
/// Largest burst in bytes: Linux `sk_gso_max_size`.
const BURST_MAX: u64 = 64 << 10;
/// Maximum delay of a wake-up that is compensated: the runtime's timers have a resolution of
/// milliseconds. A connection that wakes later was idle, not waiting.
const LATE_MAX: Duration = Duration::from_millis(4);

/// A connection's pacing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pacing {
    /// Rate requested by congestion control, in bytes per second; 0: none.
    wanted: u64,
    /// SO_MAX_PACING_RATE.
    pub(crate) max: Option<u64>,
    /// Current rate; 0: not paced.
    rate: u64,
    /// When the next burst may begin.
    next: Instant,
    /// Bytes that remain of the current burst.
    left: u32,
    /// The connection is in the queue.
    pub(crate) queued: bool,
}

impl Pacing {
    /// Returns the rate in bytes per second; 0 if segments are not paced.
    #[inline]
    pub(crate) fn rate(&self) -> u64 {
        self.rate
    }

    /// Returns true if congestion control requests a rate.
    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted != 0
    }

    /// Sets the rate that congestion control requests; 0 is none.
    pub(crate) fn set_rate(&mut self, wanted: u64) {
        self.wanted = wanted;
        self.rate = match self.max {
            None => wanted,
            Some(max) if wanted == 0 => max,
            Some(max) => wanted.min(max),
        };
    }

    /// Sets SO_MAX_PACING_RATE.
    pub(crate) fn set_max(&mut self, max: Option<u64>) {
        // Zero would stop the connection permanently: the minimum is one byte per second.
        let max = max.map(|m| m.max(1));
        if max != self.max {
            self.max = max;
            self.set_rate(self.wanted);
            // Ends a wait at the old rate.
            (self.next, self.left, self.queued) = (Instant::ZERO, 0, false);
        }
    }

    /// Returns the size of a burst in bytes.
    pub(crate) fn burst(&self, mss: u32) -> u32 {
        burst(self.rate, mss)
    }

    /// Returns when the next segment may leave, or `None` for now.
    #[inline]
    pub(crate) fn wait(&self, now: Instant) -> Option<Instant> {
        (self.rate != 0 && self.left == 0 && now < self.next).then_some(self.next)
    }

    /// Returns true if a wait follows `len` bytes that leave now.
    pub(crate) fn ends_burst(&self, len: u32, now: Instant) -> bool {
        (1..=len).contains(&self.left) && self.rate != 0 && self.next + self.time_of(len) > now
    }

    /// Ends a wait: allows a burst, plus the bytes missed by waking late.
    pub(crate) fn wake(&mut self, now: Instant, mss: u32) {
        self.queued = false;
        if self.rate == 0 || now < self.next {
            return;
        }
        let late = now.since(self.next).min(LATE_MAX);
        self.next = self.next.max(now - late);
        self.left = self.burst(mss) + bytes_in(late, self.rate);
    }

    /// Records that `len` bytes leave now.
    pub(crate) fn charge(&mut self, len: u32, mss: u32, now: Instant) {
        if self.rate == 0 {
            return;
        }
        if self.left == 0 {
            self.left = self.burst(mss);
            // Unused capacity is saved for at most one burst's time: a sender that stopped for a
            // moment keeps its rate.
            if now.since(self.next) > BURST {
                self.next = now;
            }
        }
        self.left = self.left.saturating_sub(len);
        self.next = self.next + self.time_of(len);
    }

    /// Returns the time of `len` bytes at the current rate, which is not 0.
    fn time_of(&self, len: u32) -> Duration {
        Duration::from_nanos(u64::from(len) * 1_000_000_000 / self.rate)
    }
}

/// Returns the size of a burst at `rate`: at least two segments, so that the receiver does not
/// delay its ACK.
pub(crate) fn burst(rate: u64, mss: u32) -> u32 {
    (rate / 1024).min(BURST_MAX).max(u64::from(mss) * 2) as u32
}

fn bytes_in(time: Duration, rate: u64) -> u32 {
    let bytes = u128::from(rate) * time.as_nanos() / 1_000_000_000;
    u32::try_from(bytes).unwrap_or(u32::MAX / 2)
}

/// A core's connections that wait for their next burst. Entries are not removed: one whose
/// connection has ended, or no longer waits, is skipped.
#[derive(Debug, Default)]
pub(crate) struct PacingQueue {
    heap: BinaryHeap<Reverse<(Instant, u32, u32)>>,
}

impl PacingQueue {
    /// Queues slot `index` of `generation` until `at`.
    pub(crate) fn push(&mut self, at: Instant, index: u32, generation: u32) {
        self.heap.push(Reverse((at, index, generation)));
    }

    /// Removes and returns the next connection whose wait has ended.
    #[inline]
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<(u32, u32)> {
        if self.heap.peek()?.0.0 > now {
            return None;
        }
        self.pop()
    }

    #[inline(never)]
    fn pop(&mut self) -> Option<(u32, u32)> {
        self.heap.pop().map(|Reverse((_, index, generation))| (index, generation))
    }

    /// Returns when [`PacingQueue::pop_due`] has an entry.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.heap.peek().map(|entry| entry.0.0)
    }
}

#[cfg(test)]
mod tests;
