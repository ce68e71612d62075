//! Handshakes without state, by SYN cookies.

use crate::config::Ecn;
use crate::frame::{FramePool, RxFrame};
use crate::rx::cookie::Agreed;
use crate::rx::parse::Segment;
use crate::rx::syn::SynEntry;
use crate::stack::Stack;
use crate::stack::receive::handshake::Syn;
use crate::tcb::ecn;
use crate::wire::options::{SynOptions, Timestamps};

impl<P: FramePool> Stack<P> {
    /// Answers a SYN without keeping state.
    pub(crate) fn send_cookie(&mut self, mut entry: SynEntry) {
        entry.iss = self.cookies.issue(&entry.key, entry.irs, entry.options.mss, self.now);
        let own = self.listener_syn(entry.listener);
        let mut offer = self.syn_options(&entry.key, entry.path, Some(entry.options), &own, entry.shift);
        match &mut offer.timestamps {
            Some(ts) => {
                let (window_scale, sack, ecn) = (entry.options.window_scale, offer.sack_permitted, entry.ecn);
                ts.val = Agreed { window_scale, sack, ecn }.put(ts.val, self.ts_clock.tick_ms());
            }
            None => (offer.window_scale, offer.sack_permitted, entry.ecn) = (None, false, false),
        }
        self.stats.syn_cookies_sent += 1;
        let SynEntry { key, path, iss, irs, ecn, .. } = entry;
        let flags = ecn::syn_ack_flags(ecn);
        let syn = Syn { key: &key, path, flags, seq: iss, ack: irs + 1, own, offer, fast_open: None };
        self.send_handshake(&syn, u32::MAX, &[]);
    }

    /// Returns the handshake that an unclaimed ACK completes, if it carries a cookie of ours.
    pub(super) fn open_cookie(&self, segment: &Segment, listener: u32) -> Option<SynEntry> {
        if !segment.flags.ack() || segment.flags.rst() || segment.flags.syn() || !self.cookies.is_open(self.now) {
            return None;
        }
        let iss = segment.ack - 1;
        let size_of = |irs| self.cookies.size(&segment.key, irs, iss, self.now);
        // A client whose only ACK was lost, and which waits for our first data, still sends
        // keepalive probes: their sequence number is one before the next.
        let next = segment.seq - 1;
        let (irs, size) = match size_of(next) {
            Some(size) => (next, size),
            None if segment.payload_len == 0 => (segment.seq, size_of(segment.seq)?),
            None => return None,
        };
        let agreed = segment.ts.map_or_else(Agreed::default, |ts| Agreed::of(ts.ecr, self.ts_clock.tick_ms()));
        let options = SynOptions {
            mss: Some(size),
            window_scale: agreed.window_scale,
            sack_permitted: agreed.sack,
            timestamps: segment.ts.map(|ts| Timestamps { val: ts.val, ecr: 0 }),
        };
        let mut entry = SynEntry::new(segment.key, irs, iss, options, segment.window, listener);
        let own = self.listeners.at(listener).map(|l| l.options).unwrap_or_default();
        entry.shift = own.offered_scale(&self.config.tcp);
        // No RTT sample: the time of the SYN-ACK is unknown.
        entry.retries = 1;
        entry.ecn = agreed.ecn && self.config.tcp.ecn != Ecn::Off;
        Some(entry)
    }

    /// Returns true if the segment may belong to a handshake without state. Only the client's first
    /// segment carries the cookie. If it is lost, late, or finds the accept queue full, the
    /// segments after it must not cause a reset, since the first one is retransmitted. (Linux
    /// resets here, and loses the connection.)
    pub(crate) fn awaits_cookie(&self, segment: &Segment) -> bool {
        let flags = segment.flags;
        flags.ack()
            && !flags.syn()
            && !flags.rst()
            && self.cookies.is_open(self.now)
            && self.listeners.find(segment.key.local_ip(), segment.key.local_port()).is_some()
    }

    /// Completes a handshake by its cookie. Returns false if the segment carries none, or belongs to
    /// another core first: the core that its echoed timestamp names may have opened the connection.
    pub(crate) fn on_cookie(&mut self, segment: &Segment, hash: u64, frames: &mut [RxFrame], hops: u16) -> bool {
        if !self.cookies.is_open(self.now) {
            return false;
        }
        if hops == 0 && self.echoed_core(segment).is_some_and(|core| core != self.config.core) {
            return false;
        }
        let (local, port) = (segment.key.local_ip(), segment.key.local_port());
        let Some(listener) = self.listeners.find(local, port) else { return false };
        let device = self.listener_device(listener);
        if device.is_some_and(|device| device != frames[0].iface) {
            return false;
        }
        let Some(mut entry) = self.open_cookie(segment, listener) else {
            return false;
        };
        let device = device.or_else(|| self.binding_link(&segment.key, frames[0].iface));
        let Ok(path) = self.net.path_to(segment.key.remote_ip(), device) else { return false };
        (entry.path, entry.device) = (path, device);
        self.stats.syn_cookies_ok += 1;
        self.complete(entry, None, segment, hash, frames);
        true
    }
}
