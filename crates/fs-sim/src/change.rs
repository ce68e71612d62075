//! What changes while a world runs: links, clocks, memory.

use crate::link::{Burst, LinkConfig};
use fs_core::Duration;

/// Which link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkAt {
    /// A host's own.
    Host(usize),
    /// A pipe of the topology, by its number.
    Pipe(usize),
}

/// A change of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkChange {
    /// It works, or it does not.
    Up(bool),
    /// Largest IP packet, and whether larger ones vanish without a word.
    Mtu(u16, bool),
    /// Bits per second.
    Rate(u64),
    /// One-way delay; packets under way keep theirs, and nothing overtakes them.
    Delay(Duration),
    /// Random loss in parts per million.
    Loss(u32),
    /// Loss in bursts.
    Burst(Option<Burst>),
}

/// Something that happens to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostChange {
    /// Its clock jumps forward. (The engine's clock is monotonic: it never jumps back.)
    ClockJump(Duration),
    /// Its clock stands still for so long and is late from then on.
    ClockStall(Duration),
    /// Nothing runs on it for so long, its clock goes on, and its device receives until its ring is full: a virtual
    /// machine that is paused, or a core that is taken away.
    Pause(Duration),
    /// So many free frames of each core are taken away for so long.
    Squeeze(usize, Duration),
    /// The first core's applications listen no more for so long: what they have not accepted moves to other cores.
    Unlisten(Duration),
}

/// A change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Of a link.
    Link(LinkAt, LinkChange),
    /// Of a host, by its number.
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
