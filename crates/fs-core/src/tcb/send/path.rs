//! Segment sizes on a path: what ICMP says (RFC 1191, RFC 8201), black holes that say nothing (RFC 4821), and the way
//! up again.

use super::buffer::TxStore;
use crate::config::TcpConfig;
use crate::tcb::Tcb;
use crate::tcb::flags::Flags;
use crate::time::{Duration, Instant};

/// After so long a larger size is tried again: RFC 1191 6.3 and RFC 8201 section 4 say 10 minutes.
const RAISE_AFTER: Duration = Duration::from_secs(600);
/// Time-outs of a segment after which its size is suspected: R1 of RFC 1122 4.2.3.5, as Linux (`tcp_retries1`).
pub(crate) const R1: u8 = 3;
/// The first size that a black hole is crossed with: RFC 4821 7.7, Linux `tcp_base_mss`.
const BASE_MSS: u16 = 1024;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PathSize {
    /// The size before it was reduced; 0: it was not.
    full: u16,
    /// A size that got through; 0: none is in doubt. Larger segments are a trial.
    proven: u16,
    /// When to try a larger one.
    raise_at: Option<Instant>,
}

impl Tcb {
    /// A smaller segment size is in force from now on.
    pub(crate) fn reduce_mss(&mut self, mss: u16, now: Instant) {
        let old = self.mss;
        let path = &mut self.ext_mut().sender.path;
        path.full = path.full.max(old);
        path.proven = 0;
        path.raise_at = Some(now + RAISE_AFTER);
        self.mss = mss;
    }

    /// Before new data is cut: after a while the old size is tried again.
    #[inline]
    pub(crate) fn raise_mss(&mut self, now: Instant) {
        if let Some(ext) = self.ext.as_mut()
            && ext.sender.path.raise_at.is_some_and(|at| at <= now)
        {
            let path = &mut ext.sender.path;
            path.raise_at = None;
            path.proven = self.mss;
            self.mss = path.full.max(self.mss);
        }
    }

    /// The retransmission timer has fired: a trial is over at once; else, after R1 time-outs, a large segment is taken
    /// for one that the path swallows. Segments are cut when they are sent again.
    pub(crate) fn doubt_path(&mut self, store: &TxStore, config: &TcpConfig, now: Instant) {
        if self.tx.head == self.tx.next {
            return;
        }
        let len = store.segments[self.tx.head].len;
        let Some((proven, time_outs)) =
            self.ext.as_ref().map(|e| (e.sender.path.proven, e.loss.as_deref().map_or(0, |l| l.time_outs)))
        else {
            return;
        };
        if proven != 0 && len > u32::from(proven) {
            return self.reduce_mss(proven, now);
        }
        let floor = config.mss_floor.max(crate::net::MSS_MIN);
        if !config.mtu_probing || time_outs < R1 || len <= u32::from(floor) {
            return;
        }
        let options = if self.flags.has(Flags::TIMESTAMPS) { 12 } else { 0 };
        let base = BASE_MSS - options;
        let smaller = if self.mss > base { base } else { self.mss / 2 };
        if smaller.max(floor) < self.mss {
            self.reduce_mss(smaller.max(floor), now);
        }
    }
}
