//! Pollers of all processes and cores: the eventfds that wake them.
//!
//! Who has an eventfd can fill it, read it, and make it wait, for all who have it. So the daemon never waits for a process's
//! ([`Ringer`]), and a core has one for each attachment: what a process does to its own wakes the core or does not wake it
//! for that process, and changes nothing for others.

use crate::sys::Ringer;
use fs_shm::Bells;
use rustix::event::{EventfdFlags, epoll, eventfd};
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
struct Poller {
    eventfd: OwnedFd,
    /// Attachments that wait on it: its maker, and children forked since. Empty for a core's.
    holders: HashSet<u32>,
    /// A core's: the epoll set that it sleeps on, of the daemon's eventfd and one for each attachment. They are never read:
    /// each write is an edge.
    set: Option<OwnedFd>,
}

#[derive(Debug, Default)]
struct All {
    pollers: HashMap<u32, Poller>,
    ringer: Option<Ringer>,
}

impl All {
    /// Who may not be told, because his counter is full, is awake; who gave something strange has the loss.
    fn ring(&mut self, id: u32) {
        let Self { pollers, ringer } = self;
        let Some(poller) = pollers.get(&id) else { return };
        match ringer {
            Some(ringer) if poller.set.is_none() => {
                if let Err(error) = ringer.ring(poller.eventfd.as_fd()) {
                    tracing::debug!(%error, poller = id, "is not rung");
                }
            }
            // Made non-blocking, and nobody else has a core's.
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
}

impl Default for Pollers {
    fn default() -> Self {
        let ringer = Ringer::new()
            .inspect_err(|error| {
                tracing::warn!(%error, "no asynchronous requests (io_setup): a hostile program can keep the daemon waiting");
            })
            .ok();
        Self { all: Mutex::new(All { pollers: HashMap::new(), ringer }), last: AtomicU32::new(0) }
    }
}

impl Pollers {
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

    /// Enters a poller of an attachment; answers its number.
    pub(crate) fn add(&self, eventfd: OwnedFd, holder: u32) -> u32 {
        self.enter(Poller { eventfd, holders: HashSet::from([holder]), set: None })
    }

    /// Enters a poller of a core; answers its number, and what the core is to sleep on: readable, with a new edge, when it
    /// was rung by whomever.
    pub(crate) fn add_core(&self) -> io::Result<(u32, OwnedFd)> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let sleeps_on = set.try_clone()?;
        let eventfd = member(&set)?;
        Ok((self.enter(Poller { eventfd, holders: HashSet::new(), set: Some(set) }), sleeps_on))
    }

    /// A forked child waits on its parent's pollers too.
    pub(crate) fn inherit(&self, parent: u32, child: u32) {
        for poller in self.lock().pollers.values_mut() {
            if poller.holders.contains(&parent) {
                poller.holders.insert(child);
            }
        }
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

    /// Takes an attachment off all; answers those that are gone.
    pub(crate) fn leave_all(&self, holder: u32) -> Vec<u32> {
        let gone = |poller: &mut Poller| poller.holders.remove(&holder) && poller.holders.is_empty();
        self.lock().pollers.extract_if(|_, poller| gone(poller)).map(|(id, _)| id).collect()
    }

    /// The attachments that wait on a poller (none: a core does).
    pub(crate) fn holders(&self, id: u32) -> Option<Vec<u32>> {
        self.lock().pollers.get(&id).map(|poller| poller.holders.iter().copied().collect())
    }

    /// What an attachment rings a poller with: a process's own eventfd, or a new one of the core's. That one is in the
    /// core's set for as long as somebody has it.
    pub(crate) fn bell(&self, id: u32) -> io::Result<OwnedFd> {
        let all = self.lock();
        let poller = all.pollers.get(&id).ok_or(rustix::io::Errno::NOENT)?;
        poller.set.as_ref().map_or_else(|| poller.eventfd.try_clone(), member)
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

    /// Rings all pollers of these attachments.
    pub(crate) fn ring_all(&self, holders: &HashSet<u32>) {
        let mut all = self.lock();
        let theirs = |(id, poller): (&u32, &Poller)| (!poller.holders.is_disjoint(holders)).then_some(*id);
        let ids: Vec<u32> = all.pollers.iter().filter_map(theirs).collect();
        ids.into_iter().for_each(|id| all.ring(id));
    }
}

impl Bells for Pollers {
    fn ring(&self, poller: u32) {
        self.lock().ring(poller);
    }
}

/// A new eventfd in a core's set.
fn member(set: &OwnedFd) -> io::Result<OwnedFd> {
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
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
        let first = pollers.add(empty(), 7);
        assert!(pollers.leave(first, 7));
        assert_ne!(pollers.add(empty(), 7), first, "who rings the first would ring a descriptor that is gone");
    }

    /// Without the ringer this test does not end: the eventfd waits in write(2).
    #[test]
    fn a_bell_that_is_full_and_blocking_keeps_nobody() {
        let pollers = Pollers::default();
        let bell = empty();
        fill(bell.as_fd());
        let id = pollers.add(bell, 7);
        pollers.ring(id);
        pollers.ring_all(&HashSet::from([7]));
    }

    #[test]
    fn what_one_does_to_its_bell_of_a_core_changes_nothing_for_others() {
        let pollers = Pollers::default();
        let (id, set) = pollers.add_core().unwrap();
        assert_eq!(pollers.holders(id), Some(Vec::new()));
        // As the core does: an outer set, edge-triggered, whose members are never read.
        let outer = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        epoll::add(&outer, &set, epoll::EventData::new_u64(1), epoll::EventFlags::IN | epoll::EventFlags::ET).unwrap();
        let woken = || {
            let mut events = Vec::with_capacity(4);
            let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
            epoll::wait(&outer, rustix::buffer::spare_capacity(&mut events), Some(&now)).unwrap() > 0
        };
        assert!(!woken());
        let (hostile, honest) = (pollers.bell(id).unwrap(), pollers.bell(id).unwrap());
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
    }
}
