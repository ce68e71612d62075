//! Growth of the congestion window, and the start of the congestion control's state.

use crate::config::TcpConfig;
use crate::tcb::Tcb;
use crate::tcb::cc::algorithm::{AckSample, Algorithm};
use crate::tcb::cc::hystart::{self, SlowStartAck};
use crate::tcb::cc::{self, Control};
use crate::tcb::extension::Recovery;
use crate::tcb::flags::Flags;
use crate::time::Instant;

impl Tcb {
    /// Returns true if no loss is being repaired.
    pub(crate) fn may_begin(&self) -> bool {
        matches!(self.recovery(), Recovery::Open | Recovery::Cwr { .. })
    }

    /// Returns the congestion control state, allocated at the first loss.
    pub(crate) fn control(&mut self) -> &mut Control {
        let new_reno = self.flags.has(Flags::NEW_RENO);
        let ext = self.ext_mut();
        if ext.control.is_none() {
            // The first slow start has ended.
            ext.pacing.set_rate(0);
        }
        ext.control.get_or_insert_with(|| Control::loss_based(new_reno))
    }

    /// Slow start; CUBIC's first one monitors the round trips.
    #[inline]
    fn slow_start(&mut self, acked: u32, rtt_us: Option<u32>, pace: bool) {
        let mss = self.mss as u32;
        if hystart::applies(&self.window, mss, self.rtt.srtt_us()) && !self.flags.has(Flags::NEW_RENO) {
            let ack = SlowStartAck { una: self.snd.una(), nxt: self.snd.nxt(), acked, mss, rtt_us };
            let mut window = self.window;
            self.ext_mut().hystart.on_ack(&mut window, &ack);
            self.window = window;
            if pace {
                self.pace_slow_start();
            }
        } else {
            if let Some(ext) = self.ext.as_mut() {
                ext.pacing.set_rate(0);
            }
            cc::slow_start(&mut self.window, acked, mss);
        }
    }

    /// Updates the pace although the window was not used, perhaps because of the pace. Otherwise a
    /// pace computed from a temporarily long round trip would stay (Linux sets it at each ACK).
    #[inline]
    fn keep_pace(&mut self) {
        if self.ext.as_ref().is_some_and(|e| e.pacing.is_wanted()) {
            if hystart::applies(&self.window, self.mss as u32, self.rtt.srtt_us()) {
                self.pace_slow_start();
            } else {
                self.ext_mut().pacing.set_rate(0);
            }
        }
    }

    /// Grows the window for `acked` bytes, of `flight_before` that were in flight.
    #[inline]
    pub(super) fn grow_window(
        &mut self,
        config: &TcpConfig,
        acked: u32,
        flight_before: u32,
        rtt_us: Option<u32>,
        now: Instant,
    ) {
        if self.owns_window() {
            return;
        }
        let mss = self.mss as u32;
        let slow_start = self.window.in_slow_start();
        // RFC 7661's idea, as Linux applies it (`tcp_is_cwnd_limited`): an unused window does not
        // grow. ACKs arrive in batches, so the flight when an ACK is processed can be lower than
        // before; therefore a full window is recorded.
        let unused = if slow_start {
            flight_before.saturating_mul(2) <= self.window.cwnd
        } else {
            flight_before + mss < self.window.cwnd
        };
        let app_limited = unused && !self.flags.has(Flags::WINDOW_LIMITED);
        if app_limited && self.ext.as_ref().is_none_or(|e| e.control.is_none()) {
            self.keep_pace();
            return;
        }
        let sample = AckSample { now, acked, flight: flight_before, srtt_us: self.rtt.srtt_us(), mss, app_limited };
        match self.ext.as_mut().and_then(|e| e.control.as_mut()) {
            Some(control) => control.on_ack(&mut self.window, &sample),
            None if slow_start => self.slow_start(acked, rtt_us, config.slow_start_pacing),
            None => {
                // Beyond ssthresh without a loss, which happens only after an idle restart: the
                // algorithm takes over.
                let mut window = self.window;
                self.control().on_ack(&mut window, &sample);
                self.window = window;
            }
        }
    }
}
