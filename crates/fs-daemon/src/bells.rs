//! Pollers of all processes and cores: the eventfds that wake them.

use fs_shm::Bells;
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
struct Poller {
    eventfd: OwnedFd,
    /// Attachments that wait on it: its maker, and children forked since. Empty for the daemon's own.
    holders: HashSet<u32>,
}

/// See above. One for each daemon; shared by the control thread and the cores.
#[derive(Debug, Default)]
pub(crate) struct Pollers {
    all: Mutex<HashMap<u32, Poller>>,
    /// The last number given. Numbers are not given twice: a process keeps the eventfd of a number that it has asked
    /// for, and would ring the one of a poller that is gone.
    last: AtomicU32,
}

impl Pollers {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Poller>> {
        // Every change is one insert or remove.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a poller of an attachment, or of the daemon; answers its number.
    pub(crate) fn add(&self, eventfd: OwnedFd, holder: Option<u32>) -> u32 {
        let mut all = self.lock();
        let mut id = 0;
        while id == 0 || all.contains_key(&id) {
            id = self.last.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        }
        all.insert(id, Poller { eventfd, holders: holder.into_iter().collect() });
        id
    }

    /// A forked child waits on its parent's pollers too.
    pub(crate) fn inherit(&self, parent: u32, child: u32) {
        for poller in self.lock().values_mut() {
            if poller.holders.contains(&parent) {
                poller.holders.insert(child);
            }
        }
    }

    /// Takes an attachment off one poller; answers whether it is gone.
    pub(crate) fn leave(&self, id: u32, holder: u32) -> bool {
        let mut all = self.lock();
        let Some(poller) = all.get_mut(&id) else { return false };
        if poller.holders.remove(&holder) && poller.holders.is_empty() {
            all.remove(&id);
            return true;
        }
        false
    }

    /// Takes an attachment off all; answers those that are gone.
    pub(crate) fn leave_all(&self, holder: u32) -> Vec<u32> {
        let mut all = self.lock();
        let gone = |poller: &mut Poller| poller.holders.remove(&holder) && poller.holders.is_empty();
        all.extract_if(|_, poller| gone(poller)).map(|(id, _)| id).collect()
    }

    /// The attachments that wait on a poller (none: the daemon's), and a copy of its eventfd.
    pub(crate) fn eventfd(&self, id: u32) -> Option<(Vec<u32>, OwnedFd)> {
        let all = self.lock();
        let poller = all.get(&id)?;
        Some((poller.holders.iter().copied().collect(), poller.eventfd.try_clone().ok()?))
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// How many pollers these attachments have together.
    pub(crate) fn count_of(&self, holders: &HashSet<u32>) -> usize {
        self.lock().values().filter(|poller| !poller.holders.is_disjoint(holders)).count()
    }

    /// How many pollers an attachment has.
    pub(crate) fn count(&self, holder: u32) -> usize {
        self.lock().values().filter(|poller| poller.holders.contains(&holder)).count()
    }

    /// Rings all pollers of these attachments.
    pub(crate) fn ring_all(&self, holders: &HashSet<u32>) {
        for poller in self.lock().values().filter(|poller| !poller.holders.is_disjoint(holders)) {
            write(poller.eventfd.as_fd());
        }
    }
}

impl Bells for Pollers {
    fn ring(&self, poller: u32) {
        if let Some(poller) = self.lock().get(&poller) {
            write(poller.eventfd.as_fd());
        }
    }
}

/// The eventfd is the process's: it may be full (then it is readable already) or no eventfd at all (then it is the
/// process's loss). It was made non-blocking when it came.
fn write(eventfd: BorrowedFd<'_>) {
    let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_not_given_twice() {
        let pollers = Pollers::default();
        let eventfd = || rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let first = pollers.add(eventfd(), Some(7));
        assert!(pollers.leave(first, 7));
        assert_ne!(pollers.add(eventfd(), Some(7)), first, "who rings the first would ring a descriptor that is gone");
    }
}
