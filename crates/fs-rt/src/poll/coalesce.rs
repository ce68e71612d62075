//! Receive coalescing: a core polls its links only at intervals, so that packets gather.
//!
//! A core that is faster than its peers handles every packet separately. Each packet then costs a
//! turn, a task, a sent packet and a system call, and wakes the peer for one response. With many
//! active connections none of them notices a few microseconds, and coalescing saves CPU on both
//! sides: a response that arrives in pieces (head and body) is handled as one, packets leave with
//! one call, acknowledgements are piggybacked, and the peer finds several responses when it wakes.
//!
//! With few connections coalescing only adds latency, because each waits for its peer, which waits
//! for us. So the events of each window decide ([`Coalescing::end_window`]). Coalescing starts if
//! an interval contains several events, of so many connections that each had only a few. An
//! interval is then a small part of a round trip, which is long because the connection waits in a
//! queue somewhere (Little's law). A core that is busy all the time is not affected: it polls less
//! often than once per interval anyway. Decision 0009.
//!
//! If round trips are even longer, the core sleeps for the rest of an interval instead of polling:
//! decision 0014.
//!
//! The other load is a stream of full segments for which only acknowledgements are sent, possibly
//! on one connection: nothing waits for a single segment. Coalescing saves an acknowledgement, a
//! turn and a task for every other segment. At a sender on this machine it also saves the
//! contention for the ring's cache lines with a polling core. Network cards delay their interrupts
//! as long, and the kernel's GRO acknowledges as rarely. But a sender with a small window waits for
//! each acknowledgement, and the kernel's TCP over veth sends the next segments on the core that
//! delivers it. So a stream is received with and without coalescing in turn, and the variant with
//! more bytes is kept for a while. Decision 0012.

use super::policy::PollPolicy;
use fs_core::{Instant, Stats};
use std::time::Duration;

/// Time over which events are counted. Shorter: too few events to decide. Longer: slower to end
/// when the load ends.
const WINDOW: Duration = Duration::from_micros(256);
/// The interval between two polls of the links. Longer: larger batches, and more latency. Measured
/// with a relay between 64 connections and a server: packets sent per request 2.9 without
/// coalescing; 2.4, 2.3 and 2.3 at 10, 20 and 40 µs; system calls 2.1, 0.9, 0.5 and 0.35.
const INTERVAL: Duration = Duration::from_micros(20);
/// Time for which the core sleeps after a poll, if a round trip is at least four times as long.
/// Packets do not end this sleep. Shorter: the sleep's own cost is a larger part. Longer: more
/// latency (decision 0014).
const TIMED_SLEEP: Duration = Duration::from_micros(40);
/// Events in a window that start coalescing: two per interval. It ends below half of that, because
/// packets that are taken together make fewer events.
const COALESCE_MIN_EVENTS: u32 = 24;
/// Mean events of a connection in a window, at most: its round trip is then longer than four
/// intervals.
const MAX_EVENTS_PER_CONNECTION: u32 = 3;
/// Packets received in a window that make a stream: three per interval. It ends below half of that.
const STREAM_MIN_PACKETS: u64 = 36;
/// Their mean size in bytes: more than half an Ethernet frame.
const STREAM_MIN_MEAN_BYTES: u64 = 760;
/// Packets other than acknowledgements that may be sent in a window. More would be responses that a
/// peer waits for.
const STREAM_MAX_SENT: u64 = 1;
/// Windows of a stream that are measured together. One window before them is ignored, because it
/// still contains effects of the other variant. Fewer: chance decides. More: shorter streams are
/// not coalesced.
const TRIAL_WINDOWS: u32 = 8;
/// Measurements for which the better variant is kept: 140 ms, of which 2 ms are the next
/// comparison.
const TRIALS_KEPT: u32 = 64;
/// Bytes with coalescing, in hundredths of those without, from which on coalescing is better: a
/// stream that another link limits has the same rate with both, but costs less with coalescing.
const WORTH_PERCENT: u128 = 97;
/// Time for which a coalescing core polls idle links before it sleeps. If so many connections are
/// silent at once, their peers have lost their CPU for a while, and packets gather during a sleep
/// too. (Measured as above: 12.1 µs of CPU per request, and 13.9 with the usual spin of 30 µs.)
const SPIN: Duration = Duration::from_micros(2);

/// See the module.
#[derive(Debug)]
pub(crate) struct Coalescing {
    /// Loads that the policy allows to coalesce: see [`PollPolicy`].
    connections: bool,
    streams: bool,
    timed_sleeps: bool,
    /// The start of the window, and its events.
    began: Instant,
    events: u32,
    /// Connections that had an event, by the last eight bits of their slots. More than 256 look
    /// like fewer.
    distinct: u32,
    seen: [u64; 4],
    /// The load in the last window.
    load: Load,
    /// The stack's counters when the window began.
    counted: Traffic,
    stream: Trial,
    /// When a poll of the links last found packets.
    found: Instant,
    /// Number of times that coalescing has started.
    pub(crate) begun: u64,
}

/// The kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// Few connections, or little work: one may wait for each poll.
    Latency,
    /// Many connections, each of which waits in a queue for longer than an interval.
    Many,
    /// Like `Many`, with round trips of at least four timed sleeps.
    ManySlow,
}

/// Packets and bytes of all links of the core.
#[derive(Clone, Copy, Debug, Default)]
struct Traffic {
    received: u64,
    bytes: u64,
    /// Without acknowledgements.
    sent: u64,
}

impl Traffic {
    fn of(stats: &Stats) -> Self {
        Self {
            received: stats.rx_packets,
            bytes: stats.rx_bytes,
            sent: stats.tx_packets.saturating_sub(stats.acks_sent),
        }
    }

    /// Returns whether the traffic since `before` was a stream.
    fn is_stream(&self, before: &Self, enough: u64) -> bool {
        let received = self.received - before.received;
        received >= enough
            && self.bytes - before.bytes >= received * STREAM_MIN_MEAN_BYTES
            && self.sent <= before.sent + STREAM_MAX_SENT
    }
}

/// Measures whether coalescing is better for a stream.
#[derive(Clone, Copy, Debug, Default)]
struct Trial {
    /// The stream is now received with coalescing.
    coalesced: bool,
    /// The better variant is known, and kept for this many measurements.
    kept: u32,
    windows: u32,
    bytes: u64,
    time: Duration,
    /// Bytes and time without coalescing.
    without: (u64, Duration),
}

impl Trial {
    /// Records a window of the stream.
    fn window(&mut self, bytes: u64, time: Duration) {
        self.windows += 1;
        if self.windows > 1 {
            self.bytes += bytes;
            self.time += time;
        }
        if self.windows <= TRIAL_WINDOWS {
            return;
        }
        let measured = (self.bytes, self.time);
        (self.windows, self.bytes, self.time) = (0, 0, Duration::ZERO);
        match (self.kept, self.coalesced) {
            (0, false) => (self.coalesced, self.without) = (true, measured),
            (0, true) => {
                let value =
                    |(bytes, _): (u64, Duration), (_, time): (u64, Duration)| u128::from(bytes) * time.as_nanos();
                self.coalesced = value(measured, self.without) * 100 >= value(self.without, measured) * WORTH_PERCENT;
                self.kept = TRIALS_KEPT;
            }
            (1, _) => (self.kept, self.coalesced) = (0, false),
            (_, _) => self.kept -= 1,
        }
    }
}

impl Coalescing {
    pub(crate) fn new(policy: &PollPolicy) -> Self {
        Self {
            connections: policy.coalesce_connections,
            streams: policy.coalesce_streams,
            timed_sleeps: policy.timed_sleeps,
            began: Instant::ZERO,
            events: 0,
            distinct: 0,
            seen: [0; 4],
            load: Load::Latency,
            counted: Traffic::default(),
            stream: Trial::default(),
            found: Instant::ZERO,
            begun: 0,
        }
    }

    /// Records an event of the connection in `slot`.
    #[inline]
    pub(crate) fn on_event(&mut self, slot: u32) {
        let (word, bit) = ((slot >> 6 & 3) as usize, 1_u64 << (slot & 63));
        self.events += 1;
        self.distinct += u32::from(self.seen[word] & bit == 0);
        self.seen[word] |= bit;
    }

    /// Returns whether to poll the links now.
    #[inline]
    pub(crate) fn is_poll_due(&mut self, now: Instant, stats: &Stats) -> bool {
        if now.since(self.began) >= WINDOW {
            self.end_window(now, Traffic::of(stats));
        }
        !self.is_on() || now.since(self.found) >= INTERVAL
    }

    fn is_on(&self) -> bool {
        self.load != Load::Latency || self.stream.coalesced
    }

    /// Records that a poll found packets.
    #[inline]
    pub(crate) fn found_packets(&mut self, now: Instant) {
        self.found = now;
    }

    /// Makes the next poll due at once, because another thread wants the CPU.
    pub(crate) fn end_interval(&mut self) {
        self.found = Instant::ZERO;
    }

    /// Returns how long a core without work may sleep, ignoring packets.
    #[inline]
    pub(crate) fn timed_sleep(&self, now: Instant) -> Option<Duration> {
        let end = self.found + TIMED_SLEEP;
        (self.timed_sleeps && self.load == Load::ManySlow && now < end).then(|| end.since(now))
    }

    /// Returns how long the core polls before it sleeps, if the default is `spin`.
    #[inline]
    pub(crate) fn spin(&self, spin: Duration) -> Duration {
        if self.load == Load::Latency { spin } else { spin.min(SPIN) }
    }

    fn end_window(&mut self, now: Instant, traffic: Traffic) {
        // After a sleep, or a time without the CPU, the counts say nothing about the present.
        let known = now.since(self.began) < WINDOW * 2;
        let enough = if self.load == Load::Latency { COALESCE_MIN_EVENTS } else { COALESCE_MIN_EVENTS / 2 };
        let many = self.connections
            && known
            && self.events >= enough
            && self.events <= MAX_EVENTS_PER_CONNECTION * self.distinct;
        let load = match many {
            false => Load::Latency,
            // Three events in two windows: the round trip is four timed sleeps.
            true if self.events * 2 <= self.distinct * 3 => Load::ManySlow,
            true => Load::Many,
        };
        let was_on = self.is_on();
        let enough = if self.stream.coalesced { STREAM_MIN_PACKETS / 2 } else { STREAM_MIN_PACKETS };
        if self.streams && known && traffic.is_stream(&self.counted, enough) {
            self.stream.window(traffic.bytes - self.counted.bytes, now.since(self.began));
        } else {
            self.stream = Trial::default();
        }
        (self.load, self.counted) = (load, traffic);
        self.begun += u64::from(self.is_on() && !was_on);
        (self.began, self.events, self.distinct, self.seen) = (now, 0, 0, [0; 4]);
    }
}

#[cfg(test)]
mod tests;
