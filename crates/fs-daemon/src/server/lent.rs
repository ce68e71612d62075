//! Ports that connections between processes come from. The daemon binds a socket of its own to each, as the kernel chooses it, so no other
//! socket of that namespace has it meanwhile; and it says which slot of which arena has which, where the opener cannot write
//! ([`fs_shm::Arena::set_port`]). So a process comes from a port that nobody else has, and its peer sees that without asking.
//!
//! A slot keeps its port when a connection ends: the next one needs none. It goes with the arena, or when the slot's memory goes back, or
//! when somebody asks for that port.

use super::arenas::{ArenaEntry, Opener, no_descriptor};
use super::limits::lent_max;
use super::requests::Answer;
use super::sweep::ROUND;
use super::{Server, share_of};
use crate::listeners::Netns;
use fs_shm::control::Reply;
use fs_shm::{Arena, LOWEST_PORT, Side};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Slots that get a port with the first one of an arena. More: each process that connects once takes as many. Fewer: who has a few
/// connections at once asks again.
const FIRST: u32 = 4;
/// Slots that get one at a time, at most: so long does it keep the control thread (about 3 µs each).
const MOST: u32 = 32;

/// The ports of an arena, by slot.
#[derive(Debug, Default)]
pub(super) struct Lent {
    /// The namespace that its opener connects from: they are bound in no other.
    netns: Option<Netns>,
    ports: BTreeMap<u32, Port>,
    /// When there were more than before.
    last: Option<Instant>,
}

#[derive(Debug)]
struct Port {
    number: u16,
    /// Holds it.
    _socket: OwnedFd,
}

impl Lent {
    /// Its opener connects from there. `false`: it has ports of another namespace.
    pub(super) fn is_from(&mut self, netns: Netns) -> bool {
        *self.netns.get_or_insert(netns) == netns
    }

    /// All that there are.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u16> + '_ {
        self.ports.values().map(|port| port.number)
    }

    /// How many there are in a namespace.
    fn count_in(&self, netns: Netns) -> usize {
        if self.netns == Some(netns) { self.ports.len() } else { 0 }
    }
}

/// The slots that get a port together with this one: as many as there are before them, so that who has ever more connections asks ever
/// more seldom.
fn block(slot: u32) -> std::ops::Range<u32> {
    let size = if slot < FIRST { FIRST } else { 1 << slot.ilog2() };
    let size = size.min(MOST);
    let first = slot - slot % size;
    first..first + size
}

/// Ports that are lent in one namespace, and who wants more of them.
#[derive(Clone, Copy)]
struct Taken {
    all: usize,
    /// That user's.
    theirs: usize,
    is_trusted: bool,
}

impl Taken {
    /// How many more that user may have where the kernel chooses from so many: half of them is others', and of what is lent half is
    /// other users', a sixteenth root's alone (as [`Server::has_room`]).
    fn left_of(self, range: usize) -> usize {
        let limit = range / 2;
        let left = |limit: usize| limit.saturating_sub(self.all);
        if self.is_trusted {
            return left(limit);
        }
        left(limit - limit / 16).min(share_of(limit).saturating_sub(self.theirs))
    }
}

/// Binds so many sockets at most to ports that the kernel chooses, where the calling thread is. `taken`: those that there are already.
fn bind(count: usize, taken: Taken) -> Vec<Port> {
    let count = count.min(taken.left_of(range()));
    let bound = (0..count).map_while(|_| bind_one().inspect_err(no_descriptor).ok());
    bound.filter(|port| port.number >= LOWEST_PORT).collect()
}

/// How many ports the kernel chooses from.
fn range() -> usize {
    /// What Linux begins with.
    const USUAL: usize = 28232;
    // Of the namespace of the thread that reads it.
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let ends = text.ok().and_then(|text| {
        let mut words = text.split_whitespace().map(str::parse::<usize>);
        Some((words.next()?.ok()?, words.next()?.ok()?))
    });
    ends.map_or(USUAL, |(first, last)| (last + 1).saturating_sub(first))
}

/// For IPv4 and IPv6 both, where there is IPv6.
fn bind_one() -> Result<Port, Errno> {
    let make = |family| rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, Some(ipproto::TCP));
    let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0);
    let both = make(AddressFamily::INET6).and_then(|socket| {
        sockopt::set_ipv6_v6only(&socket, false)?;
        rustix::net::bind(&socket, &any).map(|()| socket)
    });
    let socket = match both {
        Ok(socket) => socket,
        Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => {
            let socket = make(AddressFamily::INET)?;
            rustix::net::bind(&socket, &SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0))?;
            socket
        }
        Err(error) => return Err(error),
    };
    let at = SocketAddr::try_from(rustix::net::getsockname(&socket)?).map_err(|_| Errno::AFNOSUPPORT)?;
    Ok(Port { number: at.port(), _socket: socket })
}

impl Server {
    /// Answers [`fs_shm::control::Request::Lend`].
    pub(super) fn lend(&mut self, me: u32, arena: u32, slot: u32) -> Result<Answer, Errno> {
        let entry = self.arenas.get(arena).ok_or(Errno::NOENT)?;
        if entry.opener != Some(Opener::Process(me)) || entry.wire {
            return Err(Errno::ACCESS);
        }
        if slot >= self.geometry.slots {
            return Err(Errno::INVAL);
        }
        self.lend_block(me, arena, slot)?;
        Ok(Reply::Done.into())
    }

    /// The first ports of an arena that a process is led to. Without any its opener asks, and is told why.
    pub(super) fn lend_first(&mut self, me: u32, arena: u32) {
        let has_some = self.arenas.get(arena).is_some_and(|entry| !entry.lent.ports.is_empty());
        if !has_some && let Err(error) = self.lend_block(me, arena, 0) {
            tracing::debug!(%error, arena, "cannot lease a port");
        }
    }

    /// Gives a port to this slot, and to those with it that have none.
    fn lend_block(&mut self, me: u32, arena: u32, slot: u32) -> Result<(), Errno> {
        let uid = self.attachments.get(me).ok_or(Errno::NOTCONN)?.who.uid;
        let entry = self.arenas.get(arena).ok_or(Errno::NOENT)?;
        let netns = entry.lent.netns.ok_or(Errno::NOTCONN)?;
        let end = block(slot).end.min(self.geometry.slots);
        let mut wanted: Vec<u32> =
            (block(slot).start..end).filter(|slot| !entry.lent.ports.contains_key(slot)).collect();
        if !wanted.contains(&slot) {
            // Another thread has asked.
            return Ok(());
        }
        let count = |entry: &ArenaEntry| entry.lent.ports.len();
        let all: usize = self.arenas.values().map(count).sum();
        let lent_max = lent_max();
        let is_theirs = |entry: &&ArenaEntry| match entry.of.0 {
            Opener::Process(other) => {
                self.attachments.get(other).is_some_and(|other| self.is_one_user(other.who.uid, uid))
            }
            Opener::Core(_) => false,
        };
        let theirs = || self.arenas.values().filter(is_theirs).map(count).sum();
        if all >= lent_max || !self.has_room(uid, lent_max, all, theirs) {
            return Err(Errno::NOBUFS);
        }
        // The one that was asked for first, in case there are not enough for all.
        wanted.sort_by_key(|&other| other != slot);
        wanted.truncate(lent_max - all);
        let count_there = |entry: &ArenaEntry| entry.lent.count_in(netns);
        let taken = Taken {
            all: self.arenas.values().map(count_there).sum(),
            theirs: self.arenas.values().filter(is_theirs).map(count_there).sum(),
            is_trusted: self.is_trusted(uid),
        };
        let bound = if netns == self.namespaces.own() {
            bind(wanted.len(), taken)
        } else {
            let home = self.namespaces.get(netns).and_then(|namespace| namespace.home()).ok_or(Errno::ACCESS)?;
            let count = wanted.len();
            let visit = home.try_clone().and_then(|home| crate::netns::inside(home, move || Ok(bind(count, taken))));
            visit.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?
        };
        let geometry = self.geometry;
        let entry = self.arenas.get_mut(arena).ok_or(Errno::NOENT)?;
        for (slot, port) in wanted.into_iter().zip(bound) {
            Arena::set_port(entry.memory.all_locks(), geometry, slot, port.number)?;
            entry.lent.ports.insert(slot, port);
            entry.lent.last = Some(Instant::now());
        }
        if entry.lent.ports.contains_key(&slot) { Ok(()) } else { Err(Errno::ADDRNOTAVAIL) }
    }

    /// Gives back what free slots of an arena have of those ports; answers how many that were.
    fn take_back(&mut self, id: u32, most: usize, is_meant: impl Fn(u32, u16) -> bool) -> usize {
        let Some(entry) = self.arenas.get(id) else { return 0 };
        let meant = entry.lent.ports.iter().filter(|(slot, port)| is_meant(**slot, port.number));
        let meant: Vec<u32> = meant.map(|(slot, _)| *slot).collect();
        if meant.is_empty() {
            return 0;
        }
        let (Some(mapped), geometry) = (self.map(id, Side::A), self.geometry) else { return 0 };
        let Some(entry) = self.arenas.get_mut(id) else { return 0 };
        let mut taken = 0;
        for slot in meant {
            mapped.while_free(slot, || {
                // In this order: who is told of a port has it.
                if Arena::set_port(entry.memory.all_locks(), geometry, slot, 0).is_ok() {
                    entry.lent.ports.remove(&slot);
                    taken += 1;
                }
            });
            if taken == most {
                break;
            }
        }
        taken
    }

    /// The memory of free slots goes back: so do their ports, but for the first ones. Answers when there is more to do.
    pub(super) fn trim_ports(&mut self, id: u32, now: Instant) -> Option<Instant> {
        /// Some hundred µs. Fewer: more calls. More: the daemon answers late.
        const AT_ONCE: usize = 64;
        /// After the last ones were lent. Shorter: who has many connections now and then has them bound each time. Longer: other programs
        /// find idle ones in use.
        const KEPT: Duration = Duration::from_secs(5);
        let lent = &self.arenas.get(id)?.lent;
        lent.ports.range(FIRST..).next()?;
        let until = lent.last.map_or(now, |last| last + KEPT);
        if until > now {
            return Some(until);
        }
        (self.take_back(id, AT_ONCE, |slot, _| slot >= FIRST) == AT_ONCE).then_some(now + ROUND)
    }

    /// Whether connections from a namespace can have ports: the daemon can bind sockets there.
    pub(super) fn lends_in(&self, netns: Netns) -> bool {
        netns == self.namespaces.own() || self.namespaces.get(netns).is_some_and(|there| there.home().is_some())
    }

    /// Nobody opens connections in an arena any more.
    pub(super) fn end_lending(&mut self, id: u32) {
        self.take_back(id, usize::MAX, |_, _| true);
    }

    /// Somebody wants to bind a port, and found it in use.
    pub(super) fn give_way(&mut self, number: u16) {
        let has = |entry: &ArenaEntry| entry.lent.ports.values().any(|port| port.number == number);
        for id in self.arenas.ids_where(has) {
            self.take_back(id, usize::MAX, |_, port| port == number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    #[test]
    fn slots_get_their_ports_together() {
        let blocks =
            [(0, 0..4), (3, 0..4), (4, 4..8), (9, 8..16), (31, 16..32), (32, 32..64), (16_383, 16_352..16_384)];
        for (slot, of_it) in blocks {
            assert_eq!(block(slot), of_it, "{slot}");
        }
    }

    #[test]
    fn a_bound_port_is_nobody_elses() {
        let none = Taken { all: 0, theirs: 0, is_trusted: true };
        let ports = bind(3, none);
        assert_eq!(ports.len(), 3);
        for port in &ports {
            for ip in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv4Addr::UNSPECIFIED.into()] {
                let error = std::net::TcpListener::bind((ip, port.number)).unwrap_err();
                assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
            }
        }
        assert!(bind(3, Taken { all: range() / 2, ..none }).is_empty(), "half of all is the kernel's");
    }

    #[test]
    fn no_two_users_have_all_ports_of_a_namespace() {
        let left = |all, theirs, is_trusted| Taken { all, theirs, is_trusted }.left_of(3200);
        assert_eq!(left(0, 0, false), 800, "half of what is lent is other users'");
        assert_eq!(left(800, 800, false), 0);
        assert_eq!(left(800, 0, false), 700, "a sixteenth is root's");
        assert_eq!(left(1500, 700, false), 0);
        assert_eq!(left(1500, 0, true), 100);
        assert_eq!(left(1600, 0, true), 0, "half of all is the kernel's");
        assert_eq!([0, 1, 2].map(|range| Taken { all: 0, theirs: 0, is_trusted: false }.left_of(range)), [0, 0, 1]);
    }
}
