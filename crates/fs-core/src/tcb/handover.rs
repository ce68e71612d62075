//! A connection that moves from one core to another: established, but not yet accepted, and its
//! core has no listener left for it.

use crate::flow::{CoreId, FlowKey};
use crate::frame::Frame;
use crate::tcb::Tcb;
use crate::tcb::connection_stats::ConnectionStats;
use crate::time::{Duration, Instant};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Time for which a connection's destination is remembered. A packet in search of its owner may
/// pass the new core before the connection arrives there, and then finds no owner here. Too low:
/// shorter than such a packet's path, so the peer gets a reset.
const REMEMBERED: Duration = Duration::from_millis(100);
/// Maximum number of remembered connections. Too high: packets without connection become slow,
/// since each searches them, while a listener with a long queue closes.
const REMEMBERED_MAX: usize = 256;

/// Connections that have recently moved to other cores.
#[derive(Debug, Default)]
pub(crate) struct RecentHandovers(VecDeque<(Instant, u64, CoreId)>);

impl RecentHandovers {
    /// Records that the connection with this hash has moved to the core `to`.
    pub(crate) fn note(&mut self, hash: u64, to: CoreId, now: Instant) {
        if self.0.len() >= REMEMBERED_MAX {
            self.0.pop_front();
        }
        self.0.push_back((now, hash, to));
    }

    /// Returns the core that a connection with this hash has moved to.
    #[inline]
    pub(crate) fn find(&mut self, hash: u64, now: Instant) -> Option<CoreId> {
        if self.0.is_empty() { None } else { self.search(hash, now) }
    }

    #[cold]
    fn search(&mut self, hash: u64, now: Instant) -> Option<CoreId> {
        while self.0.front().is_some_and(|(at, ..)| now.since(*at) > REMEMBERED) {
            self.0.pop_front();
        }
        self.0.iter().rev().find(|(_, h, _)| *h == hash).map(|&(.., to)| to)
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
