//! A link: what happens to packets between two hosts.

use crate::rng::Rng;
use fs_core::{Duration, Framing, Instant};
use std::collections::VecDeque;

/// What a link does to packets. Chances are parts per million.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// Bits per second; 0 is without bound.
    pub rate_bps: u64,
    /// One-way delay.
    pub delay: Duration,
    /// Up to this much is added to the delay, without changing the order.
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
    /// Packets that may wait for the link; more are dropped.
    pub queue: usize,
}

impl LinkConfig {
    /// A perfect link with a delay.
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
        }
    }

    /// A bad link: every rate drawn from 0 to `ppm_max`, delays and queue from what the Internet has.
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
        }
    }
}

/// A packet on its way.
#[derive(Debug, PartialEq, Eq)]
pub struct Delivery {
    /// When it arrives.
    pub at: Instant,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// What a link did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Packets handed in.
    pub sent: u64,
    /// Packets lost by chance.
    pub lost: u64,
    /// Packets dropped because the queue was full.
    pub overflowed: u64,
    /// Packets delayed past later ones.
    pub reordered: u64,
    /// Packets delivered twice.
    pub duplicated: u64,
    /// Packets damaged.
    pub corrupted: u64,
}

/// One direction of a link.
#[derive(Debug)]
pub struct Link {
    /// How it behaves; may be changed at any time.
    pub config: LinkConfig,
    /// What it did.
    pub stats: LinkStats,
    framing: Framing,
    rng: Rng,
    busy_until: Instant,
    departures: VecDeque<Instant>,
    last_arrival: Instant,
}

impl Link {
    /// A link with its own randomness.
    pub fn new(config: LinkConfig, framing: Framing, rng: Rng) -> Self {
        Self {
            config,
            stats: LinkStats::default(),
            framing,
            rng,
            busy_until: Instant::ZERO,
            departures: VecDeque::new(),
            last_arrival: Instant::ZERO,
        }
    }

    /// Sends a packet and appends what will arrive (nothing, once or twice) to `arrivals`. Returns when the
    /// packet has left the sender (at once if the queue was full).
    pub fn send(&mut self, now: Instant, bytes: &[u8], arrivals: &mut Vec<Delivery>) -> Instant {
        self.stats.sent += 1;
        while self.departures.front().is_some_and(|&at| at <= now) {
            self.departures.pop_front();
        }
        if self.departures.len() >= self.config.queue {
            self.stats.overflowed += 1;
            return now;
        }
        let start = self.busy_until.max(now);
        let wire_ns = (bytes.len() as u64 * 8 * 1_000_000_000).checked_div(self.config.rate_bps).unwrap_or(0);
        let departed = start + Duration::from_nanos(wire_ns);
        self.busy_until = departed;
        self.departures.push_back(departed);
        if self.rng.chance(self.config.loss_ppm) {
            self.stats.lost += 1;
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
                // ARP carries no checksum: on a real link Ethernet's own throws the damaged frame away.
                return;
            }
            corrupt(&mut bytes, &mut self.rng);
        }
        arrivals.push(Delivery { at, bytes });
    }
}

/// Damages one aligned 16-bit word so that the Internet checksum (RFC 1071) must notice: it is blind to words
/// that change places and to 0x0000 against 0xffff, so exactly one word changes, and not between those two.
fn corrupt(bytes: &mut [u8], rng: &mut Rng) {
    let words = bytes.len() as u64 / 2;
    if words == 0 {
        return;
    }
    let at = rng.below(words) as usize * 2;
    let old = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let new = loop {
        // Mostly one bit, as on wires; sometimes a burst.
        let mask = if rng.chance(800_000) { 1 << rng.below(16) } else { rng.range(1, 0xffff) as u16 };
        let new = old ^ mask;
        if !matches!((old, new), (0, 0xffff) | (0xffff, 0)) {
            break new;
        }
    };
    bytes[at..at + 2].copy_from_slice(&new.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(config: LinkConfig, packets: usize) -> (Link, Vec<Delivery>) {
        let mut link = Link::new(config, Framing::Ip, Rng::new(1));
        let mut out = Vec::new();
        for i in 0..packets {
            link.send(Instant::from_micros(i as u64), &(i as u64).to_be_bytes(), &mut out);
        }
        (link, out)
    }

    #[test]
    fn a_clean_link_only_delays() {
        let (_, out) = run(LinkConfig::clean(Duration::from_micros(5)), 10);
        let want = |i: u64| Delivery { at: Instant::from_micros(i + 5), bytes: i.to_be_bytes().to_vec() };
        assert_eq!(out, (0..10).map(want).collect::<Vec<_>>());
    }

    #[test]
    fn rates_are_as_configured() {
        let config = LinkConfig {
            loss_ppm: 50_000,
            duplicate_ppm: 20_000,
            corrupt_ppm: 10_000,
            reorder_ppm: 30_000,
            reorder_by: Duration::from_micros(50),
            ..LinkConfig::clean(Duration::from_micros(100))
        };
        let (link, out) = run(config, 100_000);
        assert!((4_500..5_500).contains(&link.stats.lost), "{:?}", link.stats);
        assert!((1_700..2_300).contains(&link.stats.duplicated), "{:?}", link.stats);
        assert!((800..1_200).contains(&link.stats.corrupted), "{:?}", link.stats);
        assert!((2_500..3_500).contains(&link.stats.reordered), "{:?}", link.stats);
        assert_eq!(out.len() as u64, 100_000 - link.stats.lost + link.stats.duplicated);
        assert!(out.windows(2).any(|w| w[1].at < w[0].at), "nothing was overtaken");
    }

    #[test]
    fn a_slow_link_queues_and_then_drops() {
        // 8 bytes at 64 kb/s are 1 ms each; packets come every µs.
        let (link, out) = run(LinkConfig { rate_bps: 64_000, queue: 3, ..LinkConfig::clean(Duration::ZERO) }, 10);
        assert_eq!(out.iter().map(|d| d.at.as_millis()).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(link.stats.overflowed, 7);
    }

    #[test]
    fn damage_is_always_visible_to_the_checksum() {
        let sum = |b: &[u8]| {
            let s: u32 = b.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
            let s = (s & 0xffff) + (s >> 16);
            (s & 0xffff) + (s >> 16)
        };
        let mut rng = Rng::new(3);
        for i in 0..10_000u64 {
            let mut bytes = [0u8; 20];
            crate::pattern::fill(i, 0, &mut bytes);
            bytes[..4].copy_from_slice(&[0, 0, 0xff, 0xff]);
            let before = sum(&bytes);
            corrupt(&mut bytes, &mut rng);
            assert_ne!(before, sum(&bytes));
        }
    }
}
