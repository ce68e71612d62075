//! A link between two hosts, or between a router and the next: delays, loses and changes packets.

mod queue;

#[cfg(test)]
mod tests;

use crate::rng::Rng;
use crate::wire;
use fs_core::{Duration, Framing, Instant};
use queue::{Queue, Verdict};

pub use queue::Aqm;

/// Loss in bursts (Gilbert 1960, Elliott 1963): two states, and packets are lost in the bad one. It
/// ends after a time, not a number of packets, as on radio links: a sender that backs off outlives
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// Probability per packet that the bad state begins, in parts per million.
    pub begin_ppm: u32,
    /// The burst's maximum duration.
    pub lasts: Duration,
    /// Loss rate in it, in parts per million.
    pub loss_ppm: u32,
}

/// Configuration of a link. Probabilities are parts per million.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// Bits per second; 0 is unlimited.
    pub rate_bps: u64,
    /// One-way delay.
    pub delay: Duration,
    /// Maximum random addition to the delay, which keeps the order.
    pub jitter: Duration,
    /// Packets lost.
    pub loss_ppm: u32,
    /// Packets delayed by up to `reorder_by` so that later ones overtake.
    pub reorder_ppm: u32,
    /// See `reorder_ppm`.
    pub reorder_by: Duration,
    /// Packets that arrive twice.
    pub duplicate_ppm: u32,
    /// Packets with one 16-bit word damaged.
    pub corrupt_ppm: u32,
    /// Maximum number of packets that wait for the link; more are dropped.
    pub queue: usize,
    /// Maximum number of bytes that wait for the link.
    pub queue_bytes: u64,
    /// Queue management.
    pub aqm: Aqm,
    /// Loss in bursts, on top of `loss_ppm`.
    pub burst: Option<Burst>,
    /// Largest IP packet in bytes that passes; a larger one causes ICMP.
    pub mtu: u16,
    /// Packets larger than `mtu` are dropped silently.
    pub black_hole: bool,
    /// False: everything is lost.
    pub up: bool,
}

impl LinkConfig {
    /// Makes a perfect link with a delay.
    pub fn clean(delay: Duration) -> Self {
        Self {
            rate_bps: 0,
            delay,
            jitter: Duration::ZERO,
            loss_ppm: 0,
            reorder_ppm: 0,
            reorder_by: Duration::ZERO,
            duplicate_ppm: 0,
            corrupt_ppm: 0,
            queue: 1 << 20,
            queue_bytes: u64::MAX,
            aqm: Aqm::DropTail,
            burst: None,
            mtu: u16::MAX,
            black_hole: false,
            up: true,
        }
    }

    /// Makes a link whose rate and queue are the limit: the bottleneck of a path.
    pub fn bottleneck(rate_bps: u64, delay: Duration, queue: usize) -> Self {
        Self { rate_bps, queue, ..Self::clean(delay) }
    }

    /// Draws a bad link: every probability from 0 to `ppm_max`, delays and queue as on the
    /// Internet.
    pub fn draw(rng: &mut Rng, ppm_max: u32) -> Self {
        let ppm = |rng: &mut Rng| rng.range(0, ppm_max.into()) as u32;
        let delay = Duration::from_micros(rng.log_size(20, 20_000));
        Self {
            rate_bps: rng.pick(&[10_000_000, 100_000_000, 1_000_000_000, 10_000_000_000, 0]),
            delay,
            jitter: delay * rng.below(100) as u32 / 100,
            loss_ppm: ppm(rng),
            reorder_ppm: ppm(rng),
            reorder_by: delay * rng.range(1, 4) as u32,
            duplicate_ppm: ppm(rng),
            corrupt_ppm: ppm(rng),
            queue: rng.log_size(50, 2000) as usize,
            ..Self::clean(delay)
        }
    }
}

/// A packet in transit.
#[derive(Debug, PartialEq, Eq)]
pub struct Delivery {
    /// When it arrives.
    pub at: Instant,
    /// The delivery's bytes.
    pub bytes: Vec<u8>,
}

/// Counters of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Packets sent.
    pub sent: u64,
    /// Packets lost at random.
    pub lost: u64,
    /// Packets dropped because the queue was full.
    pub overflowed: u64,
    /// Packets delayed past later ones.
    pub reordered: u64,
    /// Packets delivered twice.
    pub duplicated: u64,
    /// Packets damaged.
    pub corrupted: u64,
    /// Packets marked with CE.
    pub marked: u64,
    /// Packets dropped by queue management.
    pub dropped: u64,
    /// Packets lost in a burst.
    pub burst_lost: u64,
    /// Packets lost because the link was down.
    pub down: u64,
    /// Packets larger than the MTU.
    pub too_big: u64,
    /// Bytes that left the queue.
    pub bytes: u64,
    /// Longest queue in packets.
    pub queue_max: usize,
}

impl LinkStats {
    /// Adds the counters of another link.
    pub fn add(&mut self, other: &LinkStats) {
        let LinkStats {
            sent,
            lost,
            overflowed,
            reordered,
            duplicated,
            corrupted,
            marked,
            dropped,
            burst_lost,
            down,
            too_big,
            bytes,
            queue_max,
        } = *other;
        self.sent += sent;
        self.lost += lost;
        self.overflowed += overflowed;
        self.reordered += reordered;
        self.duplicated += duplicated;
        self.corrupted += corrupted;
        self.marked += marked;
        self.dropped += dropped;
        self.burst_lost += burst_lost;
        self.down += down;
        self.too_big += too_big;
        self.bytes += bytes;
        self.queue_max = self.queue_max.max(queue_max);
    }
}

/// One direction of a link.
#[derive(Debug)]
pub struct Link {
    /// The link's configuration, which may change at any time.
    pub config: LinkConfig,
    /// The link's counters.
    pub stats: LinkStats,
    framing: Framing,
    rng: Rng,
    busy_until: Instant,
    queue: Queue,
    /// End of the bad state of `Burst`.
    bad_until: Instant,
    last_arrival: Instant,
}

impl Link {
    /// Makes a link with its own random generator.
    pub fn new(config: LinkConfig, framing: Framing, rng: Rng) -> Self {
        Self {
            config,
            stats: LinkStats::default(),
            framing,
            rng,
            busy_until: Instant::ZERO,
            queue: Queue::default(),
            bad_until: Instant::ZERO,
            last_arrival: Instant::ZERO,
        }
    }

    /// Sends a packet and appends what will arrive (nothing, or one or two copies) to `arrivals`.
    /// Returns when the packet has left the sender (at once if the queue was full).
    pub fn send(&mut self, now: Instant, bytes: &[u8], arrivals: &mut Vec<Delivery>) -> Instant {
        self.stats.sent += 1;
        self.queue.advance(now);
        let LinkConfig { queue, queue_bytes, rate_bps, aqm, up, loss_ppm, .. } = self.config;
        if !up {
            self.stats.down += 1;
            return now;
        }
        if self.queue.packets() >= queue || self.queue.bytes() + bytes.len() as u64 > queue_bytes {
            self.stats.overflowed += 1;
            return now;
        }
        let start = self.busy_until.max(now);
        let verdict = self.queue.judge(aqm, now, start, &mut self.rng);
        let marked = match verdict {
            Verdict::Pass => None,
            Verdict::Mark | Verdict::MarkOrDrop => wire::mark_congestion(bytes, self.framing),
        };
        if verdict == Verdict::MarkOrDrop && marked.is_none() {
            self.stats.dropped += 1;
            return now;
        }
        self.stats.marked += u64::from(marked.is_some());
        let bytes = marked.as_deref().unwrap_or(bytes);
        let wire_ns = (bytes.len() as u64 * 8 * 1_000_000_000).checked_div(rate_bps).unwrap_or(0);
        let departed = start + Duration::from_nanos(wire_ns);
        self.busy_until = departed;
        self.queue.push(departed, bytes.len(), Duration::from_nanos(wire_ns));
        self.stats.queue_max = self.stats.queue_max.max(self.queue.packets());
        self.stats.bytes += bytes.len() as u64;
        if self.rng.chance(loss_ppm) {
            self.stats.lost += 1;
            return departed;
        }
        if self.lost_in_burst(departed) {
            self.stats.burst_lost += 1;
            return departed;
        }
        let first = self.arrival(departed);
        self.deliver(first, bytes, arrivals);
        if self.rng.chance(self.config.duplicate_ppm) {
            self.stats.duplicated += 1;
            let second = self.arrival(departed);
            self.deliver(second, bytes, arrivals);
        }
        departed
    }

    fn lost_in_burst(&mut self, at: Instant) -> bool {
        let Some(Burst { begin_ppm, lasts, loss_ppm }) = self.config.burst else { return false };
        if at >= self.bad_until && self.rng.chance(begin_ppm) {
            self.bad_until = at + self.rng.duration(Duration::from_nanos(1), lasts);
        }
        at < self.bad_until && self.rng.chance(loss_ppm)
    }

    fn arrival(&mut self, departed: Instant) -> Instant {
        let jitter = self.rng.duration(Duration::ZERO, self.config.jitter);
        let at = (departed + self.config.delay + jitter).max(self.last_arrival);
        if self.rng.chance(self.config.reorder_ppm) {
            self.stats.reordered += 1;
            return at + self.rng.duration(Duration::ZERO, self.config.reorder_by);
        }
        self.last_arrival = at;
        at
    }

    fn deliver(&mut self, at: Instant, bytes: &[u8], arrivals: &mut Vec<Delivery>) {
        let mut bytes = bytes.to_vec();
        if self.rng.chance(self.config.corrupt_ppm) {
            self.stats.corrupted += 1;
            if self.framing == Framing::Ethernet && bytes[12..14] == [0x08, 0x06] {
                // ARP has no checksum: on a real link Ethernet's checksum would reject the damaged
                // frame.
                return;
            }
            corrupt(&mut bytes, &mut self.rng);
        }
        arrivals.push(Delivery { at, bytes });
    }
}

/// Damages one aligned 16-bit word so that the Internet checksum (RFC 1071) detects it. The
/// checksum cannot detect exchanged words, or 0x0000 changed to 0xffff, so exactly one word
/// changes, and not between those two values.
fn corrupt(bytes: &mut [u8], rng: &mut Rng) {
    let words = bytes.len() as u64 / 2;
    if words == 0 {
        return;
    }
    let at = rng.below(words) as usize * 2;
    let old = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let new = loop {
        // Mostly one bit, as on wires; sometimes several.
        let mask = if rng.chance(800_000) { 1 << rng.below(16) } else { rng.range(1, 0xffff) as u16 };
        let new = old ^ mask;
        if !matches!((old, new), (0, 0xffff) | (0xffff, 0)) {
            break new;
        }
    };
    bytes[at..at + 2].copy_from_slice(&new.to_be_bytes());
}
