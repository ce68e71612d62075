//! Network namespaces: those that processes have sockets in, what is local to each, whose rules have a say, and what changes in them.

use super::Server;
use super::arenas::no_descriptor;
use super::events::Token;
use super::limits::{NAMESPACES, NAMESPACES_MAX};
use super::listen::ListenerMemory;
use super::place::Placeholder;
use crate::config::Heed;
use crate::joins::Joins;
use crate::listeners::{Listener, Netns, Takes};
use crate::netns::{self, Flow, KernelRoute, Namespace};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Between two times that changes in namespaces of others are seen to. Lower: whoever has one keeps the control thread, and every process
/// that asks anew, as busy. Higher: what was answered before is believed for longer.
const EASE: Duration = Duration::from_millis(100);

/// The table.
#[derive(Debug)]
pub(super) struct Namespaces {
    own: Netns,
    /// `None`: it cannot be opened (then only its loopback addresses are known).
    known: HashMap<Netns, Option<Namespace>>,
    /// Those in whose connections rules of a firewall could have a say, as of the last look.
    ruled: HashSet<Netns>,
    put_off: PutOff,
}

impl Namespaces {
    pub(super) fn new() -> io::Result<Self> {
        let put_off = PutOff::new(Instant::now());
        Ok(Self { own: netns::own()?, known: HashMap::new(), ruled: HashSet::new(), put_off })
    }

    /// The daemon's own, whose device is the wire.
    pub(super) fn own(&self) -> Netns {
        self.own
    }

    /// One that could be opened.
    pub(super) fn get(&self, netns: Netns) -> Option<&Namespace> {
        self.known.get(&netns)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, netns: Netns) -> Option<&mut Namespace> {
        self.known.get_mut(&netns)?.as_mut()
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    pub(super) fn all(&self) -> Vec<Netns> {
        self.known.keys().copied().collect()
    }

    /// Whether an address is the kernel's own there.
    pub(super) fn is_local(&self, netns: Netns, ip: IpAddr) -> bool {
        ip.is_loopback() || self.get(netns).is_some_and(|namespace| namespace.has(ip))
    }

    /// The one other namespace that is joined with this one and has this address; `None` also when several have it.
    pub(super) fn joined_with(&self, joins: &Joins, not: Netns, ip: IpAddr) -> Option<Netns> {
        let has = |(&netns, namespace): (&Netns, &Option<Namespace>)| {
            (netns != not && joins.join(not, netns) && namespace.as_ref()?.has(ip)).then_some(netns)
        };
        let mut found = self.known.iter().filter_map(has);
        let first = found.next()?;
        found.next().is_none().then_some(first)
    }

    /// What [`Server::heed_rules`] has found last.
    pub(super) fn was_ruled(&self, netns: Netns) -> bool {
        self.ruled.contains(&netns)
    }

    fn set_ruled(&mut self, netns: Netns, is_ruled: bool) {
        if is_ruled {
            self.ruled.insert(netns)
        } else {
            self.ruled.remove(&netns)
        };
    }

    /// Our sockets in it would keep it alive. Closing them takes them out of the set of events.
    pub(super) fn forget(&mut self, netns: Netns) {
        self.known.remove(&netns);
        self.ruled.remove(&netns);
    }
}

/// Changes that are seen to together, ten times a second at most.
#[derive(Debug)]
struct PutOff {
    last: Instant,
    /// Where something has changed since.
    changed: HashSet<Netns>,
}

impl PutOff {
    fn new(now: Instant) -> Self {
        Self { last: now, changed: HashSet::new() }
    }

    /// When changes may be seen to again.
    fn next(&self) -> Instant {
        self.last + EASE
    }

    /// A change is seen to at once, if that may be. `false`: it is put off.
    fn take(&mut self, now: Instant, netns: Netns) -> bool {
        if now < self.next() {
            self.changed.insert(netns);
            return false;
        }
        self.last = now;
        true
    }

    /// All that was put off, once it is time.
    fn take_due(&mut self, now: Instant) -> HashSet<Netns> {
        if self.changed.is_empty() || now < self.next() {
            return HashSet::new();
        }
        self.last = now;
        std::mem::take(&mut self.changed)
    }

    /// When what is put off is due.
    fn due(&self) -> Option<Instant> {
        (!self.changed.is_empty()).then(|| self.next())
    }
}

impl Server {
    /// Opens a namespace if it can be, and watches its addresses.
    pub(super) fn open_namespace(&mut self, netns: Netns, pid: u32) {
        if self.namespaces.get(netns).is_some() {
            return;
        }
        let namespace = match Namespace::open(pid, netns) {
            Ok(namespace) => match self.watch_namespace(&namespace, netns) {
                Ok(()) => Some(namespace),
                Err(error) => {
                    tracing::warn!(%error, "cannot watch a network namespace for changes");
                    None
                }
            },
            Err(error) => {
                if let Some(errno) = Errno::from_io_error(&error) {
                    no_descriptor(&errno);
                }
                tracing::debug!(
                    %error,
                    netns,
                    pid,
                    "cannot enter a network namespace: the kernel carries its connections"
                );
                None
            }
        };
        self.namespaces.known.insert(netns, namespace);
    }

    fn watch_namespace(&self, namespace: &Namespace, netns: Netns) -> Result<(), Errno> {
        self.events.watch(namespace.as_fd(), Token::Namespace(netns))?;
        namespace.firewall().map_or(Ok(()), |firewall| self.events.watch(firewall, Token::Firewall(netns)))
    }

    /// A process has a socket in a namespace. `false`: it has them in too many, or its user has.
    pub(super) fn enter_namespace(&mut self, me: u32, netns: Netns) -> bool {
        let Some(attachment) = self.attachments.get(me) else { return false };
        if attachment.namespaces.contains(&netns) {
            return true;
        }
        let who = attachment.who;
        let of_user = self.attachments.values().filter(|attachment| self.is_one_user(attachment.who.uid, who.uid));
        let theirs = || of_user.flat_map(|attachment| &attachment.namespaces).collect::<HashSet<_>>().len();
        let is_known = self.namespaces.known.contains_key(&netns);
        let all = self.namespaces.len();
        let is_full = all >= NAMESPACES_MAX || !self.has_room(who.uid, NAMESPACES_MAX, all, theirs);
        if attachment.namespaces.len() >= NAMESPACES || !is_known && is_full {
            return false;
        }
        self.open_namespace(netns, who.pid);
        self.attachments.get_mut(me).is_some_and(|attachment| attachment.namespaces.insert(netns))
    }

    pub(super) fn release_namespace(&mut self, netns: Netns) {
        let used = self.attachments.values().any(|attachment| attachment.namespaces.contains(&netns));
        if !used && netns != self.namespaces.own() {
            self.namespaces.forget(netns);
            self.forget_ports(netns);
        }
    }

    pub(super) fn namespace_changed(&mut self, netns: Netns) {
        let due = self.namespaces.put_off.next();
        if netns != self.namespaces.own() && Instant::now() < due {
            // Whoever has the namespace decides how many notices there are: they wait in the socket, which holds few and tells that
            // more were lost. Taken out of the set meanwhile, as a loss is always reported.
            if let Some(namespace) = self.namespaces.get(netns) {
                self.events.unwatch(namespace.as_fd());
            }
            self.namespaces.put_off.changed.insert(netns);
            self.sweep_at(due);
            return;
        }
        if self.namespaces.get_mut(netns).is_some_and(Namespace::follow) {
            self.changed(netns);
        }
    }

    /// Rules of the kernel's firewall have changed.
    pub(super) fn rules_changed(&mut self, netns: Netns) {
        if self.namespaces.get_mut(netns).is_some_and(Namespace::follow_firewall) {
            self.changed(netns);
        }
    }

    /// Addresses, routes or rules of a namespace have changed. What others do in theirs is seen to ten times a second at most: each time
    /// all processes ask anew.
    fn changed(&mut self, netns: Netns) {
        if netns == self.namespaces.own() || self.namespaces.put_off.take(Instant::now(), netns) {
            self.heed_rules(netns);
            self.bump();
        } else {
            self.sweep_at(self.namespaces.put_off.next());
        }
    }

    /// What was put off; answers when more is due.
    pub(super) fn see_to_late(&mut self, now: Instant) -> Option<Instant> {
        let due = self.namespaces.put_off.take_due(now);
        for &netns in &due {
            if let Some(namespace) = self.namespaces.get_mut(netns) {
                namespace.follow();
                match self.events.watch(namespace.as_fd(), Token::Namespace(netns)) {
                    // It was put off for its rules.
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => tracing::warn!(%error, "cannot watch a network namespace for changes any more"),
                }
            }
            self.heed_rules(netns);
        }
        if !due.is_empty() {
            self.bump();
        }
        self.namespaces.put_off.due()
    }

    /// Whether rules of the kernel's firewall could have a say in connections of a namespace.
    pub(super) fn is_ruled(&mut self, netns: Netns) -> bool {
        self.config.firewall == Heed::Obey && self.namespaces.get_mut(netns).is_some_and(Namespace::is_ruled)
    }

    pub(super) fn heed_rules_everywhere(&mut self) {
        self.namespaces.all().into_iter().for_each(|netns| self.heed_rules(netns));
    }

    /// Nothing new is accelerated in a namespace whose rules could have a say in it, whatever its processes remember or were given;
    /// where they could no more, it is again. What is open and could be stopped by a rule ends.
    pub(super) fn heed_rules(&mut self, netns: Netns) {
        let is_ruled = self.is_ruled(netns);
        self.namespaces.set_ruled(netns, is_ruled);
        let its = |listener: &Listener<ListenerMemory>| listener.netns == netns && listener.takes != Takes::None;
        for id in self.listeners.ids_where(its) {
            match is_ruled {
                true => self.leave_wire(id),
                false if self.listeners.get(id).is_some_and(|it| it.takes == Takes::All && !it.more.on_wire) => {
                    self.listen_on_wire(id)
                }
                false => {}
            }
        }
        if is_ruled {
            self.end_ways(netns);
            self.end_flows(netns);
        }
    }

    pub(super) fn kernel_route(&self, from: Placeholder, to: SocketAddr) -> Option<KernelRoute> {
        self.namespaces.get(from.netns)?.route(from.flow(to)).ok()
    }

    /// Whether the kernel would send a connection of the daemon's own namespace by the device, whatever port it comes from.
    pub(super) fn goes_by_device(&self, flow: Flow) -> bool {
        let Some(device) = self.wire.as_ref().map(|wire| wire.device().0) else { return false };
        let Some(own) = self.namespaces.get(self.namespaces.own()) else { return false };
        let route = own.route(flow);
        route.is_ok_and(|route| route.unicast && route.device == device)
            && matches!(own.has_multiple_next_hops(flow), Ok(false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_seen_to_ten_times_a_second() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let mut put_off = PutOff::new(begin);
        assert!(!put_off.take(at(10), 1) && !put_off.take(at(20), 2) && !put_off.take(at(99), 1));
        assert_eq!((put_off.due(), put_off.take_due(at(99))), (Some(at(100)), HashSet::new()));
        assert_eq!(put_off.take_due(at(105)), HashSet::from([1, 2]));
        assert_eq!((put_off.due(), put_off.take_due(at(300))), (None, HashSet::new()));
        // The next may be at once, and is the last for a while again.
        assert!(put_off.take(at(205), 1) && !put_off.take(at(304), 1) && put_off.take(at(305), 2));
        assert_eq!(put_off.due(), Some(at(405)), "what was put off stays so");
    }

    #[test]
    fn one_that_cannot_be_opened_has_its_loopback() {
        let mut all = Namespaces::new().unwrap();
        let other = all.own() ^ 1;
        all.known.insert(other, None);
        all.set_ruled(other, true);
        let (loopback, address) = ("127.0.0.1".parse().unwrap(), "192.0.2.1".parse().unwrap());
        assert!(all.get(other).is_none() && all.len() == 1);
        assert!(all.is_local(other, loopback) && !all.is_local(other, address));
        assert_eq!(all.joined_with(&Joins::default(), all.own(), address), None);
        assert!(all.was_ruled(other));
        all.forget(other);
        assert!(!all.was_ruled(other) && all.all().is_empty());
    }
}
