//! Pacing: at what rate a connection's segments leave.
//!
//! Segments leave in bursts of about a millisecond's worth, as Linux sizes its TSO segments (`tcp_tso_autosize`):
//! a gate for each segment would cost a timer for each. Who waits for its next burst stands in the core's
//! [`PacingQueue`], whose times are exact where the timer wheel's are milliseconds.

use crate::time::{Duration, Instant};
use alloc::collections::BinaryHeap;
use core::cmp::Reverse;

/// A burst lasts this long at the connection's rate: Linux `sk_pacing_shift`, 10 (1/1024 s). Longer: queues at the
/// bottleneck; shorter: more wake-ups.
const BURST: Duration = Duration::from_millis(1);
/// Largest burst in bytes: Linux `sk_gso_max_size`.
const BURST_MAX: u64 = 64 << 10;
/// So late may a wake-up be and be made good: the runtime's timers know milliseconds only. What is later was not
/// waiting but idle.
const LATE_MAX: Duration = Duration::from_millis(4);

/// A connection's pacing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pacing {
    /// What congestion control wants, in bytes a second; 0: nothing.
    wanted: u64,
    /// SO_MAX_PACING_RATE.
    pub(crate) max: Option<u64>,
    /// In force; 0: not paced.
    rate: u64,
    /// When the next burst may begin.
    next: Instant,
    /// Bytes that are left of the burst under way.
    left: u32,
    /// Stands in the queue.
    pub(crate) queued: bool,
}

impl Pacing {
    /// Bytes a second; 0 when segments leave as they come.
    #[inline]
    pub(crate) fn rate(&self) -> u64 {
        self.rate
    }

    /// Congestion control wants a rate.
    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted != 0
    }

    /// Congestion control's wish; 0 is none.
    pub(crate) fn set_rate(&mut self, wanted: u64) {
        self.wanted = wanted;
        self.rate = match self.max {
            None => wanted,
            Some(max) if wanted == 0 => max,
            Some(max) => wanted.min(max),
        };
    }

    /// SO_MAX_PACING_RATE.
    pub(crate) fn set_max(&mut self, max: Option<u64>) {
        // Zero would stop the connection for ever: the slowest is a byte a second.
        let max = max.map(|m| m.max(1));
        if max != self.max {
            self.max = max;
            self.set_rate(self.wanted);
            // A wait at the old rate is over.
            (self.next, self.left, self.queued) = (Instant::ZERO, 0, false);
        }
    }

    /// Bytes of a burst.
    pub(crate) fn burst(&self, mss: u32) -> u32 {
        burst(self.rate, mss)
    }

    /// When the next segment may leave, if not now.
    #[inline]
    pub(crate) fn wait(&self, now: Instant) -> Option<Instant> {
        (self.rate != 0 && self.left == 0 && now < self.next).then_some(self.next)
    }

    /// Behind `len` bytes that leave now there is a wait.
    pub(crate) fn ends_burst(&self, len: u32, now: Instant) -> bool {
        (1..=len).contains(&self.left) && self.rate != 0 && self.next + self.time_of(len) > now
    }

    /// A wait is over: a burst, and what was missed by waking late.
    pub(crate) fn wake(&mut self, now: Instant, mss: u32) {
        self.queued = false;
        if self.rate == 0 || now < self.next {
            return;
        }
        let late = now.since(self.next).min(LATE_MAX);
        self.next = self.next.max(now - late);
        self.left = self.burst(mss) + bytes_in(late, self.rate);
    }

    /// `len` bytes leave now.
    pub(crate) fn charge(&mut self, len: u32, mss: u32, now: Instant) {
        if self.rate == 0 {
            return;
        }
        if self.left == 0 {
            self.left = self.burst(mss);
            // What was not used is not saved up, but for a burst's time: who stopped for a moment keeps his rate.
            if now.since(self.next) > BURST {
                self.next = now;
            }
        }
        self.left = self.left.saturating_sub(len);
        self.next = self.next + self.time_of(len);
    }

    /// How long `len` bytes take at the rate in force, which is not 0.
    fn time_of(&self, len: u32) -> Duration {
        Duration::from_nanos(u64::from(len) * 1_000_000_000 / self.rate)
    }
}

/// Bytes of a burst at `rate`: at least two segments, so that delayed ACKs do not wait.
pub(crate) fn burst(rate: u64, mss: u32) -> u32 {
    (rate / 1024).min(BURST_MAX).max(u64::from(mss) * 2) as u32
}

fn bytes_in(time: Duration, rate: u64) -> u32 {
    let bytes = u128::from(rate) * time.as_nanos() / 1_000_000_000;
    u32::try_from(bytes).unwrap_or(u32::MAX / 2)
}

/// A core's connections that wait for their next burst. Entries are not removed: one whose connection is gone, or does
/// not wait any more, is skipped.
#[derive(Debug, Default)]
pub(crate) struct PacingQueue {
    heap: BinaryHeap<Reverse<(Instant, u32, u32)>>,
}

impl PacingQueue {
    /// Slot `index` of `generation` waits until `at`.
    pub(crate) fn push(&mut self, at: Instant, index: u32, generation: u32) {
        self.heap.push(Reverse((at, index, generation)));
    }

    /// The next whose wait is over.
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

    /// When [`PacingQueue::pop_due`] has something.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.heap.peek().map(|entry| entry.0.0)
    }
}

#[cfg(test)]
mod tests;
