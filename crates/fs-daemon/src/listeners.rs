//! Who listens where, and who of them gets a connection: the kernel's rules (`__inet_lookup_listener`, `compute_score`
//! in `net/ipv4/inet_hashtables.c`, `net/ipv6/inet6_hashtables.c`).
//!
//! An address beats the wildcard; among wildcards an IPv4 socket beats a dual-stack one for IPv4 connections.
//! Listeners that share place and SO_REUSEPORT are a group: each connection goes to one of them, in turn.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Instant;

/// A network namespace's cookie (SO_NETNS_COOKIE).
pub(crate) type Netns = u64;

/// What becomes of connections to a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    /// They are ours.
    All,
    /// Those that wait are accepted; new ones are the kernel's, as an option was set that only it has.
    Waiting,
    /// All who hold it have had new images since then, which have not taken it over: new ones are the kernel's.
    Suspended(Instant),
    /// It was shut down, and listens no more.
    None,
}

/// One listener.
#[derive(Debug)]
pub(crate) struct Listener<M> {
    pub(crate) netns: Netns,
    pub(crate) at: SocketAddr,
    pub(crate) v6_only: bool,
    pub(crate) backlog: u32,
    pub(crate) cookie: u64,
    pub(crate) takes: Takes,
    /// The attachments that hold a descriptor of it.
    pub(crate) holders: HashSet<u32>,
    /// Its memory and what else belongs to it.
    pub(crate) more: M,
}

/// Everything about a place but its members: two listeners of equal place are in one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct GroupKey {
    /// The bound address; an IPv4 address that was bound as a mapped one is that IPv4 address.
    ip: IpAddr,
    v6_only: bool,
}

/// All listeners.
#[derive(Debug)]
pub(crate) struct Listeners<M> {
    all: BTreeMap<u32, Listener<M>>,
    ports: HashMap<(Netns, u16), Vec<u32>>,
    next: u32,
    /// Counts choices, so that groups are served in turn.
    turn: usize,
}

/// `::ffff:a.b.c.d` is an IPv4 address.
pub(crate) fn unmapped(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
}

impl<M> Listener<M> {
    fn group_key(&self) -> GroupKey {
        GroupKey { ip: unmapped(self.at.ip()), v6_only: self.v6_only }
    }

    /// How well it fits a connection to `to` (unmapped): the higher the better; `None` if not at all.
    fn score(&self, to: IpAddr) -> Option<u32> {
        let ip = unmapped(self.at.ip());
        // IPv4 before dual-stack: `if (sk->sk_family == PF_INET) score++` in compute_score.
        let family = u32::from(self.at.is_ipv4());
        if ip == to {
            return Some(4 + family);
        }
        match ip {
            IpAddr::V4(any) if any.is_unspecified() && to.is_ipv4() => Some(2 + family),
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) if to.is_ipv6() || !self.v6_only => Some(2 + family),
            _ => None,
        }
    }
}

impl<M> Default for Listeners<M> {
    fn default() -> Self {
        Self { all: BTreeMap::new(), ports: HashMap::new(), next: 1, turn: 0 }
    }
}

impl<M> Listeners<M> {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Listener<M>> {
        self.all.values()
    }

    /// The numbers of those that fit.
    pub(crate) fn ids_where(&self, fits: impl Fn(&Listener<M>) -> bool) -> Vec<u32> {
        self.all.iter().filter(|(_, listener)| fits(listener)).map(|(&id, _)| id).collect()
    }

    pub(crate) fn get(&self, id: u32) -> Option<&Listener<M>> {
        self.all.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut Listener<M>> {
        self.all.get_mut(&id)
    }

    /// Enters a listener; answers its number.
    pub(crate) fn insert(&mut self, listener: Listener<M>) -> u32 {
        // Numbers come again after 4 billion listeners, and then not those in use.
        while self.next == 0 || self.all.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        self.ports.entry((listener.netns, listener.at.port())).or_default().push(id);
        self.all.insert(id, listener);
        id
    }

    pub(crate) fn remove(&mut self, id: u32) -> Option<Listener<M>> {
        let listener = self.all.remove(&id)?;
        let key = (listener.netns, listener.at.port());
        if let Some(there) = self.ports.get_mut(&key) {
            there.retain(|&other| other != id);
            if there.is_empty() {
                self.ports.remove(&key);
            }
        }
        Some(listener)
    }

    /// The listener of a placeholder socket.
    pub(crate) fn of_cookie(&self, netns: Netns, port: u16, cookie: u64) -> Option<u32> {
        let there = self.ports.get(&(netns, port))?;
        there.iter().copied().find(|id| self.all.get(id).is_some_and(|listener| listener.cookie == cookie))
    }

    /// The same of one that was shut down, which the kernel may have given another place since: it listens there from now on.
    pub(crate) fn again(&mut self, netns: Netns, at: SocketAddr, cookie: u64) -> Option<u32> {
        let is_here = |&id: &u32| self.all.get(&id).is_some_and(|listener| listener.at == at);
        if let known @ Some(_) = self.of_cookie(netns, at.port(), cookie).filter(is_here) {
            return known;
        }
        let is_it = |of: &Listener<M>| of.takes == Takes::None && of.cookie == cookie && of.netns == netns;
        let id = self.all.iter().find(|(_, listener)| is_it(listener)).map(|(&id, _)| id)?;
        let mut listener = self.remove(id)?;
        listener.at = at;
        self.ports.entry((netns, at.port())).or_default().push(id);
        self.all.insert(id, listener);
        Some(id)
    }

    /// The listener of a placeholder socket that is elsewhere by now.
    pub(crate) fn moved(&self, netns: Netns, at: SocketAddr, cookie: u64) -> Option<u32> {
        let is_it =
            |of: &Listener<M>| of.cookie == cookie && of.netns == netns && of.at != at && of.takes != Takes::None;
        self.all.iter().find(|(_, listener)| is_it(listener)).map(|(&id, _)| id)
    }

    /// Who gets a connection to `to` in `netns`: the members of the group that fits best, another one first each time.
    pub(crate) fn find(&mut self, netns: Netns, to: SocketAddr) -> Vec<u32> {
        let ip = unmapped(to.ip());
        let Some(there) = self.ports.get(&(netns, to.port())) else { return Vec::new() };
        let listens = |id: &u32| self.all.get(id).filter(|listener| listener.takes != Takes::None);
        let fits = |id: &u32| Some((listens(id)?.score(ip)?, *id));
        let Some((best, first)) = there.iter().filter_map(fits).max_by_key(|&(score, id)| (score, u32::MAX - id))
        else {
            return Vec::new();
        };
        let place = self.all[&first].group_key();
        let of_group =
            |id: &&u32| self.all.get(id).is_some_and(|it| it.score(ip) == Some(best) && it.group_key() == place);
        let takes = |id: &&u32, what: Takes| self.all.get(id).is_some_and(|listener| listener.takes == what);
        if there.iter().filter(of_group).any(|id| takes(&id, Takes::Waiting)) {
            // One of them is the kernel's, by an option that may choose for the whole group (SO_ATTACH_REUSEPORT_CBPF): the kernel
            // chooses.
            return Vec::new();
        }
        let mut group: Vec<u32> = there.iter().filter(of_group).filter(|id| takes(id, Takes::All)).copied().collect();
        let turn = self.turn % group.len().max(1);
        group.rotate_left(turn);
        self.turn = self.turn.wrapping_add(1);
        group
    }
}

#[cfg(test)]
mod tests;
