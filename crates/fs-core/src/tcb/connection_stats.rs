//! Counters and times of a connection that only TCP_INFO and receive-buffer auto-tuning use. Stored
//! in a table parallel to the control blocks, which have no space for them.

use crate::seq::SeqNum;
use crate::tcb::recv::autotune::Autotune;
use crate::time::Instant;
use crate::timer::tick::{TICK_SHIFT, current_tick};

/// Counters and times of one connection. Times are wheel ticks of about 1.05 ms. One cache line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(align(64))]
pub(crate) struct ConnectionStats {
    /// Initial sequence numbers of both directions.
    pub(crate) iss: SeqNum,
    pub(crate) irs: SeqNum,
    pub(crate) segments_in: u32,
    pub(crate) segments_out: u32,
    pub(crate) data_in: u32,
    pub(crate) data_out: u32,
    /// Delivered segments that were first reported by cumulative ACKs. SACKs are counted in loss
    /// recovery's state.
    pub(crate) delivered: u32,
    last_in: u32,
    last_data_in: u32,
    last_data_out: u32,
    /// Tick since which data is queued or in flight; 0: none is.
    busy_since: u32,
    /// Ticks of earlier busy times.
    busy: u32,
    pub(crate) tune: Autotune,
}

const _: () = assert!(size_of::<ConnectionStats>() == 64);

/// Returns ticks in microseconds.
pub(crate) fn ticks_us(ticks: u32) -> u64 {
    (u64::from(ticks) << TICK_SHIFT) / 1000
}

impl ConnectionStats {
    /// Makes the counters of a connection that opens now. `sent`, `received`: segments of its
    /// handshake so far.
    pub(crate) fn new(iss: SeqNum, irs: SeqNum, sent: u32, received: u32, now: Instant) -> Self {
        let tick = current_tick(now);
        Self {
            iss,
            irs,
            segments_in: received,
            segments_out: sent,
            // Our SYN (Linux counts it).
            delivered: 1,
            last_in: tick,
            last_data_in: tick,
            last_data_out: tick,
            ..Self::default()
        }
    }

    /// Counts a received segment with `len` bytes of payload.
    #[inline]
    pub(crate) fn received(&mut self, len: u32, tick: u32) {
        self.segments_in = self.segments_in.wrapping_add(1);
        self.last_in = tick;
        if len > 0 {
            self.data_in = self.data_in.wrapping_add(1);
            self.last_data_in = tick;
        }
    }

    /// Returns the acknowledged bytes of our stream, if a sequence number can express them.
    pub(crate) fn acknowledged(&self, una: SeqNum) -> Option<u32> {
        // So few segments of 64 KiB have not wrapped the sequence space.
        (self.data_out < 1 << 16).then(|| una.since(self.iss).saturating_sub(1))
    }

    /// Counts a sent segment of the send queue.
    #[inline]
    pub(crate) fn sent_data(&mut self, tick: u32) {
        self.segments_out = self.segments_out.wrapping_add(1);
        self.data_out = self.data_out.wrapping_add(1);
        self.last_data_out = tick;
    }

    /// Begins a busy time.
    #[inline]
    pub(crate) fn busy(&mut self, tick: u32) {
        if self.busy_since == 0 {
            self.busy_since = tick.max(1);
        }
    }

    /// Ends a busy time if `empty`: everything queued is acknowledged.
    #[inline]
    pub(crate) fn idle_if(&mut self, empty: bool, tick: u32) {
        if empty && self.busy_since != 0 {
            self.busy = self.busy.wrapping_add(tick.wrapping_sub(self.busy_since));
            self.busy_since = 0;
        }
    }

    /// Returns the time in microseconds during which data was queued or in flight.
    pub(crate) fn busy_us(&self, now: Instant) -> u64 {
        let running = if self.busy_since == 0 { 0 } else { current_tick(now).wrapping_sub(self.busy_since) };
        ticks_us(self.busy.wrapping_add(running))
    }

    /// Returns the milliseconds since a segment was received, since data was received, and since
    /// data was sent (or the connection opened).
    pub(crate) fn ages_ms(&self, now: Instant) -> (u32, u32, u32) {
        let tick = current_tick(now);
        let age = |then: u32| u32::try_from(ticks_us(tick.wrapping_sub(then)) / 1000).unwrap_or(u32::MAX);
        (age(self.last_in), age(self.last_data_in), age(self.last_data_out))
    }
}

/// Reasons other than the path that keep a sender from sending (Linux `enum tcp_chrono`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Limit {
    /// None, or the path.
    #[default]
    None,
    /// The send buffer: the application would have written more.
    SendBuffer,
    /// The peer's window.
    Window,
}

/// Times by limiting reason. As on Linux, one reason counts at a time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limited {
    /// The current reason, and its start.
    now: (Limit, u32),
    window: u32,
    buffer: u32,
    /// The application was refused space, and has not been notified since.
    pub(crate) refused: bool,
}

impl Limited {
    /// Returns true if a reason is being timed.
    pub(crate) fn counts(&self) -> bool {
        self.now.0 != Limit::None
    }

    /// Sets the current reason.
    pub(crate) fn by(&mut self, limit: Limit, now: Instant) {
        let (old, since) = self.now;
        if old == limit {
            return;
        }
        let tick = current_tick(now);
        let ticks = tick.wrapping_sub(since);
        match old {
            Limit::None => {}
            Limit::SendBuffer => self.buffer = self.buffer.wrapping_add(ticks),
            Limit::Window => self.window = self.window.wrapping_add(ticks),
        }
        self.now = (limit, tick);
    }

    /// Returns the microseconds limited by the peer's window, and by the send buffer.
    pub(crate) fn times_us(&self, now: Instant) -> (u64, u64) {
        let mut copy = *self;
        copy.by(Limit::None, now);
        (ticks_us(copy.window), ticks_us(copy.buffer))
    }
}
