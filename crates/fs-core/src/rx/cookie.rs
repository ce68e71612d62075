//! SYN cookies (RFC 4987 3.6). When the SYN cache is full, the handshake's parameters are encoded
//! in our sequence number (segment size) and timestamp (window scale, SACK), and return in the
//! final ACK.

use crate::flow::{FlowKey, Protocol};
use crate::rx::table::FlowHasher;
use crate::seq::SeqNum;
use crate::time::{Duration, Instant};

/// A cookie is valid for one to two periods. Linux: 60 s, two periods. Too high: more time to guess
/// one. Too low: slow clients are rejected.
const PERIOD: Duration = Duration::from_secs(60);

/// Segment sizes that three bits can encode: lower bounds of common ones (RFC 9293's default,
/// tunnels, IPv6, PPPoE, Ethernet, jumbo).
const SIZES: [u16; 8] = [88, 536, 1220, 1300, 1400, 1440, 1460, 8940];
const SIZE_BITS: u32 = 0b111;

/// Bits of the timestamp above the core's: window scale (4; 15 means none), SACK (1) and ECN (1),
/// as Linux.
const OPTION_BITS: u32 = 6;
const NO_SCALE: u32 = 15;

/// Issues and verifies cookies. Records when one was last issued, so that ACKs are not tested for
/// cookies in quiet times.
#[derive(Debug)]
pub(crate) struct CookieJar {
    hasher: FlowHasher,
    last_sent: Option<Instant>,
}

impl CookieJar {
    pub(crate) fn new(hasher: FlowHasher) -> Self {
        Self { hasher, last_sent: None }
    }

    /// Returns true while ACKs may carry cookies.
    pub(crate) fn is_open(&self, now: Instant) -> bool {
        self.last_sent.is_some_and(|at| now.since(at) < PERIOD * 2)
    }

    /// Returns the sequence number that answers a SYN without keeping state. `mss` is the peer's
    /// announcement.
    pub(crate) fn issue(&mut self, key: &FlowKey, irs: SeqNum, mss: Option<u16>, now: Instant) -> SeqNum {
        self.last_sent = Some(now);
        let size = mss.unwrap_or(SIZES[1]);
        let index = SIZES.iter().rposition(|&s| s <= size).unwrap_or(0) as u32;
        self.cookie(key, irs, index, period(now))
    }

    /// Returns the segment size that a cookie encodes, or `None` if `iss` is not our cookie, or too
    /// old.
    pub(crate) fn size(&self, key: &FlowKey, irs: SeqNum, iss: SeqNum, now: Instant) -> Option<u16> {
        let this = period(now);
        [this, this.wrapping_sub(1)].into_iter().find_map(|p| {
            let index = (iss.0 ^ self.cookie(key, irs, 0, p).0) & SIZE_BITS;
            (self.cookie(key, irs, index, p) == iss).then(|| SIZES[index as usize])
        })
    }

    /// Returns 29 bits of a keyed hash over flow, ISN and period, with three bits of data above
    /// them.
    fn cookie(&self, key: &FlowKey, irs: SeqNum, data: u32, period: u32) -> SeqNum {
        let flow = self.hasher.hash(Protocol::Udp, key);
        // Hashed once more, so that neither input can be shifted into the other.
        let numbers =
            FlowKey::V4 { local: irs.0, remote: period, local_port: (flow >> 48) as u16, remote_port: flow as u16 };
        let mixed = self.hasher.hash(Protocol::Tcp, &numbers) ^ flow;
        SeqNum((mixed as u32 & !SIZE_BITS) | ((mixed >> 32) as u32 & SIZE_BITS) ^ data)
    }
}

fn period(now: Instant) -> u32 {
    (now.as_millis() / PERIOD.as_millis() as u64) as u32
}

/// Handshake parameters in a cookie's timestamp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Agreed {
    /// The peer's window scale.
    pub(crate) window_scale: Option<u8>,
    pub(crate) sack: bool,
    pub(crate) ecn: bool,
}

impl Agreed {
    /// Returns our timestamp `ts` with these bits in it. The clock ticks every `tick_ms`, a power
    /// of two.
    pub(crate) fn put(self, ts: u32, tick_ms: u32) -> u32 {
        let bits = self.window_scale.map_or(NO_SCALE, u32::from) | u32::from(self.sack) << 4 | u32::from(self.ecn) << 5;
        let shift = tick_ms.trailing_zeros();
        let mask = ((1 << OPTION_BITS) - 1) << shift;
        let value = ts & !mask | bits << shift;
        // Never ahead of the clock: later segments must not appear older (PAWS).
        if value.wrapping_sub(ts) as i32 > 0 { value.wrapping_sub(1 << (OPTION_BITS + shift)) } else { value }
    }

    /// Decodes our timestamp that the peer echoes.
    pub(crate) fn of(ecr: u32, tick_ms: u32) -> Self {
        let bits = ecr >> tick_ms.trailing_zeros() & ((1 << OPTION_BITS) - 1);
        let scale = bits & 15;
        Self {
            window_scale: (scale != NO_SCALE).then_some(scale.min(14) as u8),
            sack: bits >> 4 & 1 == 1,
            ecn: bits >> 5 & 1 == 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Secret;

    const KEY: FlowKey = FlowKey::V4 { local: 1, remote: 2, local_port: 80, remote_port: 4000 };

    fn jar() -> CookieJar {
        CookieJar::new(FlowHasher::new(&Secret([7; 32])))
    }

    #[test]
    fn cookie_is_valid_for_a_period_and_encodes_size() {
        let mut jar = jar();
        let at = |s| Instant::ZERO + Duration::from_secs(s);
        assert!(!jar.is_open(at(0)), "none was needed");
        for (mss, size) in [(Some(1460), 1460), (Some(1459), 1440), (None, 536), (Some(60), 88), (Some(65_535), 8940)] {
            let iss = jar.issue(&KEY, SeqNum(99), mss, at(61));
            assert_eq!(jar.size(&KEY, SeqNum(99), iss, at(61)), Some(size));
            assert_eq!(jar.size(&KEY, SeqNum(99), iss, at(179)), Some(size), "in the next period");
            assert_eq!(jar.size(&KEY, SeqNum(99), iss, at(181)), None, "two periods later");
            assert_eq!(jar.size(&KEY, SeqNum(98), iss, at(61)), None, "another SYN");
        }
        assert!(jar.is_open(at(180)) && !jar.is_open(at(181)));
    }

    #[test]
    fn encodes_options_in_timestamp_behind_clock() {
        for (ts, tick_ms) in [(0u32, 1), (12_345, 1), (u32::MAX, 4), (1 << 31, 16)] {
            for window_scale in [None, Some(0), Some(7), Some(14)] {
                for (sack, ecn) in [(false, false), (true, false), (false, true), (true, true)] {
                    let agreed = Agreed { window_scale, sack, ecn };
                    let value = agreed.put(ts, tick_ms);
                    assert_eq!(Agreed::of(value, tick_ms), agreed);
                    assert!(value.wrapping_sub(ts) as i32 <= 0);
                }
            }
        }
    }
}
