//! Space in the send buffer, and the reasons that keep a sender from sending.

use super::store::TxStore;
use crate::config::TcpConfig;
use crate::seq::SeqNum;
use crate::socket::options::TcpOptions;
use crate::tcb::Tcb;
use crate::tcb::cc::algorithm::Algorithm;
use crate::tcb::cc::{self};
use crate::tcb::connection_stats::Limit;
use crate::tcb::flags::Flags;
use crate::time::{Duration, Instant};
use crate::timer::tick::current_tick;

/// Maximum time for which TCP_CORK and MSG_MORE delay a partial segment: Linux, tcp(7).
const CORK_MAX: Duration = Duration::from_millis(200);
/// Send buffer of a new connection unless SO_SNDBUF was set, in bytes: four initial windows.
/// Linux's 87 040 bytes include bookkeeping and hold about as much payload. Too low: a slow start.
/// Too high: memory for connections that send little.
const BUFFER_INITIAL: u32 = 64 << 10;
/// Maximum send buffer while half of the core's send frames are in use: Linux `tcp_wmem[2]`, 4 MB.
/// Too high: a few fast and long paths leave no frames for other connections.
const BESIDE_OTHERS: u32 = 4 << 20;
/// Number of in-flight segments that are searched for a small one. Too high: time for every small
/// write into a full window.
const MINSHALL_LOOK: usize = 32;

/// Unread bytes at a near peer from which on it gets only [`TO_SLOW_READER`] in a round trip (decision
/// 0044). Higher: its processor's caches no longer hold them when it reads, and it reads at half the rate
/// (512 KiB or less 39 Gb/s, 1 MiB or more 20). Lower: it waits, if it has read all before our next segments.
const UNREAD_MOST: u32 = 256 << 10;
/// See [`UNREAD_MOST`]: two merged packets. Lower: fewer acknowledgments, which tell that it has read.
const TO_SLOW_READER: u32 = 128 << 10;
/// A peer is near if its shortest round trip is at most this, in µs. Higher: it may read [`UNREAD_MOST`] and
/// [`TO_SLOW_READER`] within a round trip, and wait for more (with 128 µs at 25 Gb/s). Lower: over veth some
/// peers are far, because the batches that measure their round trips take 64 to 96 µs.
const NEAR_US: u32 = 128;
/// Round trips for which a peer is not near that did not acknowledge what was in flight: 50 ms or
/// more. Lower: such a peer waits more often for a probe (2 ms). Higher: a pause of the machine ends the gain for longer.
const FAR_FOR: u16 = 4096;
/// The smoothed round trip from which on a peer is no longer near: its path has changed.
const FAR_US: u32 = 1000;

/// Bytes of a write that are taken if any of them is. Linux checks the limit per buffer, and fills
/// one of up to 64 KiB. Lower: a relay keeps, and copies again, the rest of most pieces that it has
/// read (1 MiB to 64 clients left in 60 packets instead of 35). Higher: each slow peer holds more memory.
const WHOLE_WRITE: u32 = 64 << 10;

impl Tcb {
    /// Applies the options of the sending half.
    pub(crate) fn apply_sending(&mut self, options: &TcpOptions) {
        let TcpOptions { cork, send_buffer, user_timeout, not_sent_low, .. } = *options;
        if let Some(bytes) = send_buffer
            && bytes != self.snd_buf()
        {
            self.snd.set_buffer_4k(in_4k(bytes));
            self.ext_mut().sender.buffer_fixed = true;
        }
        let rare = cork || user_timeout.is_some() || not_sent_low.is_some();
        if rare || self.ext.is_some() {
            let sender = &mut self.ext_mut().sender;
            (sender.cork, sender.user_timeout) = (cork, user_timeout);
            sender.not_sent_low = not_sent_low.map_or(0, |low| low.max(1));
        }
        self.flags.put(Flags::HOLD, cork);
    }

    /// Returns how many bytes may be in flight: cwnd, or less if a near peer reads more slowly than we send.
    ///
    /// Over a path in memory, bytes must stay in the caches from their write to their read. But if the peer
    /// reads more slowly than we send, it has its receive buffer full of unread bytes (with Linux's defaults
    /// 6 MiB). They are the part of its largest window that it does not offer now. Some bytes stay in flight,
    /// since it is their acknowledgment that tells when the peer has read.
    #[inline(always)]
    pub(crate) fn send_window(&self) -> u32 {
        let cwnd = self.window.cwnd;
        if self.max_snd_wnd().saturating_sub(self.snd.wnd()) <= UNREAD_MOST || !self.is_near() {
            return cwnd;
        }
        cwnd.min(TO_SLOW_READER)
    }

    /// A sender that was limited by the peer's window has an extension.
    #[inline]
    fn is_near(&self) -> bool {
        let nearest = self.ext.as_ref().map_or(0, |ext| ext.sender.nearest_us);
        (1..=NEAR_US).contains(&nearest) && self.rtt.srtt_us() <= FAR_US
    }

    /// Takes a measured round trip. Without tail loss probes no peer is near: nothing would end the limit for
    /// one that acknowledges late ([`Tcb::probe_near_peer`]).
    #[inline]
    pub(crate) fn sample_rtt(&mut self, rtt_us: u32, config: &TcpConfig) {
        self.rtt.sample(rtt_us);
        let probes = self.has_probes(config);
        if let Some(ext) = self.ext.as_mut_beside_fast_paths()
            && probes
        {
            ext.sender.measured(rtt_us);
        }
    }

    /// A tail loss probe is due: the peer has not acknowledged what is in flight. If that was kept low because
    /// it is near, it may read only once it has more. Linux acknowledges such bytes when they are read,
    /// or after its delay of 40 ms (`__tcp_ack_snd_check`).
    pub(super) fn probe_near_peer(&mut self) {
        if self.send_window() < self.window.cwnd {
            self.forget_nearness(FAR_FOR);
        }
    }

    /// The peer is near again only after so many round trips, and then one that is short.
    pub(crate) fn forget_nearness(&mut self, round_trips: u16) {
        if let Some(ext) = self.ext.as_mut() {
            (ext.sender.nearest_us, ext.sender.far_for) = (0, round_trips);
        }
    }

    /// Begins a write. `more`: another follows (MSG_MORE).
    #[inline]
    pub(crate) fn hold_for_more(&mut self, more: bool) {
        if more {
            self.flags.set(Flags::HOLD);
        } else if self.flags.has(Flags::HOLD) || self.ext.is_some() {
            let cork = self.ext.as_ref().is_some_and(|e| e.sender.cork);
            self.flags.put(Flags::HOLD, cork);
        }
    }

    /// Returns the number of bytes queued and not yet sent.
    pub(crate) fn unsent(&self) -> u32 {
        self.tx.bytes.saturating_sub(self.snd.outstanding())
    }

    /// Returns true if the unsent bytes allow another write.
    #[inline]
    pub(crate) fn below_low_water(&self) -> bool {
        self.ext.as_ref().is_none_or(|ext| self.unsent() < ext.sender.low_water())
    }

    /// Returns how many bytes the limit of unsent data allows to queue, in whole segments. In
    /// addition to TCP_NOTSENT_LOWAT, it includes bytes that can be sent at once, as on Linux,
    /// where the writer runs whenever it is scheduled.
    #[inline]
    pub(crate) fn low_water_room(&self) -> u32 {
        let Some(ext) = self.ext.as_ref() else { return u32::MAX };
        let mark = match ext.sender.not_sent_low {
            0 => ext.sender.low_water().saturating_mul(2),
            low => low.saturating_add(self.send_window().min(self.snd.wnd()).saturating_sub(self.flight())),
        };
        mark.saturating_sub(self.unsent()).min(u32::MAX / 2).next_multiple_of(u32::from(self.mss))
    }

    /// Returns how many bytes a write may queue if the send buffer has space for `room`, which is not
    /// 0. The application's own limits are exact.
    #[inline]
    pub(crate) fn room_for_whole_write(&self, room: u32) -> u32 {
        let limited = self.ext.as_ref().is_some_and(|e| e.sender.buffer_fixed || e.sender.not_sent_low != 0);
        if limited { room } else { room.max(WHOLE_WRITE) }
    }

    /// Grows the send buffer (Linux `tcp_sndbuf_expand`) when the application writes and when ACKs
    /// have let the window grow. The target is three windows: one in flight, one that SACKs have
    /// let pass in recovery, and one waiting. Linux's two windows include bookkeeping (2304 bytes
    /// for a segment) and hold as much payload. The buffer does not shrink, since recovery needs
    /// the space of the earlier window.
    #[inline]
    pub(crate) fn grow_send_buffer(&mut self, store: &TxStore, max: u32) {
        let max = if store.is_half_full() { max.min(BESIDE_OTHERS) } else { max };
        let wanted = self.window.cwnd.saturating_mul(3).min(max);
        if wanted > self.snd_buf() && !self.ext.as_ref().is_some_and(|e| e.sender.buffer_fixed) {
            self.snd.set_buffer_4k(in_4k(wanted));
        }
    }

    /// Records that the application was refused space in the send buffer.
    pub(crate) fn refused_room(&mut self) {
        self.ext_mut().sender.limited.refused = true;
    }

    /// Records that the application is notified of space in the send buffer.
    #[inline]
    pub(crate) fn has_room_again(&mut self, now: Instant) {
        if let Some(ext) = self.ext.as_mut()
            && core::mem::replace(&mut ext.sender.limited.refused, false)
        {
            ext.sender.limited.by(Limit::None, now);
        }
    }

    /// Records the limit that ended sending (Linux `tcp_write_xmit`, `tcp_cwnd_validate`).
    #[inline]
    pub(crate) fn record_limit(&mut self, store: &TxStore, now: Instant) {
        let (flight, cwnd) = (self.flight(), self.window.cwnd);
        let limit = if flight >= cwnd {
            Limit::None
        } else if !self.has_unsent() {
            let refused = self.ext.as_ref().is_some_and(|e| e.sender.limited.refused);
            if refused { Limit::SendBuffer } else { Limit::None }
        } else if store.segments[self.tx.next].end().after(self.snd.una() + self.snd.wnd())
            || flight >= self.send_window()
        {
            // In the second case, too, the peer's reader is waited for.
            Limit::Window
        } else {
            Limit::None
        };
        if flight + u32::from(self.mss) > cwnd {
            self.flags.set(Flags::WINDOW_LIMITED);
        } else if flight <= cwnd / 2 {
            // RFC 7661 4.3: there is no evidence for a window of which only a part was used, for
            // any reason.
            self.flags.clear(Flags::WINDOW_LIMITED);
        }
        if limit != Limit::None {
            self.ext_mut().sender.limited.by(limit, now);
        } else if let Some(ext) = self.ext.as_mut() {
            ext.sender.limited.by(limit, now);
        }
    }

    /// Moves SND.UP to the end of the data queued last, `end`.
    pub(crate) fn mark_urgent(&mut self, end: SeqNum) {
        self.ext_mut().sender.urgent = Some(end);
    }

    /// Forgets SND.UP once it is acknowledged. It would appear to lie ahead again 2 GiB later. Called for
    /// each data segment, none of which takes a fast path while SND.UP is set.
    #[inline]
    pub(crate) fn forget_acknowledged_urgent(&mut self) {
        if self.ext.as_ref().is_some_and(|e| e.sender.urgent.is_some()) && !self.in_urgent_mode() {
            self.ext_mut().sender.urgent = None;
        }
    }

    /// Returns the urgent pointer of a segment that begins at `seq`; 0: no URG bit. As on Linux and
    /// BSD, the pointer names the byte after the last urgent one (RFC 6093 section 4 keeps that). A
    /// pointer that does not fit is the field's maximum.
    #[inline]
    pub(crate) fn urgent_pointer(&self, seq: SeqNum) -> u16 {
        let Some(up) = self.ext.as_ref().and_then(|e| e.sender.urgent) else { return 0 };
        if self.snd.una().at_or_after(up) || seq.at_or_after(up) {
            return 0;
        }
        up.since(seq).min(u32::from(u16::MAX)) as u16
    }

    /// Returns true if urgent data is not acknowledged: Nagle's algorithm then does not delay it.
    pub(crate) fn in_urgent_mode(&self) -> bool {
        self.ext.as_ref().and_then(|e| e.sender.urgent).is_some_and(|up| self.snd.una().before(up))
    }

    /// Returns true if an unacknowledged partial segment exists: only then Nagle's algorithm delays
    /// another one (Minshall's change, as Linux).
    pub(crate) fn small_in_flight(&self, store: &TxStore) -> bool {
        let (mut at, mss) = (self.tx.head(), self.mss as u32);
        for _ in 0..MINSHALL_LOOK {
            if at == self.tx.next || at == crate::slab::NIL {
                return false;
            }
            let segment = &store.segments[at];
            if segment.len < mss {
                return true;
            }
            at = segment.next;
        }
        false
    }

    /// Returns how long a corked segment waits; `None` if nothing is delayed.
    pub(crate) fn cork_wait(&self) -> Option<Duration> {
        (self.flags.has(Flags::HOLD) && self.snd.wnd() > 0).then_some(CORK_MAX)
    }

    /// Adapts the window when sending resumes after an idle time: RFC 5681 4.1, RFC 2861.
    #[inline]
    pub(crate) fn end_idle(&mut self, config: &TcpConfig, initial_window: u32, now: Instant) {
        let Some(ticks) = self.idle_ticks(current_tick(now)) else { return };
        if !self.has_unsent() {
            return;
        }
        let idle_ns = u64::from(ticks) << crate::timer::tick::TICK_SHIFT;
        self.clear_timer();
        if !config.idle_restart || (ticks as i32) <= 0 || idle_ns <= self.rto_ns(config) {
            return;
        }
        self.restart_after(Duration::from_nanos(idle_ns), config, initial_window);
    }

    /// Restarts after an idle time longer than a timeout.
    fn restart_after(&mut self, idle: Duration, config: &TcpConfig, initial_window: u32) {
        let rto = self.rto(config);
        let iw = cc::initial_window(self.mss as u32, initial_window);
        let mut window = self.window;
        match self.ext.as_mut().and_then(|e| e.control.as_mut()) {
            Some(control) => control.on_idle(&mut window, idle, rto, iw),
            None => cc::restart_after_idle(&mut window, idle, rto, iw),
        }
        self.window = window;
    }
}

/// Returns the bytes in units of 4 KiB.
fn in_4k(bytes: u32) -> u16 {
    bytes.div_ceil(4096).clamp(1, u16::MAX as u32) as u16
}

/// Returns the send buffer of a new connection, in units of 4 KiB.
pub(crate) fn initial_buffer(max: u32) -> u16 {
    in_4k(max.min(BUFFER_INITIAL))
}
