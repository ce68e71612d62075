//! Changes while a world runs: links, clocks, memory.

use crate::link::{Burst, LinkConfig};
use fs_core::Duration;

/// The link that changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkAt {
    /// A host's own link.
    Host(usize),
    /// A pipe of the topology, by its number.
    Pipe(usize),
}

/// A change of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkChange {
    /// The link begins to work, or stops.
    Up(bool),
    /// Largest IP packet, and whether larger ones are dropped silently.
    Mtu(u16, bool),
    /// Bits per second.
    Rate(u64),
    /// One-way delay. Packets in transit keep theirs, and none is overtaken.
    Delay(Duration),
    /// Random loss in parts per million.
    Loss(u32),
    /// Loss in bursts.
    Burst(Option<Burst>),
}

/// A change of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostChange {
    /// The host's clock jumps forward. The engine's clock is monotonic, so it never jumps back.
    ClockJump(Duration),
    /// The host's clock stops for this time, and is late from then on.
    ClockStall(Duration),
    /// Nothing runs on it for this time, while its clock continues, and its device receives until
    /// the ring is full: a paused virtual machine, or a core that is taken away.
    Pause(Duration),
    /// This number of free frames of each core is withheld for this time.
    Squeeze(usize, Duration),
    /// The first core's applications stop listening for this time: connections that are not
    /// accepted move to other cores.
    Unlisten(Duration),
}

/// A change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A change of a link.
    Link(LinkAt, LinkChange),
    /// A change of the host with this number.
    Host(usize, HostChange),
}

impl LinkChange {
    pub(crate) fn apply(self, link: &mut LinkConfig) {
        match self {
            LinkChange::Up(up) => link.up = up,
            LinkChange::Mtu(mtu, black_hole) => (link.mtu, link.black_hole) = (mtu, black_hole),
            LinkChange::Rate(rate_bps) => link.rate_bps = rate_bps,
            LinkChange::Delay(delay) => link.delay = delay,
            LinkChange::Loss(ppm) => link.loss_ppm = ppm,
            LinkChange::Burst(burst) => link.burst = burst,
        }
    }
}
