//! SYN cookies (RFC 4987 3.6): when the SYN cache is full, what the handshake agreed travels in our sequence
//! number (segment size) and timestamp (window scale, SACK), and comes back in the final ACK.

use crate::flow::FlowKey;
use crate::frame::{FramePool, RxFrame};
use crate::rx::handshake::Syn;
use crate::rx::parse::Segment;
use crate::rx::syn::SynEntry;
use crate::stack::Stack;
use crate::tcb::seq::SeqNum;
use crate::time::{Duration, Instant};
use crate::wire::options::{SynOptions, Timestamps};

/// A cookie is good for this long and up to as long again. Linux: 60 s, two periods. Longer: more time to
/// guess one; shorter: slow clients are turned away.
const PERIOD: Duration = Duration::from_secs(60);

/// Segment sizes that three bits can name: minima of what is common (RFC 9293's default, tunnels, IPv6,
/// PPPoE, Ethernet, jumbo).
const SIZES: [u16; 8] = [88, 536, 1220, 1300, 1400, 1440, 1460, 8940];
const SIZE_BITS: u32 = 0b111;

/// Bits of the timestamp above the core's: window scale (4; 15 is none), SACK (1) and ECN (1), as Linux.
const OPTION_BITS: u32 = 6;
const NO_SCALE: u32 = 15;

/// When cookies were last needed, so that ACKs are not taken for cookies in quiet times.
#[derive(Debug, Default)]
pub(crate) struct CookieJar {
    last_sent: Option<Instant>,
}

impl CookieJar {
    /// ACKs may carry cookies now.
    pub(crate) fn is_open(&self, now: Instant) -> bool {
        self.last_sent.is_some_and(|at| now.since(at) < PERIOD * 2)
    }
}

impl<P: FramePool> Stack<P> {
    /// Answers a SYN without keeping anything of it.
    pub(crate) fn send_cookie(&mut self, mut entry: SynEntry) {
        let now = self.now;
        self.cookies.last_sent = Some(now);
        let size = entry.options.mss.unwrap_or(SIZES[1]);
        let index = SIZES.iter().rposition(|&s| s <= size).unwrap_or(0) as u32;
        entry.iss = self.cookie(&entry.key, entry.irs, index, period(now));
        let own = self.listener_syn(entry.listener);
        let mut offer = self.syn_options(&entry.key, entry.path, Some(entry.options), own.max_segment, entry.shift);
        match &mut offer.timestamps {
            Some(ts) => {
                let scale = entry.options.window_scale.map_or(NO_SCALE, u32::from);
                let bits = scale | u32::from(offer.sack_permitted) << 4 | u32::from(entry.ecn) << 5;
                ts.val = self.with_option_bits(ts.val, bits);
            }
            None => (offer.window_scale, offer.sack_permitted, entry.ecn) = (None, false, false),
        }
        self.stats.syn_cookies_sent += 1;
        let SynEntry { key, path, iss, irs, ecn, .. } = entry;
        let flags = crate::tcb::ecn::syn_ack_flags(ecn);
        let syn = Syn { key: &key, path, flags, seq: iss, ack: irs + 1, own, offer, fast_open: None };
        self.send_handshake(&syn, u32::MAX, &[]);
    }

    /// An ACK that no flow claims: if it carries a cookie of ours, the handshake that it completes.
    pub(crate) fn open_cookie(&self, segment: &Segment, listener: u32) -> Option<SynEntry> {
        if !segment.flags.ack() || segment.flags.rst() || segment.flags.syn() || !self.cookies.is_open(self.now) {
            return None;
        }
        let iss = segment.ack - 1;
        let this = period(self.now);
        let size_of = |irs| {
            [this, this.wrapping_sub(1)].into_iter().find_map(|p| {
                let index = (iss.0 ^ self.cookie(&segment.key, irs, 0, p).0) & SIZE_BITS;
                (self.cookie(&segment.key, irs, index, p) == iss).then(|| SIZES[index as usize])
            })
        };
        // A client whose only ACK was lost, and which waits for our first word, still sends keepalive probes: they
        // stand one before what comes next.
        let next = segment.seq - 1;
        let (irs, size) = match size_of(next) {
            Some(size) => (next, size),
            None if segment.payload_len == 0 => (segment.seq, size_of(segment.seq)?),
            None => return None,
        };
        let bits = segment.ts.map(|ts| self.option_bits(ts.ecr));
        let options = SynOptions {
            mss: Some(size),
            window_scale: bits.map(|b| b & 15).filter(|&b| b != NO_SCALE).map(|b| b.min(14) as u8),
            sack_permitted: bits.is_some_and(|b| b >> 4 & 1 == 1),
            timestamps: segment.ts.map(|ts| Timestamps { val: ts.val, ecr: 0 }),
        };
        let mut entry = SynEntry::new(segment.key, irs, iss, options, segment.window, listener);
        let own = self.listeners.at(listener).map(|l| l.options).unwrap_or_default();
        entry.shift = own.offered_scale(&self.config.tcp);
        // No RTT sample: when the SYN-ACK left is not known.
        entry.retries = 1;
        entry.ecn = bits.is_some_and(|b| b >> 5 & 1 == 1) && self.config.tcp.ecn != crate::config::Ecn::Off;
        Some(entry)
    }

    /// 29 bits of keyed hash over flow, ISN and period, three bits of data on top of it.
    fn cookie(&self, key: &FlowKey, irs: SeqNum, data: u32, period: u32) -> SeqNum {
        let flow = self.isn_hasher.hash(crate::flow::Protocol::Udp, key);
        // Mixed through the keyed hash once more, so that neither input can be shifted into the other.
        let numbers =
            FlowKey::V4 { local: irs.0, remote: period, local_port: (flow >> 48) as u16, remote_port: flow as u16 };
        let mixed = self.isn_hasher.hash(crate::flow::Protocol::Tcp, &numbers) ^ flow;
        SeqNum((mixed as u32 & !SIZE_BITS) | ((mixed >> 32) as u32 & SIZE_BITS) ^ data)
    }

    fn with_option_bits(&self, ts: u32, bits: u32) -> u32 {
        let shift = self.ts_clock.tick_ms().trailing_zeros();
        let mask = ((1 << OPTION_BITS) - 1) << shift;
        let value = ts & !mask | bits << shift;
        // Never ahead of the clock: later segments must not seem older (PAWS).
        if value.wrapping_sub(ts) as i32 > 0 { value.wrapping_sub(1 << (OPTION_BITS + shift)) } else { value }
    }

    fn option_bits(&self, ecr: u32) -> u32 {
        ecr >> self.ts_clock.tick_ms().trailing_zeros() & ((1 << OPTION_BITS) - 1)
    }

    /// It may belong to a handshake of which nothing is kept: only the client's first segment carries the
    /// cookie, and when that is lost, late, or found the accept queue full, the ones behind it must not draw
    /// a reset. The first one comes again. (Linux resets here, and loses the connection.)
    pub(crate) fn awaits_cookie(&self, segment: &Segment) -> bool {
        let flags = segment.flags;
        flags.ack()
            && !flags.syn()
            && !flags.rst()
            && self.cookies.is_open(self.now)
            && self.listeners.find(segment.key.local_ip(), segment.key.local_port()).is_some()
    }

    /// Completes a handshake by its cookie. False: the segment is somebody else's business.
    pub(crate) fn on_cookie(&mut self, segment: &Segment, hash: u64, frames: &mut [RxFrame]) -> bool {
        if !self.cookies.is_open(self.now) {
            return false;
        }
        let (local, port) = (segment.key.local_ip(), segment.key.local_port());
        let Some(listener) = self.listeners.find(local, port) else { return false };
        let Some(mut entry) = self.open_cookie(segment, listener) else {
            return false;
        };
        let Ok(path) = self.net.path_to(segment.key.remote_ip()) else { return false };
        entry.path = path;
        self.stats.syn_cookies_ok += 1;
        self.complete(entry, None, segment, hash, frames);
        true
    }
}

fn period(now: Instant) -> u32 {
    (now.as_millis() / PERIOD.as_millis() as u64) as u32
}
