//! Segment sizes on a path: ICMP (RFC 1191, RFC 8201), silent black holes (RFC 4821), and the
//! return to larger sizes.

use super::store::TxStore;
use crate::config::TcpConfig;
use crate::slab::NIL;
use crate::tcb::Tcb;
use crate::tcb::flags::Flags;
use crate::time::{Duration, Instant};
use crate::wire::options;

/// Time after which a larger size is tried again: 10 minutes in RFC 1191 6.3 and RFC 8201 section
/// 4.
const RAISE_AFTER: Duration = Duration::from_secs(600);
/// Timeouts of a segment after which its size is suspected: R1 of RFC 1122 4.2.3.5, as Linux
/// (`tcp_retries1`).
pub(crate) const R1: u8 = 3;
/// The first size that is tried through a black hole: RFC 4821 7.7, Linux `tcp_base_mss`.
const BASE_MSS: u16 = 1024;

impl Tcb {
    /// Returns the size of a segment's timestamps.
    pub(crate) fn stamps_len(&self) -> u16 {
        if self.flags.has(Flags::TIMESTAMPS) { options::TIMESTAMPS_LEN as u16 } else { 0 }
    }

    /// Returns the smallest payload of a full segment that a path may require.
    pub(crate) fn mss_floor(&self, config: &TcpConfig) -> u16 {
        config.mss_floor.max(crate::net::MSS_MIN) - self.stamps_len()
    }

    /// Applies a smaller segment size.
    pub(crate) fn reduce_mss(&mut self, mss: u16, now: Instant) {
        let old = self.mss;
        let path = &mut self.ext_mut().sender.path;
        path.full = path.full.max(old);
        (path.proven, path.trial_end) = (0, None);
        path.raise_at = Some(now + RAISE_AFTER);
        path.by_link = false;
        self.mss = mss;
    }

    /// Adapts to a changed path or path MTU. Larger segments that were sent are retransmitted.
    #[cold]
    pub(crate) fn fit_path(&mut self, store: &mut TxStore, mss: u16, now: Instant) {
        if mss < self.mss {
            self.reduce_mss(mss, now);
            let path = &mut self.ext_mut().sender.path;
            (path.raise_at, path.by_link) = (None, true);
            self.resend_oversized(store);
        } else if mss > self.mss
            && let Some(ext) = self.ext.as_mut().filter(|ext| ext.sender.path.by_link)
        {
            self.mss = ext.sender.path.full.min(mss);
            ext.sender.path.by_link = self.mss < ext.sender.path.full;
        }
    }

    /// Tries the old size again after a while. Called before new data is segmented. Returns true if
    /// the data may be the trial, which [`Tcb::record_trial`] then records.
    #[inline]
    pub(crate) fn raise_mss(&mut self, now: Instant) -> bool {
        self.ext.as_ref().is_some_and(|ext| !ext.sender.path.is_sure()) && self.try_larger(now)
    }

    #[cold]
    fn try_larger(&mut self, now: Instant) -> bool {
        let (una, mss) = (self.snd.una(), self.mss);
        let path = &mut self.ext_mut().sender.path;
        path.on_trial_acked(una);
        if path.raise_at.is_some_and(|at| at <= now) {
            path.raise_at = None;
            path.proven = mss;
            let full = path.full.max(mss);
            self.mss = full;
            return true;
        }
        path.proven != 0 && path.trial_end.is_none()
    }

    /// Records that data was segmented while a larger size is on trial.
    #[cold]
    pub(crate) fn record_trial(&mut self, store: &TxStore) {
        let mut at = self.tx.next;
        let path = &mut self.ext_mut().sender.path;
        while at != NIL {
            let segment = &store.segments[at];
            if segment.len > u32::from(path.proven) {
                path.trial_end = Some(segment.end());
                return;
            }
            at = segment.next;
        }
    }

    /// Handles a retransmission timeout: ends a trial at once; otherwise, after R1 timeouts, a
    /// large segment is assumed to be dropped by the path. Segments are split when they are
    /// retransmitted.
    pub(crate) fn doubt_path(&mut self, store: &TxStore, config: &TcpConfig, now: Instant) {
        if self.tx.head() == self.tx.next {
            return;
        }
        let len = store.segments[self.tx.head()].len;
        let una = self.snd.una();
        let Some(ext) = self.ext.as_mut() else { return };
        ext.sender.path.on_trial_acked(una);
        let (proven, time_outs) = (ext.sender.path.proven, ext.loss.as_deref().map_or(0, |l| l.time_outs));
        if proven != 0 && len > u32::from(proven) {
            return self.reduce_mss(proven, now);
        }
        let floor = self.mss_floor(config);
        if !config.mtu_probing || time_outs < R1 || len <= u32::from(floor) {
            return;
        }
        let base = BASE_MSS - self.stamps_len();
        let smaller = if self.mss > base { base } else { self.mss / 2 };
        if smaller.max(floor) < self.mss {
            self.reduce_mss(smaller.max(floor), now);
        }
    }
}
