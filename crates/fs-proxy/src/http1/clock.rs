//! Deadlines of a core's client connections, without a timer for each.
//!
//! A connection stores its deadline in a cell. While deadlines only move forward, nothing else is
//! needed: the wheel has the connection at an earlier tick, and moves it to the current deadline
//! when that tick comes.

use crate::clients::{Connection, Deadline};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

/// Resolution of deadlines. Shorter: an idle core wakes more often. Longer: a time-out of 200 ms
/// takes twice as long.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// A core's clock.
#[derive(Default)]
pub(crate) struct Clock {
    now: Cell<u64>,
    /// Connections, by the tick at which to check them.
    wheel: RefCell<BTreeMap<u64, Vec<Weak<Connection>>>>,
}

impl Clock {
    /// Advances forever.
    pub(crate) async fn run(self: Rc<Self>) {
        loop {
            tokio::time::sleep(TICK).await;
            self.tick();
        }
    }

    fn tick(&self) {
        let now = self.now.get() + 1;
        self.now.set(now);
        let due = {
            let mut wheel = self.wheel.borrow_mut();
            let later = wheel.split_off(&(now + 1));
            std::mem::replace(&mut *wheel, later)
        };
        for (tick, connection) in due.into_iter().flat_map(|(tick, all)| all.into_iter().map(move |one| (tick, one))) {
            let Some(connection) = connection.upgrade() else { continue };
            let deadline = connection.deadline();
            if deadline.listed.get() != tick {
                continue;
            }
            deadline.listed.set(u64::MAX);
            if deadline.at.get() <= now {
                connection.wake();
            } else {
                self.list(&connection);
            }
        }
    }

    fn list(&self, connection: &Rc<Connection>) {
        let Deadline { at, listed } = connection.deadline();
        if at.get() < listed.get() {
            listed.set(at.get());
            self.wheel.borrow_mut().entry(at.get()).or_default().push(Rc::downgrade(connection));
        }
    }

    /// The tick.
    pub(crate) fn now(&self) -> u64 {
        self.now.get()
    }

    /// Returns the first tick at which at least `time` has passed.
    pub(crate) fn after(&self, time: Duration) -> u64 {
        self.now.get() + (time.as_millis() / TICK.as_millis()) as u64 + 1
    }

    /// Wakes the connection's task once at this tick, unless the deadline is moved forward before.
    #[inline]
    pub(crate) fn set(&self, connection: &Rc<Connection>, tick: u64) {
        let Deadline { at, listed } = connection.deadline();
        at.set(tick);
        if tick < listed.get() {
            self.list(connection);
        }
    }

    /// Removes the deadline.
    pub(crate) fn clear(&self, connection: &Connection) {
        connection.deadline().at.set(u64::MAX);
    }

    /// Returns true from the connection's deadline on.
    #[inline]
    pub(crate) fn is_late(&self, connection: &Connection) -> bool {
        connection.deadline().at.get() <= self.now.get()
    }

    /// Wakes each connection with a deadline, because the proxy stops.
    pub(crate) fn wake_all(&self) {
        for connection in self.wheel.borrow().values().flatten().filter_map(Weak::upgrade) {
            connection.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::{Clients, Limits};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake};

    #[derive(Default)]
    struct Turns(AtomicUsize);

    impl Wake for Turns {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn connection_is_woken_only_at_its_last_deadline() {
        let (clock, clients) = (Clock::default(), Clients::new(Limits { clients: 9, pooled: 9 }));
        let (connection, _busy) = clients.enter();
        let turns = Arc::new(Turns::default());
        let waker = turns.clone().into();
        let tick = || {
            assert!(connection.poll_leaving(&mut Context::from_waker(&waker)).is_pending());
            clock.tick();
            turns.0.swap(0, Ordering::SeqCst)
        };
        clock.set(&connection, 3);
        assert_eq!((tick(), tick(), tick(), tick()), (0, 0, 1, 0));
        clock.set(&connection, 6);
        clock.set(&connection, 8);
        assert_eq!(clock.wheel.borrow().len(), 1, "listed once, for the first");
        assert_eq!((tick(), tick(), tick(), tick(), tick()), (0, 0, 0, 1, 0));
        // An earlier deadline is not missed, and the later entry is ignored.
        clock.set(&connection, 20);
        clock.set(&connection, 11);
        assert_eq!((tick(), tick()), (0, 1));
        clock.clear(&connection);
        assert_eq!((0..20).map(|_| tick()).sum::<usize>(), 0);
    }
}
