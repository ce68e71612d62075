//! The queue of actions, ordered by their virtual time.

use fs_core::{CoreMessage, Frame, Instant, TcpId};
use std::cmp::Ordering;
use std::net::{IpAddr, SocketAddr};

/// An event of the world.
pub(super) enum Action {
    Arrive {
        host: usize,
        bytes: Vec<u8>,
    },
    /// A packet for `host` has reached a router.
    Forward {
        router: usize,
        host: usize,
        bytes: Vec<u8>,
    },
    Change(usize),
    /// The end of a change of this host.
    Relieve {
        host: usize,
    },
    Turn {
        host: usize,
        core: usize,
    },
    Message {
        host: usize,
        core: usize,
        message: CoreMessage,
    },
    Sent {
        host: usize,
        core: usize,
        packets: usize,
        frames: Vec<Frame>,
    },
    Start(usize),
    Resume {
        host: usize,
        core: usize,
        id: TcpId,
    },
    Resolved {
        host: usize,
        addr: IpAddr,
    },
    /// The ACK that waits since then has waited for long enough.
    LateAck {
        host: usize,
        flow: (SocketAddr, SocketAddr),
        number: u64,
    },
    NewRss {
        host: usize,
    },
    /// The applications of a core listen again.
    Listen {
        host: usize,
        core: usize,
    },
}

/// An action and its time.
pub(super) struct Entry {
    pub(super) at: Instant,
    /// Order of entries at the same time: first in, first out.
    pub(super) order: u64,
    pub(super) action: Action,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    /// Reversed: the heap's greatest entry is the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}
