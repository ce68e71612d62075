//! A connection on its way from one core to another: established, but not yet accepted, and the core that
//! owns it has nobody left to accept it.

use crate::flow::{CoreId, FlowKey};
use crate::frame::Frame;
use crate::tcb::Tcb;
use crate::tcb::connection_stats::ConnectionStats;
use crate::time::{Duration, Instant};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// How long it is remembered whereto a connection went. Packets ask their way from core to core: one that has been at the new
/// owner's before the connection came there finds nobody here. Shorter than such a packet's way: the peer gets a reset.
const REMEMBERED: Duration = Duration::from_millis(100);
/// How many. More would make packets of no connection slow, which look them through, while a listener with a long queue closes.
const REMEMBERED_MAX: usize = 256;

/// Connections that went to other cores a moment ago.
#[derive(Debug, Default)]
pub(crate) struct RecentHandovers(VecDeque<(Instant, u64, CoreId)>);

impl RecentHandovers {
    /// The connection of this hash went `to` another core.
    pub(crate) fn note(&mut self, hash: u64, to: CoreId, now: Instant) {
        if self.0.len() >= REMEMBERED_MAX {
            self.0.pop_front();
        }
        self.0.push_back((now, hash, to));
    }

    /// Where a connection of this hash went.
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

/// Everything of a connection that is not yet accepted: its control block and the frames it holds.
#[derive(Debug)]
pub struct Handover {
    pub(crate) key: FlowKey,
    pub(crate) tcb: Tcb,
    pub(crate) conn_stats: ConnectionStats,
    /// Received and not yet read, in order.
    pub(crate) received: Vec<Frame>,
}

impl Handover {
    /// Takes the frames out, for a runtime that cannot deliver the message: they go back to the pool of the
    /// core that sent it, and the peer will find the connection gone.
    pub fn into_frames(self) -> Vec<Frame> {
        self.received
    }
}

#[cfg(test)]
mod tests;
