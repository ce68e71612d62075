//! A connection that moves from one core to another: established, but not yet accepted, and its
//! core has no listener left for it.

use crate::flow::{CoreId, FlowKey};
use crate::frame::Frame;
use crate::tcb::Tcb;
use crate::tcb::connection_stats::ConnectionStats;
use crate::time::{Duration, Instant};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

/// Time for which a connection's destination is remembered. Until the new core has taken the
/// connection, a packet that searches for its owner may pass that core, and then finds no owner
/// here. Too low: shorter than a task keeps the new core busy, so the peer gets a reset. Too high:
/// packets of a newer connection between the same ports visit the old one's core.
const REMEMBERED: Duration = Duration::from_secs(10);
/// Maximum number of remembered connections. Too low: a listener with a full accept queue (1,024 by
/// default) closes, and the first ones are forgotten. Too high: memory.
const REMEMBERED_MAX: usize = 4096;

/// Connections that have recently moved to other cores.
#[derive(Debug, Default)]
pub(crate) struct RecentHandovers {
    by_hash: BTreeMap<u64, (Instant, CoreId)>,
    /// Oldest first. An entry whose time is not that of `by_hash` is out of date.
    order: VecDeque<(Instant, u64)>,
}

impl RecentHandovers {
    /// Records that the connection with this hash has moved to the core `to`.
    pub(crate) fn note(&mut self, hash: u64, to: CoreId, now: Instant) {
        while let Some(&(at, oldest)) = self.order.front()
            && (self.order.len() >= REMEMBERED_MAX || now.since(at) > REMEMBERED)
        {
            self.order.pop_front();
            if self.by_hash.get(&oldest).is_some_and(|entry| entry.0 == at) {
                self.by_hash.remove(&oldest);
            }
        }
        self.by_hash.insert(hash, (now, to));
        self.order.push_back((now, hash));
    }

    /// Returns the core that a connection with this hash has moved to.
    #[inline]
    pub(crate) fn find(&self, hash: u64, now: Instant) -> Option<CoreId> {
        let &(at, to) = self.by_hash.get(&hash)?;
        (now.since(at) <= REMEMBERED).then_some(to)
    }

    /// Forgets a connection: another one with this hash may begin.
    #[inline]
    pub(crate) fn forget(&mut self, hash: u64) {
        self.by_hash.remove(&hash);
    }
}

/// The state of a connection that is not yet accepted: its control block and its frames.
#[derive(Debug)]
pub struct Handover {
    pub(crate) key: FlowKey,
    pub(crate) tcb: Tcb,
    pub(crate) conn_stats: ConnectionStats,
    /// Received data that is not read yet, in order.
    pub(crate) received: Vec<Frame>,
    /// It was opened without a listener, so it has no listener's options yet.
    pub(crate) inherits: bool,
}

impl Handover {
    /// Takes the frames out, for a runtime that cannot deliver the message. They return to the pool
    /// of the sending core; the connection is lost, and its peer's next segment is reset.
    pub fn into_frames(self) -> Vec<Frame> {
        self.received
    }
}

#[cfg(test)]
mod tests;
