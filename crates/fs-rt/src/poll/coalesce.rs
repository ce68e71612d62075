//! Receive coalescing: when a core lets packets gather before it looks at its links again.
//!
//! A core that is faster than its peers meets every packet by itself: each costs a turn, a task, a packet out and a system
//! call, and wakes the peer for one answer. With many connections under way none of them notices a few microseconds, and what
//! is saved is CPU of both sides: an answer that comes in pieces (head and body) goes on in one, packets leave by one call,
//! acknowledgements ride along, and the peer finds several answers when it wakes.
//!
//! With few connections it would be latency for nothing: each waits for its peer, which waits for us. So the events of the last
//! window decide, over and over ([`Coalescing::end_window`]). Coalescing begins when events come so fast that an interval holds several,
//! of so many connections that each had but a few: an interval is a small part of such a round trip, which is that long
//! because the connection waits for its turn in a queue somewhere (Little's law). A core that is busy all the time is not
//! concerned: it is away for longer than an interval between two looks. Decision 0009.
//!
//! Where the round trips are longer still, the core sleeps by the clock for the rest of an interval instead of looking on: decision 0014.
//!
//! The other load is a stream of full segments to which nothing is answered but acknowledgements, be it of one
//! connection: nobody waits for the end of it. What is saved is an acknowledgement, a turn and a task for every other
//! segment, and at the sender, where that is on this machine, the fight for the ring's cache lines with a core that looks at
//! them without pause. Network cards wait as long before they interrupt, and the kernel's GRO acknowledges as rarely. But a
//! sender whose window is small waits for each acknowledgement, and the kernel's TCP over veth sends what an acknowledgement
//! allows on the core that brings it. So a stream is received with coalescing and without in turns, and what brings more bytes is kept for
//! a while. Decision 0012.

use super::policy::PollPolicy;
use fs_core::{Instant, Stats};
use std::time::Duration;

/// Time over which is counted. Shorter: too few events to tell. Longer: slower to end when the load ends.
const WINDOW: Duration = Duration::from_micros(256);
/// The interval between two looks at the links. Longer: fuller batches, and latency. Measured with a relay between 64 connections
/// and a server: packets out for a request 2.9 without, 2.4, 2.3 and 2.3 at 10, 20 and 40 µs; calls 2.1, 0.9, 0.5 and 0.35.
const INTERVAL: Duration = Duration::from_micros(20);
/// How long after a look the core sleeps by the clock, where a round trip is at least four of it. Who
/// sends wakes nobody then. Shorter: what the sleep costs is a larger part of it; longer: latency (decision 0014).
const TIMED_SLEEP: Duration = Duration::from_micros(40);
/// Events in a window from which on coalescing begins: two in an interval. It ends below half of that, for packets that are taken
/// together make fewer events.
const MANY: u32 = 24;
/// Events that a connection may have in a window, in the mean: its round trip is then longer than four intervals.
const OFTEN: u32 = 3;
/// Packets received in a window from which on a stream is coalesced: three in an interval. It ends below half of that.
const STREAM: u64 = 36;
/// Bytes that they have in the mean: more than half an Ethernet frame.
const FULL: u64 = 760;
/// Packets that may be sent in a window besides acknowledgements: more are answers, and somebody waits for them.
const ANSWERS: u64 = 1;
/// Windows of a stream that are measured together, after one that is not, for it has some of what was before. Fewer: chance
/// decides; more: shorter streams go without.
const MEASURED: u32 = 8;
/// Measurements that what was found better is kept for: 140 ms, of which 2 are for the next comparison.
const KEPT: u32 = 64;
/// What coalescing brings must be that much of what there is without, in hundredths: a stream that another link limits is the same with
/// both, and costs less with them.
const WORTH: u128 = 97;
/// How long a core that coalesces looks on when the links have nothing: when so many connections are silent at once, their
/// peers have lost their CPU for a while, and packets gather in a sleep too. (Measured as above: 12.1 µs of CPU a request, and 13.9
/// with the spin of 30 µs that a core has else.)
const SPIN: Duration = Duration::from_micros(2);

/// See the module.
#[derive(Debug)]
pub(crate) struct Coalescing {
    /// What may be coalesced: see [`PollPolicy`].
    connections: bool,
    streams: bool,
    timed_sleeps: bool,
    /// The window's beginning, and its events.
    began: Instant,
    events: u32,
    /// Connections that had one, by the last eight bits of their slots: more than 256 look like fewer.
    distinct: u32,
    seen: [u64; 4],
    /// What the last window said.
    load: Load,
    /// What the stack had counted when the window began.
    counted: Traffic,
    stream: Trial,
    /// When a look at the links last found something.
    found: Instant,
    /// Times that it has begun.
    pub(crate) begun: u64,
}

/// What the connections ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// Few of them, or little to do: each look may be what one waits for.
    Latency,
    /// Many, each of which waits in a queue for longer than an interval.
    Many,
    /// The same, and round trips of four timed sleeps.
    ManySlow,
}

/// Packets and bytes of all of the core's links.
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

    /// Whether it was a stream, since `before`.
    fn is_stream(&self, before: &Self, enough: u64) -> bool {
        let received = self.received - before.received;
        received >= enough && self.bytes - before.bytes >= received * FULL && self.sent <= before.sent + ANSWERS
    }
}

/// Whether coalescing does a stream good.
#[derive(Clone, Copy, Debug, Default)]
struct Trial {
    /// It is received with coalescing.
    coalesced: bool,
    /// The better of the two has been found, and is kept for so many measurements.
    kept: u32,
    windows: u32,
    bytes: u64,
    time: Duration,
    /// Bytes and time without coalescing.
    without: (u64, Duration),
}

impl Trial {
    /// A window of the stream has ended.
    fn window(&mut self, bytes: u64, time: Duration) {
        self.windows += 1;
        if self.windows > 1 {
            self.bytes += bytes;
            self.time += time;
        }
        if self.windows <= MEASURED {
            return;
        }
        let measured = (self.bytes, self.time);
        (self.windows, self.bytes, self.time) = (0, 0, Duration::ZERO);
        match (self.kept, self.coalesced) {
            (0, false) => (self.coalesced, self.without) = (true, measured),
            (0, true) => {
                let value =
                    |(bytes, _): (u64, Duration), (_, time): (u64, Duration)| u128::from(bytes) * time.as_nanos();
                self.coalesced = value(measured, self.without) * 100 >= value(self.without, measured) * WORTH;
                self.kept = KEPT;
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

    /// The connection in `slot` had an event.
    #[inline]
    pub(crate) fn on_event(&mut self, slot: u32) {
        let (word, bit) = ((slot >> 6 & 3) as usize, 1_u64 << (slot & 63));
        self.events += 1;
        self.distinct += u32::from(self.seen[word] & bit == 0);
        self.seen[word] |= bit;
    }

    /// Whether the links are to be looked at now.
    #[inline]
    pub(crate) fn is_look_due(&mut self, now: Instant, stats: &Stats) -> bool {
        if now.since(self.began) >= WINDOW {
            self.end_window(now, Traffic::of(stats));
        }
        !self.is_on() || now.since(self.found) >= INTERVAL
    }

    fn is_on(&self) -> bool {
        self.load != Load::Latency || self.stream.coalesced
    }

    /// A look found packets.
    #[inline]
    pub(crate) fn found_packets(&mut self, now: Instant) {
        self.found = now;
    }

    /// The next look is due at once: the core has no time to spend on waiting.
    pub(crate) fn end_interval(&mut self) {
        self.found = Instant::ZERO;
    }

    /// How long a core without work may sleep by the clock, whatever comes.
    #[inline]
    pub(crate) fn timed_sleep(&self, now: Instant) -> Option<Duration> {
        let end = self.found + TIMED_SLEEP;
        (self.timed_sleeps && self.load == Load::ManySlow && now < end).then(|| end.since(now))
    }

    /// How long the core looks for work before it sleeps, where it would be `spin` else.
    #[inline]
    pub(crate) fn spin(&self, spin: Duration) -> Duration {
        if self.load == Load::Latency { spin } else { spin.min(SPIN) }
    }

    fn end_window(&mut self, now: Instant, traffic: Traffic) {
        // After a sleep or a time without the CPU nothing is known of what is now.
        let known = now.since(self.began) < WINDOW * 2;
        let enough = if self.load == Load::Latency { MANY } else { MANY / 2 };
        let many = self.connections && known && self.events >= enough && self.events <= OFTEN * self.distinct;
        let load = match many {
            false => Load::Latency,
            // Three events in two windows: the round trip is four timed sleeps.
            true if self.events * 2 <= self.distinct * 3 => Load::ManySlow,
            true => Load::Many,
        };
        let was_on = self.is_on();
        let enough = if self.stream.coalesced { STREAM / 2 } else { STREAM };
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
