//! A bounded ring from one core to another: one producer, one consumer, no lock.
//!
//! ## Access rules
//! 1. Only the producer writes `tail`, and only the consumer writes `head`. Both only count up.
//! 2. Slots in `head..tail` hold messages and belong to the consumer; the others belong to the
//!    producer.
//! 3. The producer fills a slot before it publishes `tail` (release); the consumer moves a slot's
//!    message out before it publishes `head` (release). Each side reads the other's counter with
//!    acquire.
//! 4. There is one [`Sender`] and one [`Receiver`], neither is `Clone`, and both need `&mut`.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A counter on its own two cache lines (adjacent lines are fetched in pairs).
#[repr(align(128))]
#[derive(Debug, Default)]
struct Counter(AtomicUsize);

struct Ring<T> {
    tail: Counter,
    head: Counter,
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
}

// SAFETY: access rules 1 to 4: only the side that owns a slot accesses it, and ownership passes
// with release/acquire on the counters. `T` itself moves between threads, so `T: Send`.
unsafe impl<T: Send> Sync for Ring<T> {}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        let (head, tail) = (*self.head.0.get_mut(), *self.tail.0.get_mut());
        let mask = self.slots.len() - 1;
        for at in head..tail {
            // SAFETY: rule 2: slots in head..tail hold a message, and no other owner is left.
            unsafe { self.slots[at & mask].get_mut().assume_init_drop() };
        }
    }
}

/// The producer's end.
pub(crate) struct Sender<T> {
    ring: Arc<Ring<T>>,
    tail: usize,
    /// The last loaded `head`. It is loaded again only if the ring looks full.
    head_seen: usize,
}

/// The consumer's end.
pub(crate) struct Receiver<T> {
    ring: Arc<Ring<T>>,
    head: usize,
}

/// Creates a ring of `capacity` messages, rounded up to a power of two.
pub(crate) fn ring<T: Send>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let capacity = capacity.next_power_of_two();
    let slots = (0..capacity).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect();
    let ring = Arc::new(Ring { tail: Counter::default(), head: Counter::default(), slots });
    (Sender { ring: ring.clone(), tail: 0, head_seen: 0 }, Receiver { ring, head: 0 })
}

impl<T> Sender<T> {
    /// Puts `message` in, or returns it if the ring is full.
    #[inline]
    pub(crate) fn push(&mut self, message: T) -> Result<(), T> {
        let capacity = self.ring.slots.len();
        if self.tail - self.head_seen == capacity {
            self.head_seen = self.ring.head.0.load(Ordering::Acquire);
            if self.tail - self.head_seen == capacity {
                return Err(message);
            }
        }
        // SAFETY: rule 2: `tail` is outside head..tail, so the slot is ours; `&mut self` keeps it
        // single.
        unsafe { (*self.ring.slots[self.tail & (capacity - 1)].get()).write(message) };
        self.tail += 1;
        self.ring.tail.0.store(self.tail, Ordering::Release);
        Ok(())
    }

    /// Returns the number of messages in the ring, at most (the consumer may be taking some).
    pub(crate) fn backlog(&self) -> usize {
        self.tail - self.ring.head.0.load(Ordering::Relaxed)
    }
}

impl<T> Receiver<T> {
    /// Takes the oldest message.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let mask = self.ring.slots.len() - 1;
        // SAFETY: rule 2: `head` is inside head..tail (just checked with acquire), so the slot
        // holds a message that is ours. It is read once, because `head` advances below.
        let message = unsafe { (*self.ring.slots[self.head & mask].get()).assume_init_read() };
        self.head += 1;
        self.ring.head.0.store(self.head, Ordering::Release);
        Some(message)
    }

    /// Returns true if there is no message.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.ring.tail.0.load(Ordering::Acquire) == self.head
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_bound() {
        let (mut tx, mut rx) = ring(4);
        for n in 0..4 {
            tx.push(n).unwrap();
        }
        assert_eq!(tx.push(9), Err(9));
        assert_eq!(tx.backlog(), 4);
        assert_eq!(rx.pop(), Some(0));
        tx.push(4).unwrap();
        assert_eq!((1..=4).map(|_| rx.pop().unwrap()).collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert_eq!(rx.pop(), None);
    }

    #[test]
    fn messages_left_behind_are_dropped() {
        let token = Arc::new(());
        let (mut tx, mut rx) = ring(8);
        for _ in 0..5 {
            tx.push(token.clone()).unwrap();
        }
        drop(rx.pop());
        drop((tx, rx));
        assert_eq!(Arc::strong_count(&token), 1);
    }

    #[test]
    fn between_threads() {
        let (mut tx, mut rx) = ring(64);
        const N: usize = 100_000;
        let producer = std::thread::spawn(move || {
            for n in 0..N {
                let mut message = Box::new(n);
                while let Err(back) = tx.push(message) {
                    message = back;
                    std::thread::yield_now();
                }
            }
        });
        for n in 0..N {
            loop {
                match rx.pop() {
                    Some(message) => break assert_eq!(*message, n),
                    None => std::thread::yield_now(),
                }
            }
        }
        producer.join().unwrap();
        assert!(rx.is_empty());
    }
}
