//! Timers with one constant delay: the last one pushed is due last, so a queue suffices.

use crate::time::Instant;
use alloc::collections::VecDeque;

/// Below this capacity (entries) the queue is never shrunk. Too low: an allocation for every small
/// burst. Too high: unused memory.
const CAPACITY_KEPT: usize = 256;

/// A queue of (deadline, token) for timers that all have the same delay.
///
/// Deadlines must be pushed in order, which a constant delay and a clock that never goes back
/// guarantee. One that is pushed out of order waits behind earlier entries, so it is late and never
/// early.
#[derive(Clone, Debug)]
pub(crate) struct Fifo<T> {
    queue: VecDeque<(Instant, T)>,
}

impl<T> Default for Fifo<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Fifo<T> {
    /// Makes an empty queue; allocates nothing.
    pub(crate) const fn new() -> Self {
        Self { queue: VecDeque::new() }
    }

    /// Adds a token that is due at `at`.
    #[inline]
    pub(crate) fn push(&mut self, at: Instant, token: T) {
        self.queue.push_back((at, token));
    }

    /// Removes and returns the oldest token if it is due at `now`.
    #[inline]
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<T> {
        if self.queue.front()?.0 > now {
            return None;
        }
        self.pop()
    }

    /// Returns the tokens that [`Fifo::pop_due`] will return, in this order.
    #[inline]
    pub(crate) fn due(&self, now: Instant) -> impl Iterator<Item = &T> {
        self.queue.iter().take_while(move |entry| entry.0 <= now).map(|entry| &entry.1)
    }

    /// Removes and returns the oldest token, due or not (to make space, or when shutting down).
    pub(crate) fn pop(&mut self) -> Option<T> {
        let (_, token) = self.queue.pop_front()?;
        // A burst's memory is freed in halves, so that a queue of varying length does not
        // reallocate each time.
        let capacity = self.queue.capacity();
        if capacity > CAPACITY_KEPT && self.queue.len() < capacity / 8 {
            self.queue.shrink_to(capacity / 2);
        }
        Some(token)
    }

    /// Returns the oldest token.
    pub(crate) fn front(&self) -> Option<&T> {
        self.queue.front().map(|entry| &entry.1)
    }

    /// Returns the oldest token and its deadline.
    #[cfg(test)]
    pub(crate) fn peek(&self) -> Option<&(Instant, T)> {
        self.queue.front()
    }

    /// Returns when [`Fifo::pop_due`] has a token.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.queue.front().map(|entry| entry.0)
    }

    /// Returns the number of tokens.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Returns true if the queue is empty.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn due_equals_popped() {
        let mut fifo = Fifo::new();
        for i in 0..10u64 {
            fifo.push(Instant::from_millis(i / 2), i);
        }
        for ms in [0, 0, 3, 9] {
            let now = Instant::from_millis(ms);
            let due: Vec<u64> = fifo.due(now).copied().collect();
            let popped: Vec<u64> = core::iter::from_fn(|| fifo.pop_due(now)).collect();
            assert_eq!(due, popped);
        }
        assert!(fifo.is_empty());
    }
}
