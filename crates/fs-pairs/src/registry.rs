//! Offers that wait for their other end, and matched pairs. No system call here takes the lock of an
//! offered socket: the service's loop gets what a thread of the socket's user has seen
//! ([`crate::closing`]).
//!
//! An offer holds a duplicate of its descriptor while it waits: otherwise the check that both ends
//! are established could read another socket. A process that closes the socket sends a message
//! first ([`Registry::forget`]), because the kernel sends the FIN only after the duplicate is
//! closed.

mod rows;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::closing::Foreign;
use crate::counters::Counters;
use crate::facts::{self, Facts, Seen};
use crate::listing::Process;
use crate::message::{Number, Reason};

/// An offer: a client's connection to the service, and the number that the client gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) client: u64,
    pub(crate) number: Number,
}

/// Limits, so that no client can make the service grow.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum time that an offer waits for its other end. Longer: a close(2) that the library does
    /// not see ends the connection later, because the duplicate keeps it open. Shorter: both ends
    /// must make their first calls closer together.
    pub wait: Duration,
    /// Waiting offers of one process. The service holds a descriptor for each.
    pub offers_of_process: usize,
    /// Offers that wait. One user other than root may have half of them.
    pub offers: usize,
    /// Ends of pairs. The pairs of one user other than root may have half of them.
    pub ends: usize,
    /// Connections of processes. One user other than root may have half of them.
    pub clients: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { wait: Duration::from_millis(250), offers_of_process: 1024, offers: 4096, ends: 60_000, clients: 8192 }
    }
}

/// Returns whether a process may have a ring for a connection between these addresses, its own and
/// the peer's.
pub type Permit = Box<dyn Fn(&Process, SocketAddr, SocketAddr) -> bool + Send>;

/// Takes over a process's connection.
pub type Broker = Box<dyn Fn(OwnedFd, Process) + Send>;

/// Adds the counters of another part of the daemon.
pub type CountWire = Box<dyn Fn(&mut Counters) + Send>;

/// The result of an offer.
#[derive(Debug)]
pub(crate) enum Outcome {
    Waits,
    Refused(Reason),
    /// A waiting offer seems to be of the other end. Its socket must be read again, and then
    /// [`Registry::seen_again`] be called.
    Again(Again, Arc<Foreign>),
    /// The socket of this waiting offer is the other end.
    Matched(Key),
}

/// Two offers whose sockets seem to be one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Again {
    /// The offer whose socket is read again.
    first: Key,
    /// The other offer.
    second: Key,
    /// A number that is used once. A client can use the number of an offer again.
    id: u64,
}

#[derive(Debug)]
enum Held {
    Waiting(Waiting),
    End { pair: u64 },
}

/// An offer without an answer.
#[derive(Debug)]
struct Waiting {
    seen: Seen,
    fd: Arc<Foreign>,
    deadline: Instant,
    role: Role,
}

/// What a waiting offer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// An offer of the other end.
    Alone,
    /// The same, and it is the first of these two.
    First(Again),
    /// It is the second of these two. It counts for no limit and is not in `Registry::waiting`: there
    /// is at most one for each [`Role::First`].
    Second(Again),
}

/// A pair that was promoted.
#[derive(Debug)]
struct Pair {
    /// Facts of the end that was offered first.
    facts: Facts,
    /// SO_COOKIE of the other end.
    other_cookie: u64,
    since: Instant,
    /// The ends that have not sent [`Registry::forget`].
    ends: [Option<Key>; 2],
    processes: [Process; 2],
    /// The region, for its counters.
    file: Option<Arc<OwnedFd>>,
}

/// An offer that was refused.
#[derive(Debug)]
struct Refused {
    number: u64,
    at: Instant,
    facts: Facts,
    process: Process,
    reason: Reason,
}

/// Everything that one client holds.
#[derive(Clone, Copy, Debug)]
struct Holder {
    process: Process,
    offers: usize,
    /// This client's sockets that a thread reads again, also after their offers have ended: the thread
    /// still holds the duplicate. And its offers that wait for such a thread ([`Role::Second`]).
    undecided: usize,
}

/// What one user's processes hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OfUser {
    /// Pairs of which the user has an end. A pair that one side has forgotten counts for the other side's user
    /// alone: nobody else can end it.
    pairs: usize,
    offers: usize,
}

/// Network namespace, own address and the peer's address. No two live sockets share them.
type Place = (u64, SocketAddr, SocketAddr);

/// All offers and pairs.
#[derive(Default)]
pub(crate) struct Registry {
    /// `None`: every process may have rings.
    pub(crate) permit: Option<Permit>,
    pub(crate) wire: Option<CountWire>,
    limits: Limits,
    holders: HashMap<u64, Holder>,
    /// Users with offers or ends of pairs.
    users: HashMap<u32, OfUser>,
    held: BTreeMap<Key, Held>,
    waiting: HashMap<Place, Key>,
    deadlines: BTreeMap<(Instant, Key), ()>,
    pairs: BTreeMap<u64, Pair>,
    /// The pair of each socket that has one.
    paired: HashMap<u64, u64>,
    last_pair: u64,
    last_again: u64,
    /// The first of these two is gone, and the second one waits for no answer of a thread.
    released: Vec<Again>,
    refused: VecDeque<Refused>,
    last_refused: u64,
    /// Bytes of ended pairs. The other pairs' bytes are in their regions, and current numbers are
    /// computed.
    counted: Counters,
    /// The answer to the last request for counters, and its time.
    last_counters: Option<(Instant, Counters)>,
}

fn place(facts: &Facts) -> Place {
    (facts.netns, facts.local, facts.peer)
}

fn mirrored(facts: &Facts) -> Place {
    (facts.netns, facts.peer, facts.local)
}

impl core::fmt::Debug for Registry {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (offers, pairs) = (self.waiting.len(), self.pairs.len());
        f.debug_struct("Registry").field("offers", &offers).field("pairs", &pairs).finish_non_exhaustive()
    }
}

impl Registry {
    pub(crate) fn new(limits: Limits) -> Self {
        Registry { limits, ..Registry::default() }
    }

    /// Adds a client. Returns false if a limit is reached.
    pub(crate) fn join(&mut self, client: u64, process: Process) -> bool {
        let is_root = process.uid == 0;
        let of_user = || self.holders.values().filter(|other| other.process.uid == process.uid).count();
        if self.holders.len() >= self.limits.clients || (!is_root && of_user() >= self.limits.clients / 2) {
            return false;
        }
        self.holders.insert(client, Holder { process, offers: 0, undecided: 0 });
        true
    }

    /// Returns a client's process.
    pub(crate) fn process(&self, client: u64) -> Option<Process> {
        self.holders.get(&client).map(|holder| holder.process)
    }

    /// Returns a client's user.
    pub(crate) fn user(&self, client: u64) -> Option<u32> {
        self.holders.get(&client).map(|holder| holder.process.uid)
    }

    /// Removes a client with its offers and ends of pairs.
    pub(crate) fn leave(&mut self, client: u64) {
        let first = Key { client, number: Number(0) };
        let last = Key { client, number: Number(u64::MAX) };
        let keys: Vec<Key> = self.held.range(first..=last).map(|(key, _)| *key).collect();
        for key in keys {
            self.forget(key);
        }
        self.holders.remove(&client);
    }

    /// Handles an offer.
    pub(crate) fn offer(&mut self, key: Key, fd: Foreign, seen: Result<Seen, Reason>, now: Instant) -> Outcome {
        self.counted.offers += 1;
        match seen {
            Ok(seen) => {
                let waiting = Waiting { seen, fd: Arc::new(fd), deadline: now + self.limits.wait, role: Role::Alone };
                self.settle(key, waiting, None, now)
            }
            Err(reason) => Outcome::Refused(reason),
        }
    }

    fn settle(&mut self, key: Key, offer: Waiting, again: Option<(Key, Seen)>, now: Instant) -> Outcome {
        let Some(holder) = self.holders.get(&key.client).copied() else { return Outcome::Refused(Reason::Failed) };
        let facts = offer.seen.facts;
        let outcome = self.judge(key, holder, offer, again, now);
        if let Outcome::Refused(reason) = outcome {
            self.note_refused(facts, holder.process, reason, now);
        }
        outcome
    }

    /// Decides about an offer. `again`: the socket of this waiting offer was read again, after that of
    /// `offer`.
    fn judge(&mut self, key: Key, holder: Holder, offer: Waiting, again: Option<(Key, Seen)>, now: Instant) -> Outcome {
        let facts = offer.seen.facts;
        if self.held.contains_key(&key) || self.paired.contains_key(&facts.cookie) {
            return Outcome::Refused(Reason::Twice);
        }
        if self.permit.as_ref().is_some_and(|permit| !permit(&holder.process, facts.local, facts.peer)) {
            return Outcome::Refused(Reason::Policy);
        }
        if !self.may_have_another_end(holder.process) {
            return Outcome::Refused(Reason::Limit);
        }
        if let Some(first) = self.waiting.get(&mirrored(&facts)).copied()
            && let Some(Held::Waiting(other)) = self.held.get_mut(&first)
            && other.role == Role::Alone
            && other.seen.facts.mirrors(&facts)
        {
            match again {
                Some((of, again)) if of == first => {
                    if other.seen.is_connected_to(&offer.seen, &again) && !facts::has_ended(offer.fd.as_fd()) {
                        return self.pair(first, key, &facts, now);
                    }
                }
                _ => {
                    self.last_again += 1;
                    let again = Again { first, second: key, id: self.last_again };
                    other.role = Role::First(again);
                    let socket = Arc::clone(&other.fd);
                    self.hold(key, Waiting { role: Role::Second(again), ..offer });
                    for client in [first.client, key.client] {
                        self.change_undecided(client, 1);
                    }
                    return Outcome::Again(again, socket);
                }
            }
        }
        if holder.offers >= self.limits.offers_of_process || !self.may_have_another_offer(holder.process) {
            return Outcome::Refused(Reason::Limit);
        }
        // Another waiting socket with these addresses has ended, and its own time-out refuses its offer.
        let before = self.waiting.get(&place(&facts)).and_then(|before| self.waits(*before));
        if before.is_some_and(|before| before.seen.facts.cookie == facts.cookie) {
            return Outcome::Refused(Reason::Twice);
        }
        self.waiting.insert(place(&facts), key);
        self.hold(key, Waiting { role: Role::Alone, ..offer });
        if let Some(holder) = self.holders.get_mut(&key.client) {
            holder.offers += 1;
        }
        self.change_user(holder.process.uid, |user| user.offers += 1);
        Outcome::Waits
    }

    fn may_have_another_end(&self, process: Process) -> bool {
        self.is_below(self.paired.len(), self.limits.ends, process, |user| 2 * user.pairs)
    }

    fn may_have_another_offer(&self, process: Process) -> bool {
        self.is_below(self.waiting.len(), self.limits.offers, process, |user| user.offers)
    }

    /// Returns true if `all` is below `limit`, and this user has fewer than half of it or is root.
    fn is_below(&self, all: usize, limit: usize, process: Process, of_user: impl Fn(&OfUser) -> usize) -> bool {
        let of_user = self.users.get(&process.uid).map_or(0, of_user);
        all < limit && (process.uid == 0 || of_user < limit / 2)
    }

    fn change_user(&mut self, uid: u32, change: impl FnOnce(&mut OfUser)) {
        let user = self.users.entry(uid).or_default();
        change(user);
        if *user == OfUser::default() {
            self.users.remove(&uid);
        }
    }

    fn change_undecided(&mut self, client: u64, by: isize) {
        if let Some(holder) = self.holders.get_mut(&client) {
            holder.undecided = holder.undecided.saturating_add_signed(by);
        }
    }

    /// Returns true if a match of this client is being decided, or a thread still holds one of its
    /// sockets.
    pub(crate) fn is_deciding(&self, client: u64) -> bool {
        self.holders.get(&client).is_some_and(|holder| holder.undecided > 0)
    }

    fn waits(&self, key: Key) -> Option<&Waiting> {
        match self.held.get(&key) {
            Some(Held::Waiting(waiting)) => Some(waiting),
            _ => None,
        }
    }

    fn hold(&mut self, key: Key, waiting: Waiting) {
        self.deadlines.insert((waiting.deadline, key), ());
        self.held.insert(key, Held::Waiting(waiting));
    }

    /// Handles the end of an [`Outcome::Again`], in which `seen` was seen. Returns outcomes of offers.
    pub(crate) fn seen_again(&mut self, again: Again, seen: Result<Seen, Reason>, now: Instant) -> Vec<(Key, Outcome)> {
        let first = again.first;
        let (mut outcomes, mut same) = (Vec::new(), None);
        self.change_undecided(first.client, -1);
        if let Some(Held::Waiting(other)) = self.held.get_mut(&first)
            && other.role == Role::First(again)
        {
            other.role = Role::Alone;
            let facts = other.seen.facts;
            match seen {
                Ok(seen) if seen.facts == facts => same = Some((first, seen)),
                // It is no more the connection that was offered.
                _ => {
                    let reason = seen.err().unwrap_or(Reason::NotEstablished);
                    self.end_waiting(first, reason, now);
                    outcomes.push((first, Outcome::Refused(reason)));
                }
            }
        }
        outcomes.extend(self.settle_second(again, same, now));
        outcomes
    }

    /// Handles an offer whose first one is gone. Returns its outcome.
    pub(crate) fn next_released(&mut self, now: Instant) -> Option<(Key, Outcome)> {
        while let Some(again) = self.released.pop() {
            if let Some(settled) = self.settle_second(again, None, now) {
                return Some(settled);
            }
        }
        None
    }

    fn settle_second(&mut self, again: Again, same: Option<(Key, Seen)>, now: Instant) -> Option<(Key, Outcome)> {
        let second = again.second;
        let offer = match self.waits(second)?.role {
            Role::Second(of) if of == again => self.stop_waiting(second)?,
            _ => return None,
        };
        Some((second, self.settle(second, offer, same, now)))
    }

    fn pair(&mut self, first: Key, second: Key, facts: &Facts, now: Instant) -> Outcome {
        let Some(offer) = self.stop_waiting(first) else { return Outcome::Refused(Reason::Failed) };
        let first_facts = offer.seen.facts;
        self.last_pair += 1;
        let pair = self.last_pair;
        let ends = [Some(first), Some(second)];
        let process = |key: Key| self.process(key.client).unwrap_or_default();
        let processes = [process(first), process(second)];
        for (key, cookie) in [(first, first_facts.cookie), (second, facts.cookie)] {
            self.held.insert(key, Held::End { pair });
            self.paired.insert(cookie, pair);
        }
        for uid in BTreeSet::from(processes.map(|process| process.uid)) {
            self.change_user(uid, |user| user.pairs += 1);
        }
        let (facts, other_cookie) = (first_facts, facts.cookie);
        let row = Pair { facts, other_cookie, since: now, ends, processes, file: None };
        self.pairs.insert(pair, row);
        Outcome::Matched(first)
    }

    /// Removes a waiting offer, whose duplicate is closed when the result is dropped.
    fn stop_waiting(&mut self, key: Key) -> Option<Waiting> {
        self.waits(key)?;
        let Some(Held::Waiting(offer)) = self.held.remove(&key) else { return None };
        self.deadlines.remove(&(offer.deadline, key));
        match offer.role {
            Role::Alone => {}
            Role::First(again) => self.released.push(again),
            Role::Second(_) => {
                self.change_undecided(key.client, -1);
                return Some(offer);
            }
        }
        let place = place(&offer.seen.facts);
        if self.waiting.get(&place) == Some(&key) {
            self.waiting.remove(&place);
        }
        if let Some(holder) = self.holders.get_mut(&key.client) {
            holder.offers = holder.offers.saturating_sub(1);
            let uid = holder.process.uid;
            self.change_user(uid, |user| user.offers = user.offers.saturating_sub(1));
        }
        Some(offer)
    }

    /// Removes a waiting offer that is refused.
    fn end_waiting(&mut self, key: Key, reason: Reason, now: Instant) {
        if let (Some(offer), Some(process)) = (self.stop_waiting(key), self.process(key.client)) {
            self.note_refused(offer.seen.facts, process, reason, now);
        }
    }

    /// Handles a client's message or disconnect. Returns true if the offer was waiting, so that it
    /// has no answer yet.
    pub(crate) fn forget(&mut self, key: Key) -> bool {
        if self.stop_waiting(key).is_some() {
            return true;
        }
        self.forget_end(key);
        false
    }

    fn forget_end(&mut self, key: Key) {
        let Some(Held::End { pair }) = self.held.remove(&key) else { return };
        let Some(row) = self.pairs.get_mut(&pair) else { return };
        let Some(own) = row.ends.iter().position(|end| *end == Some(key)) else { return };
        row.ends[own] = None;
        let uid = row.processes[own].uid;
        let other = row.ends[1 - own].map(|_| row.processes[1 - own].uid);
        if other != Some(uid) {
            self.change_user(uid, |user| user.pairs = user.pairs.saturating_sub(1));
        }
        if other.is_none() {
            let Some(over) = self.pairs.remove(&pair) else { return };
            self.paired.remove(&over.facts.cookie);
            self.paired.remove(&over.other_cookie);
            self.counted.add(over.file.as_deref());
        }
    }

    /// Removes and returns the offers that have timed out.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<Key> {
        let due: Vec<Key> = self.deadlines.keys().take_while(|(at, _)| *at <= now).map(|(_, key)| *key).collect();
        for key in &due {
            self.end_waiting(*key, Reason::NoPeer, now);
        }
        due
    }

    /// Stores the region's file of the pair that has this end.
    pub(crate) fn keep(&mut self, end: Key, file: Arc<OwnedFd>) {
        if let Some(Held::End { pair }) = self.held.get(&end)
            && let Some(row) = self.pairs.get_mut(pair)
        {
            row.file = Some(file);
            self.counted.promoted += 1;
        }
    }

    /// Returns the time at which the next offer times out.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.keys().next().map(|(at, _)| *at)
    }
}
