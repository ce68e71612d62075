//! Second step of transmission: the neighbour's link-layer address.
//!
//! A *path* is a next hop on an interface together with the link header that reaches it.
//! Connections keep a [`PathId`] and read one cache line per packet. Working paths are never
//! removed. When the table is full, an unusable path is recycled, and ids that still name it become
//! [`PathState::Stale`].
//!
//! Packets whose neighbour is not known wait here *without* link header, bounded per neighbour and
//! in total.

mod path;
mod queue;

#[cfg(test)]
mod tests;

pub(crate) use path::{Path, PathState};

use crate::config::{Framing, Interface, Limits};
use crate::frame::{FramePool, IfaceId, TxFrame};
use crate::net::route::NextHop;
use crate::time::{Duration, Instant};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use path::{LinkLayer, STALE};
use queue::{Due, ResolutionQueue};

/// Maximum number of paths: 64 bytes each, so 1 MiB. Linux keeps 1024 neighbours per family
/// (`gc_thresh3`).
pub(crate) const PATHS_MAX: usize = 1 << INDEX_BITS;
const INDEX_BITS: u32 = 14;
/// One less than would fit, so that no path has the generation of [`PathId::NOWHERE`].
const GENERATIONS: u32 = u32::MAX >> INDEX_BITS;

/// Interval between two requests for a neighbour: RFC 1122 2.3.2.1 allows one per second; RFC 4861
/// section 10 (RETRANS_TIMER) specifies the same.
pub(crate) const REQUEST_INTERVAL: Duration = Duration::from_secs(1);
/// Requests before resolution fails: RFC 4861 section 10, MAX_MULTICAST_SOLICIT.
const TRIES_STANDALONE: u8 = 3;
/// In host addressing the kernel gives up and reports it. This limit covers the loss of its
/// message.
const TRIES_HOST: u8 = 10;
/// Time during which a failed neighbour is not asked for again. Linux asks again at once, for each
/// packet. Too low: a scan causes a storm of requests.
const HOLD_DOWN: Duration = Duration::from_secs(3);
/// Standalone addressing: lifetime of an answer until the neighbour is asked again, one to two
/// times this. The old address stays in use until the answer. RFC 1122 2.3.2.1 asks for "on the
/// order of a minute".
pub(crate) const REFRESH: Duration = Duration::from_secs(60);

/// Names a path. A connection may keep it indefinitely: see [`PathState::Stale`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PathId(u32);

impl PathId {
    /// The id of no path: its state is always [`PathState::Stale`].
    pub(crate) const NOWHERE: PathId = PathId(u32::MAX);

    fn new(index: usize, generation: u32) -> Self {
        PathId(index as u32 | generation << INDEX_BITS)
    }

    #[inline]
    fn index(self) -> usize {
        (self.0 & (PATHS_MAX as u32 - 1)) as usize
    }

    #[inline]
    fn generation(self) -> u32 {
        self.0 >> INDEX_BITS
    }
}

/// Result of [`PathTable::enqueue`].
#[derive(Debug, Default)]
#[must_use = "a request may have to be sent, and frames freed"]
pub(crate) struct Enqueued {
    /// Request the neighbour now: `Event::NeighbourNeeded`, or ARP and NDISC in standalone
    /// addressing.
    pub request: bool,
    /// A packet that cannot wait (the oldest, if the queue overflowed): free its frames and count
    /// `DropReason::NeighbourUnresolved`. Empty if there is none.
    pub dropped: Vec<TxFrame>,
}

/// Effect of news about a neighbour.
#[derive(Debug)]
#[must_use = "packets may be waiting"]
pub(crate) enum NeighbourChange {
    /// No packet waited for it.
    None,
    /// The path is usable: fetch the waiting packets with [`PathTable::resolved`].
    Resolved(PathId),
    /// The neighbour does not exist. These packets waited for it.
    Failed(PathId, Vec<Vec<TxFrame>>),
}

/// Result of [`PathTable::resolved`], in packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Drained {
    /// Moved to the caller's list, with link header.
    pub sent: usize,
    /// Freed, because a copy was needed (the send queue shares the chunk) and the pool is empty.
    pub dropped: usize,
}

/// Paths, and the packets that wait for their neighbours.
#[derive(Debug)]
pub(crate) struct PathTable {
    paths: Vec<Path>,
    by_hop: BTreeMap<NextHop, PathId>,
    /// The last result of [`PathTable::path`]: all connections behind one gateway look up the same
    /// path.
    latest: Option<(NextHop, PathId)>,
    links: Vec<Option<LinkLayer>>,
    waiting: ResolutionQueue,
    /// Position of the next search for a path to recycle.
    hand: usize,
}

impl PathTable {
    /// Makes an empty table; `limits.neighbour_queue` bounds the packets that wait for one
    /// neighbour.
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            paths: Vec::new(),
            by_hop: BTreeMap::new(),
            latest: None,
            links: Vec::new(),
            waiting: ResolutionQueue::new(limits.neighbour_queue as usize),
            hand: 0,
        }
    }

    /// Lowers the number of packets that may wait in total, for a small frame pool.
    pub(crate) fn limit_waiting(&mut self, packets: usize) {
        self.waiting.limit(packets);
    }

    /// Adds or changes an interface. Existing paths are updated.
    pub(crate) fn set_interface(&mut self, iface: IfaceId, interface: &Interface) {
        let slot = usize::from(iface.0);
        if self.links.len() <= slot {
            self.links.resize(slot + 1, None);
        }
        let link = LinkLayer::of(interface);
        for path in self.paths.iter_mut().filter(|path| path.iface == iface) {
            let neighbour = (path.state == PathState::Known).then(|| path.neighbour_mac());
            path.update(&link, neighbour.flatten());
        }
        self.links[slot] = Some(link);
    }

    /// Returns the path to a next hop, and makes it if none exists. Returns `None` if the table is
    /// full of working paths (report `Error::NoBuffers`), or the interface is unknown.
    #[inline]
    pub(crate) fn path(&mut self, hop: NextHop) -> Option<PathId> {
        match self.latest {
            Some((latest, id)) if latest == hop => Some(id),
            _ => {
                let id = self.find_or_make(hop)?;
                self.latest = Some((hop, id));
                Some(id)
            }
        }
    }

    fn find_or_make(&mut self, hop: NextHop) -> Option<PathId> {
        let hop = NextHop { addr: hop.addr.to_canonical(), ..hop };
        if let Some(id) = self.by_hop.get(&hop) {
            return Some(*id);
        }
        let link = self.links.get(usize::from(hop.iface.0))?.as_ref()?;
        if link.framing == Framing::Ip && !hop.addr.is_unspecified() {
            // Without link headers all next hops are equivalent. One path serves all, so that
            // millions of peers, real or forged, cannot fill the table.
            let v4 = hop.addr.is_ipv4();
            let addr = if v4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            return self.find_or_make(NextHop { addr, ..hop });
        }
        let mut path = Path::new(hop, link);
        let index = if self.paths.len() < PATHS_MAX { self.paths.len() } else { self.recycle()? };
        match self.paths.get_mut(index) {
            Some(old) => {
                path.generation = (old.generation + 1) % GENERATIONS;
                *old = path;
            }
            None => self.paths.push(path),
        }
        let id = PathId::new(index, self.paths[index].generation);
        self.by_hop.insert(hop, id);
        Some(id)
    }

    /// Returns the path. An id whose path was recycled yields a path in state `Stale`.
    #[inline]
    pub(crate) fn get(&self, id: PathId) -> &Path {
        match self.paths.get(id.index()) {
            Some(path) if path.generation == id.generation() => path,
            _ => &STALE,
        }
    }

    /// Sets a neighbour's address (`Some`), or records that it has none. `now` dates it.
    pub(crate) fn set_neighbour(
        &mut self,
        iface: IfaceId,
        addr: IpAddr,
        mac: Option<[u8; 6]>,
        now: Instant,
    ) -> NeighbourChange {
        let hop = NextHop { iface, addr: addr.to_canonical() };
        // The absence of a neighbour is recorded only if a path to it exists. A table full of
        // working paths ignores news about others: they are resolved when needed.
        let known = if mac.is_some() { self.path(hop) } else { self.by_hop.get(&hop).copied() };
        let Some(id) = known else { return NeighbourChange::None };
        let Some(link) = self.links.get(usize::from(iface.0)).and_then(Option::as_ref) else {
            return NeighbourChange::None;
        };
        let path = &mut self.paths[id.index()];
        if link.framing == Framing::Ip || link.fixed_mac(path.addr).is_some() {
            return NeighbourChange::None;
        }
        let before = path.state;
        match mac {
            Some(_) => {
                path.update(link, mac);
                path.since = now;
                self.waiting.answered(id);
                if before == PathState::Known {
                    return NeighbourChange::None;
                }
                if link.standalone {
                    self.waiting.refresh_later(id, now);
                }
                NeighbourChange::Resolved(id)
            }
            None => {
                path.fail(now);
                NeighbourChange::Failed(id, self.waiting.take(id))
            }
        }
    }

    /// Like [`PathTable::set_neighbour`], for unsolicited announcements: changes paths that are in
    /// use and makes none, so that no host on the link can fill the table.
    pub(crate) fn learn(&mut self, iface: IfaceId, addr: IpAddr, mac: [u8; 6], now: Instant) -> NeighbourChange {
        if !self.by_hop.contains_key(&NextHop { iface, addr: addr.to_canonical() }) {
            return NeighbourChange::None;
        }
        self.set_neighbour(iface, addr, Some(mac), now)
    }

    /// Forgets a neighbour's address. The next packet asks for it again.
    pub(crate) fn remove_neighbour(&mut self, iface: IfaceId, addr: IpAddr) {
        let hop = NextHop { iface, addr: addr.to_canonical() };
        let Some(id) = self.by_hop.get(&hop) else { return };
        let Some(Some(link)) = self.links.get(usize::from(iface.0)) else { return };
        let path = &mut self.paths[id.index()];
        path.update(link, link.fixed_mac(path.addr));
    }

    /// Queues a packet (IP header first, no link header) until its neighbour is known. Only for
    /// paths that are not `Known`: a packet for a `Known` or `Stale` path is returned as dropped.
    pub(crate) fn enqueue(&mut self, id: PathId, packet: Vec<TxFrame>, now: Instant) -> Enqueued {
        if !self.wants_neighbour(id, now) {
            return Enqueued { request: false, dropped: packet };
        }
        self.waiting.push(id, packet, now)
    }

    /// Like [`PathTable::enqueue`] without a packet, for senders that keep theirs: starts
    /// resolution. Returns true if a request must be sent now.
    pub(crate) fn need(&mut self, id: PathId, now: Instant) -> bool {
        self.wants_neighbour(id, now) && self.waiting.ask(id, now)
    }

    fn wants_neighbour(&mut self, id: PathId, now: Instant) -> bool {
        match self.get(id).state {
            PathState::Pending => true,
            PathState::Failed if now >= self.paths[id.index()].since => {
                self.paths[id.index()].state = PathState::Pending;
                true
            }
            PathState::Failed | PathState::Known | PathState::Stale => false,
        }
    }

    /// Moves the packets that waited for a path, which is now `Known`, to `out`: link headers
    /// written, oldest first.
    pub(crate) fn resolved<P: FramePool>(&mut self, id: PathId, pool: &mut P, out: &mut Vec<TxFrame>) -> Drained {
        let mut drained = Drained::default();
        if self.get(id).state != PathState::Known {
            return drained;
        }
        for packet in self.waiting.take(id) {
            match queue::with_link_header(&self.paths[id.index()], pool, packet) {
                Ok(packet) => {
                    out.extend(packet);
                    drained.sent += 1;
                }
                Err(packet) => {
                    packet.into_iter().for_each(|part| pool.free(part.frame));
                    drained.dropped += 1;
                }
            }
        }
        drained
    }

    /// Records that the connect in slot `index` has sent a SYN by a path. Kept while its neighbour
    /// is being resolved.
    pub(crate) fn push_connect(&mut self, id: PathId, index: u32) {
        if self.get(id).state == PathState::Pending {
            self.waiting.push_connect(id, index);
        }
    }

    /// Returns the connects that sent a SYN by a path while its neighbour was being resolved. May
    /// name one twice, or one that has ended since. Called when resolution has failed.
    pub(crate) fn take_connects(&mut self, id: PathId) -> Vec<u32> {
        self.waiting.take_connects(id)
    }

    /// Runs what is due. `requests` receives the paths whose neighbour must be asked for (again).
    /// `failed` receives the paths that were given up, with their packets (to be freed:
    /// `DropReason::NeighbourUnresolved`).
    pub(crate) fn tick(
        &mut self,
        now: Instant,
        requests: &mut Vec<PathId>,
        failed: &mut Vec<(PathId, Vec<Vec<TxFrame>>)>,
    ) {
        while let Some(due) = self.waiting.due(now) {
            let (Due::Repeat(id, _) | Due::Refresh(id)) = due;
            let path = match self.paths.get_mut(id.index()) {
                Some(path) if path.generation == id.generation() => path,
                _ => continue,
            };
            let Some(Some(link)) = self.links.get(usize::from(path.iface.0)) else { continue };
            let tries_max = if link.standalone { TRIES_STANDALONE } else { TRIES_HOST };
            match due {
                Due::Refresh(_) if path.state != PathState::Known => {}
                Due::Refresh(_) => {
                    if path.since + REFRESH <= now && self.waiting.ask(id, now) {
                        requests.push(id);
                    }
                    self.waiting.refresh_later(id, now);
                }
                Due::Repeat(_, tries) if tries < tries_max => {
                    self.waiting.asked(id, now);
                    requests.push(id);
                }
                // A known neighbour did not confirm that it is still reachable: RFC 4861 7.3.3
                // discards the entry.
                Due::Repeat(..) if path.state == PathState::Known => {
                    path.update(link, None);
                    self.waiting.take(id);
                }
                Due::Repeat(..) => {
                    path.fail(now);
                    failed.push((id, self.waiting.take(id)));
                }
            }
        }
    }

    /// Returns when `tick` has something to do; may be early.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.waiting.next_deadline()
    }

    /// Returns all waiting packets, for shutting down.
    #[cfg(test)]
    pub(crate) fn drain(&mut self) -> Vec<Vec<TxFrame>> {
        self.waiting.drain()
    }

    /// Returns the number of packets that wait for a neighbour.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.packets()
    }

    /// Returns the number of paths.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn len(&self) -> usize {
        self.paths.len()
    }

    /// Removes an unusable path from the table. Checks a bounded number of paths: if all of them
    /// work, a new neighbour must not cost a scan of the whole table.
    fn recycle(&mut self) -> Option<usize> {
        const LOOKS_MAX: usize = 256;
        for _ in 0..LOOKS_MAX {
            let index = self.hand;
            self.hand = (self.hand + 1) % self.paths.len();
            let path = &self.paths[index];
            let id = PathId::new(index, path.generation);
            if path.state != PathState::Known && !self.waiting.is_waiting(id) {
                self.by_hop.remove(&NextHop { iface: path.iface, addr: path.addr });
                self.latest = None;
                return Some(index);
            }
        }
        None
    }
}
