//! The wakers of tasks that wait for sockets: side tables indexed by the sockets' slots.
//!
//! They use 16 bytes per slot and direction, and grow only up to the largest slot with a waiter.
//! The slot's generation is not stored: a socket's wakers are removed when it is closed, before its
//! slot can be used again. The contract of `Waker` allows spurious wake-ups.

use std::collections::HashMap;
use std::task::Waker;

/// The event that a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Interest {
    /// A TCP connection has bytes to read.
    TcpRead,
    /// A TCP connection can take more bytes.
    TcpWrite,
    /// A listener has a connection.
    Accept,
    /// A UDP socket has a datagram.
    UdpRead,
    /// A UDP socket takes a datagram.
    UdpWrite,
}

const INTERESTS: usize = 5;

/// Tasks beyond the first that may wait for the same event, per (socket, interest). More than this
/// is a loop that polls with new wakers each time: the oldest is woken and removed. Lower: tasks of a
/// program that shares a socket among so many wake one another for ever. Higher: such a loop pays
/// more to find its waker among the others.
const EXTRA_MAX: usize = 4096;

/// A waker that a registration displaced. Dropping a waker may drop a task with its sockets, and
/// waking one may run foreign code. So do either only without a borrow of the core.
#[must_use]
#[derive(Debug)]
pub(crate) enum Displaced {
    Nothing,
    /// The waker was registered already: drop it.
    Duplicate(Waker),
    /// The waker is no longer registered: wake it, or its task might wait forever.
    Evicted(Waker),
}

#[derive(Debug, Default)]
pub(crate) struct Wakers {
    slots: [Vec<Option<Waker>>; INTERESTS],
    /// Rarely used: several tasks share one socket and wait for the same event. By socket, so that
    /// many of them do not slow the events of others.
    extra: HashMap<(Interest, u32), Vec<Waker>>,
}

impl Wakers {
    /// Registers `waker`. Handle the result after all borrows of the core have ended: see
    /// [`Displaced`].
    pub(crate) fn register(&mut self, interest: Interest, index: u32, waker: &Waker) -> Displaced {
        let slots = &mut self.slots[interest as usize];
        let index_usize = index as usize;
        if slots.len() <= index_usize {
            slots.resize(index_usize + 1, None);
        }
        match &mut slots[index_usize] {
            Some(old) if old.will_wake(waker) => Displaced::Nothing,
            slot @ None => {
                *slot = Some(waker.clone());
                Displaced::Nothing
            }
            Some(old) => {
                let old = std::mem::replace(old, waker.clone());
                self.push_extra(interest, index, old)
            }
        }
    }

    fn push_extra(&mut self, interest: Interest, index: u32, waker: Waker) -> Displaced {
        let extra = self.extra.entry((interest, index)).or_default();
        if extra.iter().any(|known| known.will_wake(&waker)) {
            return Displaced::Duplicate(waker);
        }
        let is_full = extra.len() >= EXTRA_MAX;
        let oldest = if is_full { Displaced::Evicted(extra.remove(0)) } else { Displaced::Nothing };
        extra.push(waker);
        oldest
    }

    /// Moves all wakers for this event to `into`.
    #[inline]
    pub(crate) fn take(&mut self, interest: Interest, index: u32, into: &mut Vec<Waker>) {
        if let Some(waker) = self.slots[interest as usize].get_mut(index as usize).and_then(Option::take) {
            into.push(waker);
        }
        if !self.extra.is_empty() {
            self.take_extra(interest, index, into);
        }
    }

    #[cold]
    fn take_extra(&mut self, interest: Interest, index: u32, into: &mut Vec<Waker>) {
        into.extend(self.extra.remove(&(interest, index)).into_iter().flatten());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn waker() -> (Arc<Count>, Waker) {
        let count = Arc::new(Count(AtomicUsize::new(0)));
        (count.clone(), count.into())
    }

    #[test]
    fn every_waiting_task_is_woken_once() {
        let mut wakers = Wakers::default();
        let (a_count, a) = waker();
        let (b_count, b) = waker();
        for _ in 0..3 {
            drop(wakers.register(Interest::Accept, 7, &a));
            drop(wakers.register(Interest::Accept, 7, &b));
        }
        let (other_count, other) = waker();
        drop(wakers.register(Interest::TcpRead, 7, &other));
        let mut woken = Vec::new();
        wakers.take(Interest::Accept, 7, &mut woken);
        woken.drain(..).for_each(Waker::wake);
        assert!(a_count.0.load(Ordering::Relaxed) >= 1);
        assert!(b_count.0.load(Ordering::Relaxed) >= 1);
        assert_eq!(other_count.0.load(Ordering::Relaxed), 0);
        wakers.take(Interest::Accept, 7, &mut woken);
        assert!(woken.is_empty());
    }

    #[test]
    fn many_tasks_wait_for_one_event() {
        let mut wakers = Wakers::default();
        let tasks: Vec<_> = (0..1000).map(|_| waker()).collect();
        for (_, waker) in tasks.iter().chain(&tasks) {
            let displaced = wakers.register(Interest::Accept, 0, waker);
            assert!(!matches!(displaced, Displaced::Evicted(_)), "nothing has arrived");
        }
        let mut woken = Vec::new();
        wakers.take(Interest::Accept, 0, &mut woken);
        woken.drain(..).for_each(Waker::wake);
        assert!(tasks.iter().all(|(count, _)| count.0.load(Ordering::Relaxed) >= 1));
    }

    #[test]
    fn new_wakers_do_not_grow_without_bound() {
        let mut wakers = Wakers::default();
        for _ in 0..EXTRA_MAX + 1000 {
            let (_, w) = waker();
            drop(wakers.register(Interest::UdpRead, 0, &w));
        }
        assert!(wakers.extra.values().all(|extra| extra.len() <= EXTRA_MAX));
    }
}
