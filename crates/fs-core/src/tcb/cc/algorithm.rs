//! Common part of all algorithms: the window, the inputs, and slow start.

use crate::time::{Duration, Instant};

/// Maximum congestion window in bytes: the largest window that TCP's header can express (RFC 7323
/// 2.3), so a larger one would have no effect. Sums of it also fit 32 bits.
pub(crate) const CWND_MAX: u32 = 1 << 30;

/// A connection's congestion window, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// Maximum number of bytes in flight.
    pub cwnd: u32,
    /// Slow start below, congestion avoidance from here on.
    pub ssthresh: u32,
}

impl Window {
    /// Makes the window of a new connection. "The initial value of ssthresh SHOULD be set
    /// arbitrarily high" (RFC 5681 3.1).
    pub(crate) const fn new(cwnd: u32) -> Self {
        Self { cwnd, ssthresh: u32::MAX }
    }

    /// Returns true below the slow-start threshold.
    #[inline]
    pub(crate) const fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }
}

/// An ACK of new data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AckSample {
    /// When it arrived.
    pub now: Instant,
    /// Bytes newly acknowledged, cumulatively or by SACK.
    pub acked: u32,
    /// Bytes sent and not yet acknowledged, after this ACK.
    pub flight: u32,
    /// Smoothed round-trip time in microseconds.
    pub srtt_us: u32,
    /// Payload bytes of a full segment.
    pub mss: u32,
    /// The application or the peer's window, and not `cwnd`, limited the bytes in flight. The ACK
    /// is then no evidence for a larger window (RFC 9438 5.8, RFC 7661).
    pub app_limited: bool,
}

/// A loss-based congestion control algorithm.
///
/// `flight` is RFC 5681's FlightSize when the loss was detected: bytes sent and not cumulatively
/// acknowledged. Limited transmit (RFC 3042) may have raised it beyond `cwnd`; that part is
/// ignored.
pub(crate) trait Algorithm {
    /// New data was acknowledged outside of fast recovery.
    fn on_ack(&mut self, w: &mut Window, ack: &AckSample);
    /// Fast recovery begins, or the peer echoed ECN. Called at most once for each window of data.
    fn on_congestion(&mut self, w: &mut Window, flight: u32, mss: u32, now: Instant);
    /// The retransmission timer fired. If called again for the same data, the threshold stays.
    fn on_rto(&mut self, w: &mut Window, flight: u32, mss: u32, now: Instant);
    /// All data that was outstanding at `on_congestion` or `on_rto` is acknowledged.
    fn on_recovery_exit(&mut self, w: &mut Window);
    /// The last `on_congestion` or `on_rto` was spurious (Eifel, F-RTO, D-SACK): restores the
    /// earlier state. Only the first call after it has an effect.
    fn undo(&mut self, w: &mut Window);
    /// Sending resumes `idle` after the last segment was sent, with a timeout of `rto`.
    fn on_idle(&mut self, w: &mut Window, idle: Duration, rto: Duration, initial_window: u32);
}

/// State of a connection between losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// No loss is being repaired.
    #[default]
    Open,
    /// After `on_congestion`: the window is constant.
    Recovery,
    /// After `on_rto`, before the first ACK: another timeout is for the same data.
    Loss,
    /// After `on_rto` and an ACK: slow start.
    Restart,
}

/// Returns RFC 6928 section 2: `min(segments * MSS, max(2 * MSS, segments * 1460))` bytes; the
/// RFC's `segments` is 10. At least one segment.
pub(crate) fn initial_window(mss: u32, segments: u32) -> u32 {
    let segments = segments.max(1);
    let bound = mss.saturating_mul(2).max(segments.saturating_mul(1460));
    segments.saturating_mul(mss).min(bound).clamp(mss, CWND_MAX.max(mss))
}

/// Slow start: the window grows by the acknowledged bytes (RFC 5681 3.1, RFC 3465), up to the
/// threshold. Returns the acknowledged bytes that remain for congestion avoidance. Must not be
/// called if the window was not the sender's limit.
///
/// RFC 3465 limits growth to two segments per ACK, for receivers that send one ACK for two
/// segments. Receivers now merge segments before they acknowledge (GRO, LRO), and that limit would
/// grow the window by a twentieth of the bytes that left the network. As in Linux
/// (`tcp_slow_start`), bytes are counted without a limit: dividing ACKs gains nothing, and merged
/// ones lose nothing.
#[inline]
pub(crate) fn slow_start(w: &mut Window, acked: u32, mss: u32) -> u32 {
    let target = w.cwnd.saturating_add(acked).min(w.ssthresh).min(CWND_MAX.max(mss));
    let used = target.saturating_sub(w.cwnd);
    w.cwnd += used;
    acked - used
}

/// Reduces the window after `idle` without sending, since the path's state is unknown: halves it
/// for each timeout that has passed, down to the restart window (RFC 5681 4.1, RFC 2861). The
/// threshold keeps the earlier value.
pub(crate) fn restart_after_idle(w: &mut Window, idle: Duration, rto: Duration, initial_window: u32) {
    if idle <= rto {
        return;
    }
    let restart = w.cwnd.min(initial_window);
    // RFC 2861 3.2: ssthresh = max(ssthresh, 3/4 cwnd)
    w.ssthresh = w.ssthresh.max(w.cwnd - w.cwnd / 4);
    let halvings = idle.as_nanos() / rto.as_nanos().max(1);
    let halved = w.cwnd.checked_shr(u32::try_from(halvings).unwrap_or(u32::MAX)).unwrap_or(0);
    w.cwnd = halved.max(restart);
}
