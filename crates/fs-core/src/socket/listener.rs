//! Listeners: this core's listen table, the global one (listeners of other cores), and accept
//! queues.

use crate::flow::CoreId;
use crate::socket::event::ListenerId;
use crate::socket::options::{Listen, TcpOptions};
use crate::time::Instant;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

/// A listener of this core.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) generation: u32,
    pub(crate) at: SocketAddr,
    v6_only: bool,
    pub(crate) backlog: u32,
    pub(crate) options: TcpOptions,
    /// True if connections need at most TCP_NODELAY of `options`.
    pub(crate) is_plain: bool,
    /// TCP_FASTOPEN: maximum number of connections opened by data in a SYN whose handshake is not
    /// complete.
    pub(crate) fast_open: u32,
    /// Current number of these connections.
    pub(crate) fast_pending: u32,
    /// Established connections that wait for `accept`.
    pub(crate) queue: VecDeque<PendingAccept>,
    live: bool,
}

/// A connection in an accept queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingAccept {
    pub(crate) slot: u32,
    pub(crate) since: Instant,
}

/// Listeners as one core sees them.
#[derive(Debug, Default)]
pub(crate) struct ListenTable {
    slots: Vec<Listener>,
    vacant: Vec<u32>,
    by_port: BTreeMap<u16, Vec<u32>>,
    /// The global listen table: other cores' listeners, updated by their messages.
    elsewhere: BTreeMap<u16, Vec<(SocketAddr, CoreId)>>,
    generations: u32,
}

impl Listener {
    /// Sets the options of future connections.
    pub(crate) fn set_options(&mut self, options: TcpOptions) {
        (self.options, self.is_plain) = (options, options.is_plain());
    }
}

fn covers(at: SocketAddr, v6_only: bool, local: IpAddr) -> bool {
    match (at.ip(), local) {
        (IpAddr::V4(a), IpAddr::V4(_)) if a.is_unspecified() => true,
        (IpAddr::V6(a), IpAddr::V6(_)) if a.is_unspecified() => true,
        (IpAddr::V6(a), IpAddr::V4(_)) if a.is_unspecified() => !v6_only,
        (a, local) => a.to_canonical() == local,
    }
}

impl ListenTable {
    /// Adds a listener. Returns `None` if this core has one at the same address and port.
    pub(crate) fn insert(&mut self, listen: &Listen) -> Option<ListenerId> {
        let Listen { at, backlog, v6_only, fast_open, options } = *listen;
        let at = SocketAddr::new(at.ip().to_canonical(), at.port());
        let same = self.by_port.get(&at.port()).into_iter().flatten();
        if same.map(|&i| &self.slots[i as usize]).any(|l| l.at == at) {
            return None;
        }
        self.generations += 1;
        let generation = self.generations;
        let queue = VecDeque::new();
        let backlog = backlog.max(1);
        let is_plain = options.is_plain();
        let (fast_pending, live) = (0, true);
        let listener =
            Listener { generation, at, v6_only, backlog, options, is_plain, fast_open, fast_pending, queue, live };
        let index = match self.vacant.pop() {
            Some(index) => {
                self.slots[index as usize] = listener;
                index
            }
            None => {
                self.slots.push(listener);
                (self.slots.len() - 1) as u32
            }
        };
        self.by_port.entry(at.port()).or_default().push(index);
        Some(ListenerId { index, generation })
    }

    /// Removes a listener. Returns its accept queue, which the caller has to close.
    pub(crate) fn remove(&mut self, id: ListenerId) -> Option<(SocketAddr, VecDeque<PendingAccept>)> {
        let listener = self.listener_mut(id)?;
        listener.live = false;
        let (at, queue) = (listener.at, core::mem::take(&mut listener.queue));
        if let Some(indices) = self.by_port.get_mut(&at.port()) {
            indices.retain(|&i| i != id.index);
            if indices.is_empty() {
                self.by_port.remove(&at.port());
            }
        }
        self.vacant.push(id.index);
        Some((at, queue))
    }

    pub(crate) fn listener_mut(&mut self, id: ListenerId) -> Option<&mut Listener> {
        self.slots.get_mut(id.index as usize).filter(|l| l.live && l.generation == id.generation)
    }

    pub(crate) fn listener(&self, id: ListenerId) -> Option<&Listener> {
        self.slots.get(id.index as usize).filter(|l| l.live && l.generation == id.generation)
    }

    /// Returns the listener in a slot, for any generation.
    pub(crate) fn at_mut(&mut self, index: u32) -> Option<&mut Listener> {
        self.slots.get_mut(index as usize).filter(|l| l.live)
    }

    /// Like [`ListenTable::at_mut`], shared.
    pub(crate) fn at(&self, index: u32) -> Option<&Listener> {
        self.slots.get(index as usize).filter(|l| l.live)
    }

    /// Returns this core's listener for a destination: an exact address before a wildcard.
    pub(crate) fn find(&self, local: IpAddr, port: u16) -> Option<u32> {
        let candidates = self.by_port.get(&port)?;
        if let &[only] = candidates.as_slice() {
            let l = &self.slots[only as usize];
            return covers(l.at, l.v6_only, local).then_some(only);
        }
        let listener = |i: &&u32| {
            let l = &self.slots[**i as usize];
            covers(l.at, l.v6_only, local)
        };
        candidates
            .iter()
            .filter(listener)
            .max_by_key(|&&i| {
                let ip = self.slots[i as usize].at.ip();
                (!ip.is_unspecified(), ip.is_ipv4() == local.is_ipv4())
            })
            .copied()
    }

    /// Returns another core that listens for a destination: `choice` spreads over all that do.
    pub(crate) fn find_elsewhere(&self, local: IpAddr, port: u16, choice: u64) -> Option<CoreId> {
        let candidates = self.elsewhere.get(&port)?;
        let serving = || candidates.iter().filter(|(at, _)| covers(*at, false, local));
        let count = serving().count() as u64;
        if count == 0 {
            return None;
        }
        serving().nth((choice % count) as usize).map(|(_, core)| *core)
    }

    /// Records that another core's listener was opened or closed.
    pub(crate) fn set_elsewhere(&mut self, core: CoreId, at: SocketAddr, up: bool) {
        let list = self.elsewhere.entry(at.port()).or_default();
        list.retain(|entry| *entry != (at, core));
        if up {
            list.push((at, core));
        } else if list.is_empty() {
            self.elsewhere.remove(&at.port());
        }
    }

    /// Returns true if any core listens on the port.
    pub(crate) fn port_in_use(&self, port: u16) -> bool {
        self.by_port.contains_key(&port) || self.elsewhere.contains_key(&port)
    }

    /// Returns true if the connection is in an accept queue.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn waits(&self, connection: u32) -> bool {
        self.slots.iter().any(|l| l.queue.iter().any(|waiting| waiting.slot == connection))
    }
}
