//! Congestion control: NewReno, CUBIC and BBR behind one trait.
//!
//! A connection's hot line contains only [`Window`]. The algorithm's state, [`Control`], is
//! allocated at the first loss: before that every algorithm is [`slow_start`], and most short
//! connections never see a loss.
//!
//! BBR differs: it has its state from the start, and a [`rate`] sample of every ACK; see [`bbr`].
//!
//! Order of calls: `on_ack` for each ACK of new data outside of recovery → `on_congestion` when a
//! loss is detected or the peer echoes ECN → `on_recovery_exit` when all data outstanding at that
//! time is acknowledged. After a retransmission timeout: `on_rto`, then `on_ack` (slow start), then
//! `on_recovery_exit`. `undo` if the loss turns out to be spurious.

pub(crate) mod algorithm;
pub(crate) mod bbr;
pub(crate) mod cubic;
pub(crate) mod hystart;
pub(crate) mod pacing;
pub(crate) mod rate;
pub(crate) mod reno;

use crate::config::CongestionControl;
use crate::time::{Duration, Instant};
use alloc::boxed::Box;

pub(crate) use algorithm::{AckSample, Algorithm, Window, initial_window, restart_after_idle, slow_start};
pub(crate) use bbr::Bbr;
pub(crate) use cubic::Cubic;
pub(crate) use reno::NewReno;

/// An algorithm's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// RFC 5681 and 6582.
    NewReno(NewReno),
    /// RFC 9438.
    Cubic(Cubic),
    /// draft-ietf-ccwg-bbr.
    Bbr(Box<Bbr>),
}

// Allocated for each connection that has seen a loss.
const _: () = assert!(size_of::<Control>() <= 48);

impl Control {
    /// Makes the state of a loss-based algorithm before the first loss.
    pub(crate) fn loss_based(new_reno: bool) -> Self {
        if new_reno { Control::NewReno(NewReno::default()) } else { Control::Cubic(Cubic::default()) }
    }

    /// Returns the algorithm.
    pub(crate) fn algorithm(&self) -> CongestionControl {
        match self {
            Control::NewReno(_) => CongestionControl::NewReno,
            Control::Cubic(_) => CongestionControl::Cubic,
            Control::Bbr(_) => CongestionControl::Bbr,
        }
    }
}

macro_rules! dispatch {
    ($self:ident, $state:ident => $call:expr) => {
        match $self {
            Control::NewReno($state) => $call,
            Control::Cubic($state) => $call,
            Control::Bbr($state) => $call,
        }
    };
}

impl Algorithm for Control {
    #[inline]
    fn on_ack(&mut self, w: &mut Window, ack: &AckSample) {
        dispatch!(self, state => state.on_ack(w, ack));
    }

    fn on_congestion(&mut self, w: &mut Window, flight: u32, mss: u32, now: Instant) {
        dispatch!(self, state => state.on_congestion(w, flight, mss, now));
    }

    fn on_rto(&mut self, w: &mut Window, flight: u32, mss: u32, now: Instant) {
        dispatch!(self, state => state.on_rto(w, flight, mss, now));
    }

    fn on_recovery_exit(&mut self, w: &mut Window) {
        dispatch!(self, state => state.on_recovery_exit(w));
    }

    fn undo(&mut self, w: &mut Window) {
        dispatch!(self, state => state.undo(w));
    }

    fn on_idle(&mut self, w: &mut Window, idle: Duration, rto: Duration, initial_window: u32) {
        dispatch!(self, state => state.on_idle(w, idle, rto, initial_window));
    }
}

#[cfg(test)]
mod tests;
