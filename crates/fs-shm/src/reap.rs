//! What the daemon does with arenas of processes that are gone, and what it counts.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::Relaxed;

use rustix::fs::SeekFrom;

use crate::arena::Arena;
use crate::channel::Channel;
use crate::holder;
use crate::layout::SlotLocks;

/// What an arena has carried so far. For statistics: both sides can write what it is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Connections, those that are open included.
    pub connections: u64,
    /// Payload, both directions.
    pub bytes: u64,
}

impl Arena {
    /// Frees the opener's lock if `attachment` holds it. Only for an attachment whose threads are gone.
    pub fn break_locks(&self, attachment: u32) {
        holder::break_lock(&self.locks().inbox, attachment);
    }

    /// Frees all locks of this side that `attachment` holds, of whatever slot: a process may have let go of a connection that others hold
    /// still, and have ended while it did. Only for an attachment whose threads are gone. By the pages that the file of the locks has
    /// (`locks`, [`Memory::of`](crate::Memory::of)), as which slots are in use is the peer's word too. Answers the slots whose locks it held.
    pub fn break_all_locks(&self, locks: BorrowedFd<'_>, attachment: u32) -> Vec<u32> {
        self.break_locks(attachment);
        let mut broken = Vec::new();
        let mut from = 0;
        // An error: there is nothing behind it.
        while let Ok(begin) = rustix::fs::seek(locks, SeekFrom::Data(from)) {
            let end = rustix::fs::seek(locks, SeekFrom::Hole(begin)).unwrap_or(u64::MAX);
            let first =
                (begin.saturating_sub(self.geometry().slot_locks(0) as u64) / size_of::<SlotLocks>() as u64) as u32;
            let slots =
                (first..self.geometry().slots).take_while(|&slot| (self.geometry().slot_locks(slot) as u64) < end);
            for slot in slots {
                let locks = self.slot_locks(slot);
                let is_its = [&locks.receive, &locks.send].into_iter().any(|lock| holder::is_of(lock, attachment));
                if is_its && let Some(channel) = Channel::in_any_life(self, slot) {
                    channel.break_locks(attachment);
                    broken.push(slot);
                }
            }
            from = end;
        }
        broken
    }

    /// Frees the opener's lock if this very thread holds it, which has jumped out of the call that took it.
    pub fn break_own_lock(&self) {
        holder::break_own(&self.locks().inbox);
    }

    /// Whether a thread of this process has a lock of this side in one of the slots 64 `word` … 64 `word` + 63: it is in the middle of a
    /// call, whatever the words say that the peer writes. In memory that one of them was used in: of others it would take a page.
    pub fn is_locked_here(&self, word: usize) -> bool {
        let slots = self.geometry().slots;
        let first = u32::try_from(word).unwrap_or(u32::MAX).saturating_mul(64).min(slots);
        (first..slots.min(first.saturating_add(64))).any(|slot| {
            let locks = self.slot_locks(slot);
            [&locks.receive, &locks.send].into_iter().any(|lock| holder::is_of(lock, holder::attachment()))
        })
    }

    /// Slots in use now.
    pub fn used_slots(&self) -> impl Iterator<Item = u32> + '_ {
        self.slot_map().iter().enumerate().flat_map(|(i, word)| {
            let word = word.load(Relaxed);
            (0..64).filter(move |bit| word >> bit & 1 != 0).map(move |bit| i as u32 * 64 + bit)
        })
    }

    /// Frees a slot that is marked as taken though nothing lives in it: who was opening it, or freeing it, has ended.
    pub fn give_back_slot(&self, slot: u32) {
        if slot < self.geometry().slots && Channel::at(self, slot).is_none() {
            self.give_slot(slot);
        }
    }

    /// Takes those out of the front of the inbox whose openers have given up (side B): they keep nobody, and are not to be seen.
    pub(crate) fn drop_gave_up(&self) {
        for _ in 0..self.geometry().slots {
            let Some((position, entry)) = self.oldest() else { return };
            let channel = Channel::with_generation(self, entry as u32, (entry >> 32) as u32);
            let Some(channel) = channel.filter(|channel| channel.state().is_some_and(|state| state.gave_up())) else {
                return;
            };
            let is_mine = channel.take_unaccepted();
            self.pass(position);
            if is_mine {
                channel.abort_dead(None);
            }
        }
    }

    /// What it has carried so far.
    pub fn totals(&self) -> Totals {
        let head = self.head();
        let mut totals = Totals { connections: head.ended.load(Relaxed), bytes: head.ended_bytes.load(Relaxed) };
        for channel in self.used_slots().filter_map(|slot| Channel::at(self, slot)) {
            totals.connections = totals.connections.wrapping_add(1);
            totals.bytes = totals.bytes.wrapping_add(channel.carried());
        }
        totals
    }

    /// Resets all connections that there are: both sides find `errno` (or a broken pipe, where its peer has ended), whatever they
    /// hold of them. Never waits. Answers how many were open.
    pub fn reset_all(&self, errno: crate::Errno) -> usize {
        let all = self.used_slots().filter_map(|slot| Channel::at(self, slot));
        all.filter(|channel| channel.reset_unless_over(errno)).count()
    }

    /// Takes everything out of the inbox and refuses it: the acceptors are gone (side B).
    pub fn refuse_pending(&self) {
        // Not more than fit: a hostile opener could go on pushing.
        for _ in 0..self.geometry().slots {
            // What is not connected yet is refused.
            if let Some((_, entry)) = self.oldest()
                && let Some(channel) = Channel::with_generation(self, entry as u32, (entry >> 32) as u32)
                && !channel.is_core()
            {
                channel.set_failed(crate::Errno::CONNREFUSED);
            }
            let Some(channel) = Channel::accept(self) else { return };
            channel.abort_dead(Some(crate::Errno::CONNRESET));
        }
    }
}
