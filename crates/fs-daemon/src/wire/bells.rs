//! The bells that a core's connections ring: all at once, when the tasks of a turn have run.
//!
//! A process that is rung runs at once: on another CPU, where it finds the first connection's bytes and sleeps again
//! before the second's are there, or on the core's own, which it takes away from the core. Rung a little later it finds
//! all that the turn has brought (measured with nginx on the core's CPU: 0.35 sleeps a request before, see `look`).

use crate::bells::Pollers;
use fs_rt::CoreRef;
use fs_shm::Bells;
use std::cell::RefCell;

thread_local! {
    /// Pollers that are to be rung by this core.
    static DUE: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// See the module.
pub(super) struct Later(pub(super) &'static Pollers);

impl Later {
    /// Rings what is due on this thread. The core calls it in each turn, after it has sent.
    pub(super) fn ring_due(&self) {
        DUE.with_borrow_mut(|due| due.drain(..).for_each(|poller| self.0.ring(poller)));
    }
}

fn later(poller: u32) {
    DUE.with_borrow_mut(|due| {
        if !due.contains(&poller) {
            due.push(poller);
        }
    });
}

impl Bells for Later {
    fn ring(&self, poller: u32) {
        match CoreRef::current() {
            Some(core) => {
                later(poller);
                // A task that a timer woke runs while the core sleeps.
                core.kick();
            }
            // The run has ended: there is no further turn.
            None => self.0.ring(poller),
        }
    }

    fn trim(&self, number: u32) -> bool {
        self.0.trim(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::EventfdFlags;

    #[test]
    fn a_poller_is_rung_once_when_its_turn_comes_and_at_once_outside_of_a_core() {
        let pollers: &'static Pollers = Box::leak(Box::default());
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let id = pollers.add_private(bell.try_clone().unwrap(), 1);
        let rings = || {
            let mut count = [0; 8];
            rustix::io::read(&bell, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
        };
        let bells = Later(pollers);
        later(id);
        later(id);
        // One that is gone meanwhile.
        later(id + 1);
        assert_eq!(rings(), 0);
        bells.ring_due();
        assert_eq!(rings(), 1);
        bells.ring_due();
        assert_eq!(rings(), 0);
        bells.ring(id);
        assert_eq!(rings(), 1);
    }
}
