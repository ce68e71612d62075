//! When a core lets packets gather before it looks at its links again.
//!
//! A core that is faster than its peers meets every packet by itself: each costs a turn, a task, a packet out and a system
//! call, and wakes the peer for one answer. With many connections under way none of them notices a few microseconds, and what
//! is saved is CPU of both sides: an answer that comes in pieces (head and body) goes on in one, packets leave by one call,
//! acknowledgements ride along, and the peer finds several answers when it wakes.
//!
//! With few connections it would be latency for nothing: each waits for its peer, which waits for us. So what has been heard
//! of how many of them decides, over and over. Gathering begins when events come so fast that a pause holds several, of so
//! many connections that each came round but a few times: a pause is a small part of such a round trip, which is that long
//! because the connection waits for its turn in a queue somewhere (Little's law). A core that is busy all the time is not
//! concerned: it is away for longer than a pause between two looks.
//!
//! Where the round trips are longer still, the core sleeps in a pause, by the clock, instead of looking on: decision 0014.
//!
//! The other load that gathers is a stream of full segments to which nothing is answered but acknowledgements, be it of one
//! connection: nobody waits for the end of it. What is saved is an acknowledgement, a turn and a task for every other
//! segment, and at the sender, where that is on this machine, the fight for the ring's cache lines with a core that looks at
//! them without pause. Network cards wait as long before they interrupt, and the kernel's GRO acknowledges as rarely. But a
//! sender whose window is small waits for each acknowledgement, and the kernel's TCP over veth sends what an acknowledgement
//! allows on the core that brings it. So a stream is tried with pauses and without, and what brings more bytes is kept for
//! a while.

use fs_core::{Instant, Stats};
use std::time::Duration;

/// Time over which is counted. Shorter: too few events to tell. Longer: slower to end when the load ends.
const WINDOW: Duration = Duration::from_micros(256);
/// Time between two looks at the links. Longer: fuller batches, and latency. Measured with a relay between 64 connections
/// and a server: packets out for a request 2.9 without, 2.4, 2.3 and 2.3 at 10, 20 and 40 µs; calls 2.1, 0.9, 0.5 and 0.35.
const PAUSE: Duration = Duration::from_micros(20);
/// How long after a look the core sleeps by the clock, where a round trip is at least four of it. Who
/// sends wakes nobody then. Shorter: what the sleep costs is a larger part of it; longer: latency (decision 0014).
const NAP: Duration = Duration::from_micros(40);
/// Events in a window from which on gathering begins: two in a pause. It ends below half of that, for what is gathered
/// makes fewer events.
const MANY: u32 = 24;
/// So often, in the mean, a connection may be heard of in a window: its round trip is then longer than four pauses.
const OFTEN: u32 = 3;
/// Packets received in a window from which on a stream gathers: three in a pause. It ends below half of that.
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
/// What pauses bring must be that much of what there is without, in hundredths: a stream that another link limits is the same with
/// both, and costs less with them.
const WORTH: u128 = 97;
/// How long a core that gathers looks on when the links have nothing: when so many connections are silent at once, their
/// peers have lost their CPU for a while, and a sleep gathers too. (Measured as above: 12.1 µs of CPU a request, and 13.9
/// with the spin of 30 µs that a core has else.)
const SPIN: Duration = Duration::from_micros(2);

/// See the module.
#[derive(Debug)]
pub(crate) struct Gather {
    /// Of the window.
    began: Instant,
    events: u32,
    connections: u32,
    /// Which connections have been heard of, by the last eight bits of their slots: more than 256 look like fewer.
    heard: [u64; 4],
    /// Because of many connections.
    on: bool,
    /// Each of which comes round seldom.
    naps: bool,
    /// What the stack had counted when the window began.
    counted: Traffic,
    /// Because of a stream.
    stream: Trial,
    allowed: bool,
    /// The links had something then.
    looked_at: Instant,
    /// Times that it has begun.
    pub(crate) begun: u64,
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

/// Whether pauses do a stream good.
#[derive(Clone, Copy, Debug, Default)]
struct Trial {
    /// It is received with pauses.
    pauses: bool,
    /// The better of the two has been found, and is kept for so many measurements.
    kept: u32,
    windows: u32,
    bytes: u64,
    time: Duration,
    /// Bytes and time without pauses.
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
        match (self.kept, self.pauses) {
            (0, false) => (self.pauses, self.without) = (true, measured),
            (0, true) => {
                let value =
                    |(bytes, _): (u64, Duration), (_, time): (u64, Duration)| u128::from(bytes) * time.as_nanos();
                self.pauses = value(measured, self.without) * 100 >= value(self.without, measured) * WORTH;
                self.kept = KEPT;
            }
            (1, _) => (self.kept, self.pauses) = (0, false),
            (_, _) => self.kept -= 1,
        }
    }
}

impl Gather {
    pub(crate) fn new() -> Self {
        Self {
            began: Instant::ZERO,
            events: 0,
            connections: 0,
            heard: [0; 4],
            on: false,
            naps: false,
            counted: Traffic::default(),
            stream: Trial::default(),
            allowed: true,
            looked_at: Instant::ZERO,
            begun: 0,
        }
    }

    /// Never: the application wants the least latency, whatever it costs.
    pub(crate) fn forbid(&mut self) {
        self.allowed = false;
    }

    /// A connection has been heard of.
    #[inline]
    pub(crate) fn heard_of(&mut self, slot: u32) {
        let (word, bit) = ((slot >> 6 & 3) as usize, 1_u64 << (slot & 63));
        self.events += 1;
        self.connections += u32::from(self.heard[word] & bit == 0);
        self.heard[word] |= bit;
    }

    /// Whether the links are to be looked at now.
    #[inline]
    pub(crate) fn looks(&mut self, now: Instant, stats: &Stats) -> bool {
        if now.since(self.began) >= WINDOW {
            self.judge(now, Traffic::of(stats));
        }
        !(self.on | self.stream.pauses) || now.since(self.looked_at) >= PAUSE
    }

    /// The links had something.
    #[inline]
    pub(crate) fn found(&mut self, now: Instant) {
        self.looked_at = now;
    }

    /// The next look is due at once: the core has no time to spend on waiting.
    pub(crate) fn end_pause(&mut self) {
        self.looked_at = Instant::ZERO;
    }

    /// How long a core without work may sleep whatever comes.
    #[inline]
    pub(crate) fn nap(&self, now: Instant) -> Option<Duration> {
        let end = self.looked_at + NAP;
        (self.naps && now < end).then(|| end.since(now))
    }

    /// How long the core looks for work before it sleeps, where it would be `spin` else.
    #[inline]
    pub(crate) fn spin(&self, spin: Duration) -> Duration {
        if self.on { spin.min(SPIN) } else { spin }
    }

    fn judge(&mut self, now: Instant, traffic: Traffic) {
        let enough = if self.on { MANY / 2 } else { MANY };
        // After a sleep or a time without the CPU nothing is known of what is now.
        let known = now.since(self.began) < WINDOW * 2;
        let on = self.allowed && known && self.events >= enough && self.events <= OFTEN * self.connections;
        // Heard of three times in two windows: the round trip is four naps.
        self.naps = on && self.events * 2 <= self.connections * 3;
        let enough = if self.stream.pauses { STREAM / 2 } else { STREAM };
        let stream = self.allowed && known && traffic.is_stream(&self.counted, enough);
        let gathered = self.on | self.stream.pauses;
        if stream {
            self.stream.window(traffic.bytes - self.counted.bytes, now.since(self.began));
        } else {
            self.stream = Trial::default();
        }
        self.begun += u64::from((on | self.stream.pauses) && !gathered);
        (self.on, self.counted) = (on, traffic);
        (self.began, self.events, self.connections, self.heard) = (now, 0, 0, [0; 4]);
    }
}

#[cfg(test)]
mod tests;
