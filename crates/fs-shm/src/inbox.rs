//! Connections on their way to accept: a queue of slots, as large as there are slots, so it never overflows.
//!
//! One producer process (the opener; its threads take turns by `LocksHead::inbox`), any number of consumers. A consumer marks the
//! connection as accepted first, which one of them can, and moves the head afterwards, which anyone does who finds a
//! connection at the head that is marked: one that dies in between has taken nothing away from the others.

use std::mem::offset_of;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use rustix::io::Errno;

use crate::arena::Arena;
use crate::channel::Channel;
use crate::holder::Held;
use crate::layout::{Geometry, Head};

/// What is in an inbox, as the opener says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Entries that wait for accept.
    pub admitted: u32,
    /// Entries behind these: beyond the limit, or of those that gave up there.
    pub kept_out: u32,
}

impl Arena {
    /// Entries that wait for accept; of more than there are slots, which only a hostile opener says, none is taken.
    pub fn pending(&self) -> u32 {
        let waiting = self.head().inbox_tail.load(Relaxed).wrapping_sub(self.head().inbox_head.load(Relaxed));
        if waiting <= u64::from(self.geometry().slots) { waiting as u32 } else { 0 }
    }

    /// Whether any has been taken out, by an acceptor or because it was none.
    pub fn has_accepted(&self) -> bool {
        self.head().inbox_head.load(Acquire) != 0
    }

    /// Counts the entries there have been; the opener may write anything.
    pub fn pushed(&self) -> u64 {
        self.head().inbox_tail.load(Relaxed)
    }

    /// Says how many connections may wait for accept, and for how many milliseconds one without data is kept from its acceptor,
    /// in the memory of an arena (the daemon). Answers what is there after that ([`Arena::read_waiting`]): an entry that is not among
    /// these was pushed by one who sees this limit. Those that are kept out may be let in, where there is room ([`Arena::admit`]).
    ///
    /// # Errors
    /// Those of pwrite(2) and pread(2).
    pub fn write_limits(memory: BorrowedFd<'_>, geometry: Geometry, most: u32, defer: u32) -> Result<Waiting, Errno> {
        let words = u64::from(most) | u64::from(defer) << 32;
        let written = rustix::io::pwrite(memory, &words.to_le_bytes(), offset_of!(Head, accept_limit) as u64)?;
        if written != size_of::<u64>() {
            return Err(Errno::IO);
        }
        // With the one in `admit`.
        fence(SeqCst);
        Self::read_waiting(memory, geometry)
    }

    /// What is in the inbox of an arena that is not mapped, read from its memory (the daemon). An entry may move from one number to the
    /// other meanwhile; of more than there are slots, which only a hostile opener says, there is none.
    ///
    /// # Errors
    /// Those of pread(2).
    pub fn read_waiting(memory: BorrowedFd<'_>, geometry: Geometry) -> Result<Waiting, Errno> {
        const FIRST: usize = offset_of!(Head, inbox_tail);
        const LEN: usize = offset_of!(Head, inbox_head) + size_of::<u64>() - FIRST;
        let mut words = [0; LEN];
        if rustix::io::pread(memory, &mut words, FIRST as u64)? != LEN {
            return Err(Errno::IO);
        }
        let word = |at: usize| words[at - FIRST..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        let head = word(offset_of!(Head, inbox_head));
        let all = word(offset_of!(Head, inbox_tail)).wrapping_sub(head);
        if all > u64::from(geometry.slots) {
            return Ok(Waiting::default());
        }
        // Those that are taken were in.
        let admitted = word(offset_of!(Head, inbox_admitted)).wrapping_sub(head).cast_signed().clamp(0, all as i64);
        Ok(Waiting { admitted: admitted as u32, kept_out: (all as i64 - admitted) as u32 })
    }

    /// Milliseconds that a connection without data is kept from its acceptor; 0: it is not.
    pub(crate) fn defer(&self) -> u32 {
        self.head().defer.load(Relaxed)
    }

    /// Appends an entry: slot | generation << 32. `keep_out` is called, before anybody can see the entry, if it is beyond
    /// the limit. Ends with a full barrier.
    ///
    /// # Errors
    /// `EAGAIN`: `backlog` or more wait already.
    pub(crate) fn push(&self, held: Held<'_>, entry: u64, backlog: u32, keep_out: impl FnOnce()) -> Result<(), Errno> {
        let head = self.head();
        let tail = head.inbox_tail.load(Relaxed);
        let waiting = tail.wrapping_sub(head.inbox_head.load(Acquire));
        if waiting >= u64::from(backlog.min(self.geometry().slots)) {
            return Err(Errno::AGAIN);
        }
        let limit = u64::from(head.accept_limit.load(Relaxed));
        let next = tail.wrapping_add(1);
        let admit = || head.inbox_admitted.compare_exchange(tail, next, AcqRel, Relaxed).is_ok();
        let is_in = limit == 0 || waiting < limit && admit();
        if !is_in {
            keep_out();
        }
        self.record_time(entry as u32);
        self.inbox_entry(tail).store(entry, Relaxed);
        head.inbox_tail.store(next, Release);
        drop(held);
        if is_in {
            self.notify_arrival(entry as u32);
        } else {
            self.admit();
        }
        Ok(())
    }

    /// Lets those in that there is room for. After an entry was appended, or taken out, or the limit was raised: each of these
    /// looks at what the others have changed.
    pub fn admit(&self) {
        let head = self.head();
        // What the caller has changed, before the look at the limit and at the entries: who raises the limit looks at them after it.
        fence(SeqCst);
        let limit = u64::from(head.accept_limit.load(Relaxed));
        if limit == 0 || self.is_closed() {
            return;
        }
        let slots = u64::from(self.geometry().slots);
        let mut let_in = None;
        // Not more than fit: a hostile opener could go on pushing.
        for _ in 0..slots {
            let (first, tail) = (head.inbox_head.load(Acquire), head.inbox_tail.load(Acquire));
            let next = head.inbox_admitted.load(Acquire);
            // Those that are taken were in.
            let at = if next.wrapping_sub(first).cast_signed() < 0 { first } else { next };
            let behind = tail.wrapping_sub(at);
            if at.wrapping_sub(first) >= limit || behind == 0 || behind > slots {
                break;
            }
            let entry = self.inbox_entry(at).load(Relaxed);
            let channel = Channel::with_generation(self, entry as u32, (entry >> 32) as u32);
            if channel.is_some_and(|channel| channel.let_in()) {
                // The kernel's queue has it from here on.
                self.record_time(entry as u32);
                let_in = Some(entry as u32);
            }
            // Lost: another has done the same.
            let _lost = head.inbox_admitted.compare_exchange(next, at.wrapping_add(1), AcqRel, Relaxed);
        }
        if let Some(slot) = let_in {
            self.notify_arrival(slot);
        }
    }

    /// Whether some are behind those that may wait.
    pub(crate) fn has_kept_out(&self) -> bool {
        let head = self.head();
        // What was taken out, before the look at who is behind, as in `admit`.
        fence(SeqCst);
        let behind = head.inbox_tail.load(Acquire).wrapping_sub(head.inbox_admitted.load(Acquire));
        head.accept_limit.load(Relaxed) != 0 && behind.cast_signed() > 0
    }

    /// Since when the oldest entry waits, by the clock of [`Arena::changed`]; `None`: there is none. Good for order only: the
    /// opener may write anything.
    pub fn waiting_since(&self) -> Option<u64> {
        self.oldest().map(|(_, entry)| self.came(entry as u32))
    }

    /// When the first connection of all came, whether it waits still or not, if that is known; as [`Arena::waiting_since`].
    pub fn first_came(&self) -> Option<u64> {
        let tail = self.head().inbox_tail.load(Acquire);
        let is_known = tail != 0 && tail <= u64::from(self.geometry().slots);
        is_known.then(|| self.came(self.inbox_entry(0).load(Relaxed) as u32))
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
