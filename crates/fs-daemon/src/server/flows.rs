//! Open connections that the kernel would stop: rules of its firewall or programs of a cgroup have come since they were made. They end
//! as by a reset (`firewall_open_flows`). And a look, from time to time, at what the kernel tells nobody of.

use super::Server;
use super::arenas::{Acceptor, ArenaEntry, Opener};
use super::attach::Attachment;
use super::cgroups::path_of;
use crate::config::{Heed, OpenFlows};
use crate::firewall::{Flow, Way};
use crate::listeners::{Netns, Takes, unmapped};
use fs_shm::control::KernelReason;
use fs_shm::{Errno, Side};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

/// Between two glances, while processes have connections. Lower: the daemon wakes up as often. Higher: so long a rule of
/// iptables-legacy or a program of a cgroup stops nothing.
const GLANCE: Duration = Duration::from_millis(400);
/// A glance takes this part of the control thread's time at most.
const SHARE: u32 = 50;
/// So long it may take at once. Longer: who asks something just then waits for it. Shorter: as many more wake-ups with thousands of
/// processes.
const SLICE: Duration = Duration::from_millis(1);

impl Server {
    /// The namespaces that connections to these pass, beside the opener's.
    pub(super) fn namespaces_of(&self, acceptor: Acceptor) -> HashSet<Netns> {
        match acceptor {
            Acceptor::Core(_) => HashSet::from([self.namespaces.own()]),
            Acceptor::Listener(listener) => {
                self.listeners.get(listener).map(|listener| listener.netns).into_iter().collect()
            }
        }
    }

    /// Nothing new comes by memory that was given out for connections which pass a namespace.
    pub(super) fn end_ways(&mut self, netns: Netns) {
        let leads = |entry: &ArenaEntry| match entry.acceptor {
            Some(Acceptor::Listener(listener)) if entry.namespaces.contains(&netns) => Some(listener),
            _ => None,
        };
        let ways: Vec<(u32, u32)> = self.arenas.iter().filter_map(|(id, entry)| Some((id, leads(entry)?))).collect();
        for (id, listener) in ways {
            self.end_arena(listener, id);
            self.list_arenas(listener);
        }
    }

    /// Resets the open connections of a namespace that one of its rules could stop.
    pub(super) fn end_flows(&mut self, netns: Netns) {
        if self.config.open_flows == OpenFlows::Keep {
            return;
        }
        let its = self.arenas.iter().filter(|(_, entry)| entry.namespaces.contains(&netns) && !entry.stopped);
        let of_arenas: Vec<(u32, Option<Vec<Flow>>)> = its.map(|(id, entry)| (id, self.flows_of(entry))).collect();
        // Whoever has another namespace decides how many rules there are to be read, and how often.
        if netns != self.namespaces.own() {
            return of_arenas.iter().for_each(|(id, _)| self.stop(*id));
        }
        let all: HashSet<Flow> = of_arenas.iter().filter_map(|(_, flows)| flows.as_ref()).flatten().cloned().collect();
        let all: Vec<Flow> = all.into_iter().collect();
        let Some(namespace) = self.namespaces.get_mut(netns) else { return };
        let touched = namespace.could_touch(&all);
        let touched: HashMap<&Flow, bool> = all.iter().zip(touched).collect();
        let is_touched = |flow: &Flow| touched.get(flow).is_none_or(|touched| *touched);
        let over = |flows: &Option<Vec<Flow>>| flows.as_ref().is_none_or(|flows| flows.iter().any(is_touched));
        let ended: Vec<u32> = of_arenas.iter().filter(|(_, flows)| over(flows)).map(|&(id, _)| id).collect();
        ended.into_iter().for_each(|id| self.stop(id));
    }

    /// What the connections of an arena are to rules; `None`: they could be any. They come from the ports that are lent, used now or not.
    fn flows_of(&self, entry: &ArenaEntry) -> Option<Vec<Flow>> {
        if !entry.wire {
            let way = if entry.namespaces.len() == 1 { Way::Loopback } else { Way::Any };
            let ports: BTreeSet<u16> = entry.lent.numbers().collect();
            let flow = |&(from, to)| Flow { from: Some(from), to, ports: Some(ports.clone()), way };
            return (!entry.ends.is_empty()).then(|| entry.ends.iter().map(flow).collect());
        }
        let (Opener::Core(_), Acceptor::Listener(listener)) = entry.of else { return None };
        let at = self.listeners.get(listener)?.at;
        let at = SocketAddr::new(unmapped(at.ip()), at.port());
        let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), at.port());
        let is_for_both = at.is_ipv6() && at.ip().is_unspecified();
        let places = [Some(at), is_for_both.then_some(any)].into_iter().flatten();
        Some(places.map(|to| Flow { from: None, to, ports: None, way: Way::In }).collect())
    }

    /// The connections of an arena end. Where it goes on being used they are those of now.
    fn stop(&mut self, id: u32) {
        let Some(entry) = self.arenas.get_mut(id) else { return };
        entry.stopped = entry.is_dying();
        self.reset_flows(id);
        self.look_soon(id);
    }

    /// As a process's own end would do it: so a core tells the other host.
    pub(super) fn reset_flows(&self, id: u32) {
        let is_core = |opener| matches!(opener, Opener::Core(_));
        let Some(side) = self.arenas.get(id).map(|entry| if is_core(entry.of.0) { Side::B } else { Side::A }) else {
            return;
        };
        let ended = self.map(id, side).map_or(0, |arena| arena.reset_all(Errno::CONNRESET));
        if ended != 0 {
            tracing::info!(
                arena = id,
                ended,
                "resets open connections: a new firewall rule or cgroup program could \
                                               stop them (see firewall_open_flows)"
            );
        }
    }

    /// There is something to be looked at from time to time.
    pub(super) fn glance_soon(&mut self) {
        self.schedule.glance_by(Instant::now() + GLANCE);
    }

    /// Answers when the next one is due.
    pub(super) fn glance_if_due(&mut self, now: Instant) -> Option<Instant> {
        if self.schedule.is_glance_due(now) {
            let begun = Instant::now();
            let is_over = self.glance();
            let least = if is_over { GLANCE } else { Duration::ZERO };
            let pause = least.max(begun.elapsed() * SHARE);
            self.schedule.set_glance((self.arenas.len() != 0).then(|| Instant::now() + pause));
        }
        self.schedule.glance()
    }

    /// Sockets that listen elsewhere, rules of iptables-legacy, programs of cgroups: nobody is told of these. `false`: the rest of the
    /// processes is for the next time.
    fn glance(&mut self) -> bool {
        if self.glanced_to != 0 {
            return self.glance_at_cgroups();
        }
        for id in self.listeners.ids_where(|listener| listener.takes != Takes::None && !listener.is_at_its_place()) {
            self.listens_no_more(id);
        }
        for netns in self.namespaces.all() {
            if self.is_ruled(netns) != self.namespaces.was_ruled(netns) {
                self.heed_rules(netns);
                self.bump();
            }
        }
        self.config.firewall != Heed::Obey || !self.cgroups.are_there() || self.glance_at_cgroups()
    }

    fn glance_at_cgroups(&mut self) -> bool {
        let mut known: HashMap<String, bool> = HashMap::new();
        let mut ruled = Vec::new();
        let wanted = |(id, of): (u32, &Attachment)| (id >= self.glanced_to && !of.arenas.is_empty()).then_some(id);
        let mut ids: Vec<u32> = self.attachments.iter().filter_map(wanted).collect();
        ids.sort_unstable();
        self.glanced_to = 0;
        let begun = Instant::now();
        for id in ids {
            if begun.elapsed() > SLICE {
                self.glanced_to = id;
                break;
            }
            let Some(attachment) = self.attachments.get(id) else { continue };
            // One that has just ended has none.
            let Some(path) = path_of(attachment.who.pid) else { continue };
            let has = match known.get(&path) {
                Some(has) => *has,
                None => {
                    // What cannot be asked now (no descriptor is left) is asked with the next glance: it ends nobody.
                    let has = self.cgroups.has_programs(&path).unwrap_or(false);
                    known.insert(path, has);
                    has
                }
            };
            if has {
                ruled.push(id);
            }
        }
        ruled.into_iter().for_each(|id| self.leave_to_programs(id));
        self.glanced_to == 0
    }

    /// A process's cgroup has programs: what it does from here on is the kernel's.
    fn leave_to_programs(&mut self, me: u32) {
        let Some(attachment) = self.attachments.get(me) else { return };
        let (listeners, arenas) = (attachment.listeners.clone(), attachment.arenas.clone());
        let mut changed = false;
        for id in listeners {
            if self.listeners.get(id).is_some_and(|listener| listener.takes == Takes::All) {
                self.leave_to_kernel(id, KernelReason::Firewall);
                changed = true;
            }
        }
        for id in arenas.into_keys() {
            let Some(entry) = self.arenas.get(id).filter(|entry| !entry.stopped) else { continue };
            if let Some(Acceptor::Listener(listener)) = entry.acceptor {
                self.end_arena(listener, id);
                self.list_arenas(listener);
                changed = true;
            }
            if self.config.open_flows == OpenFlows::End {
                self.stop(id);
            }
        }
        if changed {
            self.bump();
        }
    }
}
