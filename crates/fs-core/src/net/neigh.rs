//! Second station on the way out: the neighbour's link-layer address.
//!
//! A *path* is a next hop on an interface together with the link header that reaches it. Connections keep
//! a [`PathId`] and look at one cache line per packet. Paths are never removed while they work; when the
//! table is full, one that leads nowhere makes room, and ids that still name it turn [`PathState::Stale`].
//!
//! Packets whose neighbour is not known wait here *without* link header, bounded per neighbour and in all.

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
use path::{Link, STALE};
use queue::{Due, Waiting};

/// Paths at most: 64 bytes each, so 1 MiB. Linux keeps 1024 neighbours per family (`gc_thresh3`).
pub(crate) const PATHS_MAX: usize = 1 << INDEX_BITS;
const INDEX_BITS: u32 = 14;
/// One less than fit: no path has the generation of [`PathId::NOWHERE`].
const GENERATIONS: u32 = u32::MAX >> INDEX_BITS;

/// Time between two requests for a neighbour: RFC 1122 2.3.2.1 allows one a second, RFC 4861 section 10
/// (RETRANS_TIMER) says the same.
pub(crate) const REQUEST_INTERVAL: Duration = Duration::from_secs(1);
/// Requests before a neighbour is given up: RFC 4861 section 10, MAX_MULTICAST_SOLICIT.
const TRIES_STANDALONE: u8 = 3;
/// In host addressing the kernel gives up and says so. This is for the case that its message gets lost.
const TRIES_HOST: u8 = 10;
/// How long a neighbour that did not answer is not asked again. Linux asks again at once, for each
/// packet; a little patience keeps a scan from turning into a storm of requests.
const HOLD_DOWN: Duration = Duration::from_secs(3);
/// Standalone: how long an answer is trusted before the neighbour is asked again, one to two times this (its
/// old address stays in use meanwhile). RFC 1122 2.3.2.1 asks for "on the order of a minute".
pub(crate) const REFRESH: Duration = Duration::from_secs(60);

/// Names a path. A connection may keep it for ever: see [`PathState::Stale`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PathId(u32);

impl PathId {
    /// Of a path that never was: its state is [`PathState::Stale`] for ever.
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

/// What [`PathTable::enqueue`] did.
#[derive(Debug, Default)]
#[must_use = "a request may have to be sent, and frames freed"]
pub(crate) struct Enqueued {
    /// Ask for the neighbour now: `Event::NeighbourNeeded`, or ARP and NDISC in standalone addressing.
    pub request: bool,
    /// A packet that cannot wait (the oldest, when the queue overflowed): free its frames and count
    /// `DropReason::NeighbourUnresolved`. Empty when there is none.
    pub dropped: Vec<TxFrame>,
}

/// What news of a neighbour changed.
#[derive(Debug)]
#[must_use = "packets may be waiting"]
pub(crate) enum NeighbourChange {
    /// Nothing that anybody waits for.
    None,
    /// The path can be used now: fetch what waits with [`PathTable::resolved`].
    Resolved(PathId),
    /// The neighbour is not there. These packets waited for it.
    Failed(PathId, Vec<Vec<TxFrame>>),
}

/// What [`PathTable::resolved`] did, in packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Drained {
    /// Now in the caller's list, link header written.
    pub sent: usize,
    /// Freed, because a copy was needed (the send queue shares the chunk) and the pool is dry.
    pub dropped: usize,
}

/// Paths, and the packets that wait for their neighbours.
#[derive(Debug)]
pub(crate) struct PathTable {
    paths: Vec<Path>,
    by_hop: BTreeMap<NextHop, PathId>,
    /// The latest answer of [`PathTable::path`]: behind one gateway each connection asks for the same.
    latest: Option<(NextHop, PathId)>,
    links: Vec<Option<Link>>,
    waiting: Waiting,
    /// Where the search for a path to recycle goes on.
    hand: usize,
}

impl PathTable {
    /// An empty table; `limits.neighbour_queue` bounds the packets that wait for one neighbour.
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            paths: Vec::new(),
            by_hop: BTreeMap::new(),
            latest: None,
            links: Vec::new(),
            waiting: Waiting::new(limits.neighbour_queue as usize),
            hand: 0,
        }
    }

    /// Lowers the number of packets that may wait in all, for a small pool of frames.
    pub(crate) fn limit_waiting(&mut self, packets: usize) {
        self.waiting.limit(packets);
    }

    /// Tells of an interface, or of a change to it. Existing paths are brought up to date.
    pub(crate) fn set_interface(&mut self, iface: IfaceId, interface: &Interface) {
        let slot = usize::from(iface.0);
        if self.links.len() <= slot {
            self.links.resize(slot + 1, None);
        }
        let link = Link::of(interface);
        for path in self.paths.iter_mut().filter(|path| path.iface == iface) {
            let neighbour = (path.state == PathState::Known).then(|| path.neighbour_mac());
            path.update(&link, neighbour.flatten());
        }
        self.links[slot] = Some(link);
    }

    /// The path to a next hop, made if there is none yet. `None` when the table is full of paths that
    /// work (answer `Error::NoBuffers`), or the interface is unknown.
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
            // Without link headers all ways are one: peers by the million, or those who claim to be, fill no table.
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

    /// The path. One that is gone is answered by a path in state `Stale`.
    #[inline]
    pub(crate) fn get(&self, id: PathId) -> &Path {
        match self.paths.get(id.index()) {
            Some(path) if path.generation == id.generation() => path,
            _ => &STALE,
        }
    }

    /// A neighbour's address (`Some`), or the news that it has none. `now` dates it.
    pub(crate) fn set_neighbour(
        &mut self,
        iface: IfaceId,
        addr: IpAddr,
        mac: Option<[u8; 6]>,
        now: Instant,
    ) -> NeighbourChange {
        let hop = NextHop { iface, addr: addr.to_canonical() };
        // Of an absent neighbour nothing need be remembered unless somebody wants it. A table full of
        // working paths forgets news about others: they will be asked for when needed.
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

    /// As [`PathTable::set_neighbour`] for what a neighbour says without being asked: changes paths that
    /// are in use and makes none, so that nobody on the link can fill the table.
    pub(crate) fn learn(&mut self, iface: IfaceId, addr: IpAddr, mac: [u8; 6], now: Instant) -> NeighbourChange {
        if !self.by_hop.contains_key(&NextHop { iface, addr: addr.to_canonical() }) {
            return NeighbourChange::None;
        }
        self.set_neighbour(iface, addr, Some(mac), now)
    }

    /// Forgets a neighbour's address: the next packet asks for it again.
    pub(crate) fn remove_neighbour(&mut self, iface: IfaceId, addr: IpAddr) {
        let hop = NextHop { iface, addr: addr.to_canonical() };
        let Some(id) = self.by_hop.get(&hop) else { return };
        let Some(Some(link)) = self.links.get(usize::from(iface.0)) else { return };
        let path = &mut self.paths[id.index()];
        path.update(link, link.fixed_mac(path.addr));
    }

    /// Lets a packet (IP header first, no link header) wait for its neighbour. For paths that are not
    /// `Known`; a packet for one that is, or is `Stale`, comes back as dropped.
    pub(crate) fn enqueue(&mut self, id: PathId, packet: Vec<TxFrame>, now: Instant) -> Enqueued {
        if !self.wants_neighbour(id, now) {
            return Enqueued { request: false, dropped: packet };
        }
        self.waiting.push(id, packet, now)
    }

    /// As [`PathTable::enqueue`] without a packet, for senders that keep theirs: starts asking. True when
    /// a request must be sent now.
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

    /// Moves what waited for a path that is now `Known` to `out`, link headers written, oldest first.
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

    /// The connect in slot `index` has sent a SYN by a path. Kept while its neighbour is being asked for.
    pub(crate) fn push_connect(&mut self, id: PathId, index: u32) {
        if self.get(id).state == PathState::Pending {
            self.waiting.push_connect(id, index);
        }
    }

    /// Connects that sent a SYN by a path while its neighbour was asked for; may name one twice, or one that has ended since.
    /// To be called when the neighbour has been given up.
    pub(crate) fn take_connects(&mut self, id: PathId) -> Vec<u32> {
        self.waiting.take_connects(id)
    }

    /// Runs what is due. `requests` gets the paths whose neighbour must be asked for (again), `failed` those
    /// that were given up with what waited for them (to be freed: `DropReason::NeighbourUnresolved`).
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
                // It was only asked whether it is still there: RFC 4861 7.3.3 discards the entry.
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

    /// When `tick` has something to do; may be early.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.waiting.next_deadline()
    }

    /// Gives back everything that waits, for shutting down.
    #[cfg(test)]
    pub(crate) fn drain(&mut self) -> Vec<Vec<TxFrame>> {
        self.waiting.drain()
    }

    /// Packets that wait for a neighbour.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.packets()
    }

    /// Entries of the table.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn len(&self) -> usize {
        self.paths.len()
    }

    /// Takes a path that leads nowhere out of the table. Looks at a bounded number: a table full of
    /// working paths must not cost a whole walk per new neighbour.
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
