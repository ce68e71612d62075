//! Pollers of all processes and cores: what wakes them.
//!
//! Who has an eventfd can fill it, read it, and make it wait, for all who have it. So nobody shares one: a poller is an epoll
//! set of the daemon's, with an eventfd for each who rings it, and the daemon's own. None is ever read: each write is an
//! edge. What somebody does to his own wakes the poller, or does not wake it for him, and changes nothing for others.
//!
//! The poller's process sleeps on a second set, which has only the first in it: who sleeps on a set can hold its lock for as
//! long as he likes (by a page fault that he serves himself, while events are copied to him), and the daemon must not wait for
//! that when it enters a new bell.
//!
//! A process that cannot call epoll_wait(2), because it has confined itself, has an eventfd that the daemon alone rings,
//! without waiting for it ([`EventfdSignal`]).

use crate::server::{Command, Commands};
use crate::sys::EventfdSignal;
use fs_shm::Bells;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Bells of one poller that one attachment may be given. It needs one; it asks again when the number was closed behind its
/// back, or its place in a table was taken.
const GIVEN: u8 = 8;
/// Listeners that a poller may not be told of: as many as a process has. Those that have gone count.
const UNTOLD: usize = 4096;

#[derive(Debug)]
struct Poller {
    /// The daemon's own bell; of a poller without a set, the process's.
    eventfd: OwnedFd,
    /// Attachments that wait on it: its maker, and children forked since. Empty for a core's.
    holders: HashSet<u32>,
    /// The eventfds of all who ring it.
    set: Option<OwnedFd>,
    /// How many of those each attachment was given.
    given: HashMap<u32, u8>,
    /// Listeners whose new arenas it is not rung for.
    untold: HashSet<u32>,
}

impl Poller {
    fn new(eventfd: OwnedFd, holders: HashSet<u32>, set: Option<OwnedFd>) -> Self {
        Self { eventfd, holders, set, given: HashMap::new(), untold: HashSet::new() }
    }
}

#[derive(Debug, Default)]
struct All {
    pollers: HashMap<u32, Poller>,
    signal: Option<EventfdSignal>,
}

impl All {
    /// Who may not be told, because his counter is full, is awake; who gave something strange has the loss.
    fn ring(&mut self, id: u32) {
        let Self { pollers, signal } = self;
        let Some(poller) = pollers.get(&id) else { return };
        match signal {
            Some(signal) if poller.set.is_none() => {
                if let Err(error) = signal.ring(poller.eventfd.as_fd()) {
                    tracing::debug!(%error, poller = id, "cannot notify a wake set");
                }
            }
            // Made non-blocking, and nobody else has one of a set.
            _ => {
                let _full = rustix::io::write(&poller.eventfd, &1u64.to_ne_bytes());
            }
        }
    }
}

/// See the module. One for each daemon; shared by the control thread and the cores.
#[derive(Debug)]
pub(crate) struct Pollers {
    all: Mutex<All>,
    /// The last number given. Numbers are not given twice: a process keeps the eventfd of a number that it has asked
    /// for, and would ring the one of a poller that is gone.
    last: AtomicU32,
    /// The way to the control thread; none in tests.
    commands: OnceLock<Arc<Commands>>,
}

impl Default for Pollers {
    fn default() -> Self {
        let signal = EventfdSignal::new()
            .inspect_err(|error| {
                tracing::warn!(%error, "cannot set up asynchronous I/O (io_setup): a hostile program can delay the \
                                        daemon; raise fs.aio-max-nr");
            })
            .ok();
        let all = Mutex::new(All { pollers: HashMap::new(), signal });
        Self { all, last: AtomicU32::new(0), commands: OnceLock::new() }
    }
}

impl Pollers {
    /// The control thread is told by these.
    pub(crate) fn tell_by(&self, commands: Arc<Commands>) {
        // Once in a daemon's life.
        let _again = self.commands.set(commands);
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        // Every change is one insert or remove.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, poller: Poller) -> u32 {
        let all = &mut self.lock().pollers;
        let mut id = 0;
        while id == 0 || all.contains_key(&id) {
            id = self.last.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        }
        all.insert(id, poller);
        id
    }

    /// Enters a poller of an attachment; answers its number, and the set that its process is to sleep on.
    pub(crate) fn add(&self, holder: u32) -> Result<(u32, OwnedFd), Errno> {
        let (eventfd, set) = new_set()?;
        let outer = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&outer, &set, epoll::EventData::new_u64(0), epoll::EventFlags::IN | epoll::EventFlags::ET)?;
        let holders = HashSet::from([holder]);
        Ok((self.enter(Poller::new(eventfd, holders, Some(set))), outer))
    }

    /// Enters a poller of an attachment that the daemon alone rings; answers its number.
    pub(crate) fn add_private(&self, eventfd: OwnedFd, holder: u32) -> u32 {
        self.enter(Poller::new(eventfd, HashSet::from([holder]), None))
    }

    /// Enters a poller of a core; answers its number, and what the core is to sleep on: readable, with a new edge, when it
    /// was rung by whomever.
    pub(crate) fn add_core(&self) -> io::Result<(u32, OwnedFd)> {
        let (eventfd, set) = new_set()?;
        let sleeps_on = set.try_clone()?;
        Ok((self.enter(Poller::new(eventfd, HashSet::new(), Some(set))), sleeps_on))
    }

    /// One more attachment waits on a poller; `false`: it is gone.
    pub(crate) fn join(&self, id: u32, holder: u32) -> bool {
        let all = &mut self.lock().pollers;
        let poller = all.get_mut(&id);
        poller.map(|poller| poller.holders.insert(holder)).is_some()
    }

    /// A forked child waits on its parent's pollers too.
    pub(crate) fn inherit(&self, parent: u32, child: u32) {
        for poller in self.lock().pollers.values_mut() {
            if poller.holders.contains(&parent) {
                poller.holders.insert(child);
            }
        }
    }

    /// The pollers that an attachment waits on.
    pub(crate) fn of(&self, holder: u32) -> Vec<u32> {
        let all = self.lock();
        all.pollers.iter().filter(|(_, poller)| poller.holders.contains(&holder)).map(|(&id, _)| id).collect()
    }

    /// Takes an attachment off one poller; answers whether it is gone.
    pub(crate) fn leave(&self, id: u32, holder: u32) -> bool {
        let all = &mut self.lock().pollers;
        let Some(poller) = all.get_mut(&id) else { return false };
        if poller.holders.remove(&holder) && poller.holders.is_empty() {
            all.remove(&id);
            return true;
        }
        false
    }

    /// Takes an attachment off all; answers those that are gone. Its bells are closed, which takes back what they have rung
    /// and no sleeper has seen yet: the daemon rings instead. `heirs`, children that it has forked, may still have them.
    pub(crate) fn leave_all(&self, holder: u32, heirs: &[u32]) -> Vec<u32> {
        let mut all = self.lock();
        let gone = |poller: &mut Poller| poller.holders.remove(&holder) && poller.holders.is_empty();
        let gone = all.pollers.extract_if(|_, poller| gone(poller)).map(|(id, _)| id).collect();
        let rang = |(id, poller): (&u32, &mut Poller)| {
            let given = poller.given.remove(&holder)?;
            heirs.iter().for_each(|&heir| {
                let _has = poller.given.entry(heir).or_insert(given);
            });
            Some(*id)
        };
        let rang: Vec<u32> = all.pollers.iter_mut().filter_map(rang).collect();
        rang.into_iter().for_each(|id| all.ring(id));
        gone
    }

    /// Rings all pollers that an attachment has bells of: it is about to exec, which closes them.
    pub(crate) fn ring_for(&self, ringer: u32) {
        let mut all = self.lock();
        let its = |(id, poller): (&u32, &Poller)| poller.given.contains_key(&ringer).then_some(*id);
        let its: Vec<u32> = all.pollers.iter().filter_map(its).collect();
        its.into_iter().for_each(|id| all.ring(id));
    }

    /// The attachments that wait on a poller (none: a core does).
    pub(crate) fn holders(&self, id: u32) -> Option<Vec<u32>> {
        self.lock().pollers.get(&id).map(|poller| poller.holders.iter().copied().collect())
    }

    /// What an attachment rings a poller with: a new eventfd in the poller's set, for as long as somebody has it.
    ///
    /// # Errors
    ///
    /// See [`fs_shm::control::Request::Bell`]; and those of eventfd(2) and epoll_ctl(2), where the poller's process has put
    /// its set into too many others.
    pub(crate) fn bell(&self, id: u32, ringer: u32) -> Result<OwnedFd, Errno> {
        let mut all = self.lock();
        let poller = all.pollers.get_mut(&id).ok_or(Errno::NOENT)?;
        let set = poller.set.as_ref().ok_or(Errno::OPNOTSUPP)?;
        let given = poller.given.entry(ringer).or_default();
        if *given >= GIVEN {
            return Err(Errno::NOBUFS);
        }
        let bell = member(set)?;
        *given += 1;
        Ok(bell)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.lock().pollers.len()
    }

    /// How many pollers these attachments have together.
    pub(crate) fn count_of(&self, holders: &HashSet<u32>) -> usize {
        self.lock().pollers.values().filter(|poller| !poller.holders.is_disjoint(holders)).count()
    }

    /// How many pollers an attachment has.
    pub(crate) fn count(&self, holder: u32) -> usize {
        self.lock().pollers.values().filter(|poller| poller.holders.contains(&holder)).count()
    }

    /// Whether a poller of an attachment's is rung for the new arenas of a listener; `ENOENT`: it has no such one.
    pub(crate) fn tell(&self, id: u32, holder: u32, listener: u32, told: bool) -> Result<(), Errno> {
        let mut all = self.lock();
        let poller = all.pollers.get_mut(&id).filter(|poller| poller.holders.contains(&holder)).ok_or(Errno::NOENT)?;
        if told {
            poller.untold.remove(&listener);
        } else if poller.untold.len() < UNTOLD {
            poller.untold.insert(listener);
        } else {
            return Err(Errno::NOBUFS);
        }
        Ok(())
    }

    /// Rings the pollers of these attachments for news of a listener's arenas, but for some.
    pub(crate) fn ring_all(&self, is_told: impl Fn(u32) -> bool, listener: u32, but: impl Fn(u32) -> bool) {
        let mut all = self.lock();
        let told = |poller: &Poller| {
            !poller.untold.contains(&listener) && poller.holders.iter().any(|&holder| is_told(holder))
        };
        let theirs = |(id, poller): (&u32, &Poller)| (!but(*id) && told(poller)).then_some(*id);
        let ids: Vec<u32> = all.pollers.iter().filter_map(theirs).collect();
        ids.into_iter().for_each(|id| all.ring(id));
    }
}

impl Bells for Pollers {
    fn ring(&self, poller: u32) {
        self.lock().ring(poller);
    }

    fn trim(&self, number: u32) -> bool {
        self.commands.get().is_some_and(|commands| {
            commands.send(Command::Trim { arena: number });
            true
        })
    }
}

/// A set with the daemon's own bell in it.
fn new_set() -> Result<(OwnedFd, OwnedFd), Errno> {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    Ok((member(&set)?, set))
}

/// A new eventfd, of the daemon's and of whom it is given to.
pub(crate) fn new_bell() -> Result<OwnedFd, Errno> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// A new eventfd in a set.
fn member(set: &OwnedFd) -> Result<OwnedFd, Errno> {
    let bell = new_bell()?;
    epoll::add(set, &bell, epoll::EventData::new_u64(0), epoll::EventFlags::IN | epoll::EventFlags::ET)?;
    Ok(bell)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::BorrowedFd;

    fn empty() -> OwnedFd {
        eventfd(0, EventfdFlags::CLOEXEC).unwrap()
    }

    fn fill(bell: BorrowedFd<'_>) {
        rustix::io::write(bell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    }

    #[test]
    fn a_number_is_not_given_twice() {
        let pollers = Pollers::default();
        let (first, _) = pollers.add(7).unwrap();
        assert!(pollers.leave(first, 7));
        assert_ne!(pollers.add(7).unwrap().0, first, "who rings the first would ring a descriptor that is gone");
    }

    /// Without the signal this test does not end: the eventfd waits in write(2).
    #[test]
    fn a_bell_that_is_full_and_blocking_keeps_nobody() {
        let pollers = Pollers::default();
        let bell = empty();
        fill(bell.as_fd());
        let id = pollers.add_private(bell, 7);
        pollers.ring(id);
        pollers.ring_all(|holder| holder == 7, 1, |_| false);
        assert_eq!(pollers.bell(id, 8).unwrap_err(), Errno::OPNOTSUPP);
    }

    #[test]
    fn nobody_is_given_bells_without_end() {
        let pollers = Pollers::default();
        let (id, _set) = pollers.add(7).unwrap();
        for _ in 0..GIVEN {
            pollers.bell(id, 8).unwrap();
        }
        assert_eq!(pollers.bell(id, 8).unwrap_err(), Errno::NOBUFS);
        pollers.bell(id, 9).unwrap();
        // Another life, another number.
        assert!(pollers.leave_all(8, &[]).is_empty());
        pollers.bell(id, 8).unwrap();
        assert!(pollers.leave(id, 7));
        assert_eq!(pollers.bell(id, 8).unwrap_err(), Errno::NOENT);
    }

    fn readable(set: BorrowedFd<'_>) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        poll(&mut [PollFd::from_borrowed_fd(set, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap()
            > 0
    }

    fn taken(set: BorrowedFd<'_>) -> bool {
        let mut events = Vec::with_capacity(4);
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        epoll::wait(set, rustix::buffer::spare_capacity(&mut events), Some(&now)).unwrap() > 0
    }

    #[test]
    fn what_one_does_to_its_bell_changes_nothing_for_others() {
        let pollers = Pollers::default();
        let (core, set) = pollers.add_core().unwrap();
        assert_eq!(pollers.holders(core), Some(Vec::new()));
        // As the core does: an outer set, edge-triggered, whose members are never read.
        let outer = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        epoll::add(&outer, &set, epoll::EventData::new_u64(1), epoll::EventFlags::IN | epoll::EventFlags::ET).unwrap();
        // A process has such an outer set.
        let (process, sleeps_on) = pollers.add(7).unwrap();
        for (id, outer) in [(core, outer), (process, sleeps_on)] {
            // Two ways to sleep: in the set, and in poll(2) on it.
            let woken = || {
                let woken = readable(outer.as_fd());
                assert_eq!(taken(outer.as_fd()), woken);
                assert!(!readable(outer.as_fd()));
                woken
            };
            assert!(!woken());
            let (hostile, honest) = (pollers.bell(id, 8).unwrap(), pollers.bell(id, 9).unwrap());
            fill(hostile.as_fd());
            assert!(woken() && !woken());
            for _ in 0..3 {
                rustix::io::write(&honest, &1u64.to_ne_bytes()).unwrap();
                assert!(woken() && !woken());
            }
            pollers.ring(id);
            assert!(woken() && !woken());
            // Reading its own takes nobody's wake-up away.
            rustix::io::write(&honest, &1u64.to_ne_bytes()).unwrap();
            rustix::io::read(&hostile, &mut [0; 8]).unwrap();
            assert!(woken());
            // A ringer that has gone takes only its own.
            rustix::io::write(&hostile, &1u64.to_ne_bytes()).unwrap();
            rustix::io::write(&honest, &1u64.to_ne_bytes()).unwrap();
            drop(hostile);
            assert!(woken() && !woken());
        }
    }
}
