//! Connections on their way to accept: a queue of slots, as large as there are slots, so it never overflows.
//!
//! One producer process (the opener; its threads take turns by `inbox_lock`), any number of consumers. A consumer marks the
//! connection as accepted first, which one of them can, and moves the head afterwards, which anyone does who finds a
//! connection at the head that is marked: one that dies in between has taken nothing away from the others.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use rustix::io::Errno;

use crate::arena::Arena;
use crate::holder::{self, Users};

impl Arena {
    /// Entries that wait for accept. Hostile values are cut to the number of slots.
    pub fn pending(&self) -> u32 {
        let waiting = self.head().inbox_tail.load(Relaxed).wrapping_sub(self.head().inbox_head.load(Relaxed));
        waiting.min(u64::from(self.geometry().slots)) as u32
    }

    /// Counts the entries there have been; the opener may write anything.
    pub fn pushed(&self) -> u64 {
        self.head().inbox_tail.load(Relaxed)
    }

    /// Appends an entry: slot | generation << 32.
    ///
    /// # Errors
    /// `EAGAIN`: `backlog` or more wait already. Those of [`holder::lock`].
    pub(crate) fn push(&self, entry: u64, backlog: u32) -> Result<(), Errno> {
        let head = self.head();
        let held = holder::lock(&head.inbox_lock, Users::Several)?;
        let tail = head.inbox_tail.load(Relaxed);
        let waiting = tail.wrapping_sub(head.inbox_head.load(Acquire));
        if waiting >= u64::from(backlog.min(self.geometry().slots)) {
            return Err(Errno::AGAIN);
        }
        self.inbox_entry(tail).store(entry, Relaxed);
        head.inbox_tail.store(tail.wrapping_add(1), Release);
        drop(held);
        self.notify_inbox(entry as u32);
        Ok(())
    }

    /// The oldest entry and its position. It stays until [`Arena::pass`].
    pub(crate) fn oldest(&self) -> Option<(u64, u64)> {
        let head = self.head();
        let first = head.inbox_head.load(Acquire);
        let waiting = head.inbox_tail.load(Acquire).wrapping_sub(first);
        let is_there = waiting != 0 && waiting <= u64::from(self.geometry().slots);
        is_there.then(|| (first, self.inbox_entry(first).load(Relaxed)))
    }

    /// The entry at this position has been taken, by the caller or by one who was faster and may have died since.
    pub(crate) fn pass(&self, position: u64) {
        // Lost: another has passed it.
        let _ = self.head().inbox_head.compare_exchange(position, position.wrapping_add(1), AcqRel, Relaxed);
    }

    /// Whether an entry for `slot` in its life `generation` waits; exact where nobody pushes any more.
    pub fn has_entry(&self, slot: u32, generation: u32) -> bool {
        let head = self.head();
        let first = head.inbox_head.load(Acquire);
        (0..u64::from(self.pending())).any(|i| {
            self.inbox_entry(first.wrapping_add(i)).load(Relaxed) == u64::from(slot) | u64::from(generation) << 32
        })
    }
}
