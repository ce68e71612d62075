//! The tail loss probe (RFC 8985 section 7): when no ACK has arrived for two round trips, one
//! segment is sent. The ACK that it causes reveals losses before the retransmission timer has to
//! guess.

use super::recovery::Acknowledged;
use super::store::TxStore;
use crate::config::TcpConfig;
use crate::seq::SeqNum;
use crate::tcb::Tcb;
use crate::tcb::extension::Recovery;
use crate::tcb::flags::Flags;
use crate::tcb::send::loss::Probe;
use crate::time::{Duration, Instant, nanos};

/// Added to two round trips if more than one segment is in flight: Linux `TCP_TIMEOUT_MIN_US`, 2
/// ms. The timer's tick is 1.05 ms, and receivers merge segments for about as long. Too low: on
/// paths of 100 µs, probes are sent while the ACK is in transit. Too high: close to the timeout
/// that a probe should prevent.
const MARGIN: Duration = Duration::from_millis(2);

impl Tcb {
    /// Returns true if this connection sends tail loss probes, which need RACK, which needs SACK.
    #[inline]
    pub(super) fn has_probes(&self, config: &TcpConfig) -> bool {
        config.rack && config.tail_loss_probe && self.flags.has(Flags::SACK)
    }

    /// 7.2: returns the time to wait for an ACK before a probe, in nanoseconds; `None`: no probe
    /// now. Without a round-trip sample, the initial timeout. `single`: only one segment is in
    /// flight.
    #[inline]
    pub(crate) fn probe_wait(&self, single: impl FnOnce(&Self) -> bool, config: &TcpConfig) -> Option<u64> {
        if !self.has_probes(config) || self.backoff > 0 {
            return None;
        }
        if let Some(ext) = self.ext.as_ref()
            && (!matches!(ext.recovery, Recovery::Open | Recovery::Cwr { .. }) || ext.sacked > 0)
        {
            return None;
        }
        if !self.rtt.has_sample() {
            return Some(nanos(config.rto_initial));
        }
        // A single segment may be acknowledged late (RFC 9293 MUST-58): adds Linux's minimum
        // timeout (RFC: WCDelAckT, 200 ms).
        let delayed = self.snd.outstanding() < 2 * self.mss as u32 && single(self);
        let more = if delayed { config.rto_min } else { MARGIN };
        Some((u64::from(self.rtt.srtt_us()) * 2000).saturating_add(nanos(more)))
    }

    /// 7.3: handles the probe timer. The retransmission timer follows: from now on if a probe is
    /// sent (Linux `tcp_send_loss_probe`), otherwise at the time that it would have without the
    /// probe timer.
    pub(crate) fn on_probe_timeout(&mut self, store: &TxStore, config: &TcpConfig, now: Instant) {
        self.probe_near_peer();
        let probe = &mut self.loss_mut().probe;
        // At most one probe at a time. If the round trip has become longer than the probe timer,
        // only probes would be outstanding, and they yield no samples.
        if probe.end.is_some() || probe.unmeasured {
            self.resume_rto(store, config, now);
        } else {
            probe.due = true;
            self.restart_rto(config, now);
        }
    }

    /// Records that the segment just sent was the probe.
    pub(crate) fn probe_sent(&mut self, resent: bool, config: &TcpConfig, now: Instant) {
        let end = self.snd.nxt();
        let loss = self.loss_mut();
        loss.probe = Probe { due: false, end: Some(end), resent, unmeasured: true };
        self.restart_rto(config, now);
    }

    /// 7.4: handles an ACK while a probe is outstanding. Returns true if the probe has repaired a
    /// loss, so that the window must be reduced.
    pub(crate) fn on_probe_acked(&mut self, ack: SeqNum, acked: &Acknowledged) -> bool {
        let Some(probe) = self.loss_if_any().map(|l| &mut l.probe) else { return false };
        let Some(end) = probe.end else { return false };
        if ack.before(end) {
            return false;
        }
        if !probe.resent || acked.duplicate.is_some_and(|(_, last)| last == end) {
            // The probe was new data, or both copies have arrived.
            probe.end = None;
            return false;
        }
        if ack.after(end) {
            probe.end = None;
            return true;
        }
        if !acked.advanced && acked.sacked == 0 && acked.bare {
            // A plain duplicate ACK: the original had arrived as well.
            probe.end = None;
        }
        false
    }
}
