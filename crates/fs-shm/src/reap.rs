//! What the daemon does with arenas of processes that are gone, and what it counts.

use std::sync::atomic::Ordering::Relaxed;

use crate::arena::Arena;
use crate::channel::Channel;
use crate::holder;

/// What an arena has carried so far. For statistics: both sides can write what it is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Connections, those that are open included.
    pub connections: u64,
    /// Payload, both directions.
    pub bytes: u64,
}

impl Arena {
    /// Frees the opener's lock if `attachment` holds it. Only for an attachment whose threads are gone.
    pub fn break_locks(&self, attachment: u32) {
        holder::break_lock(&self.head().inbox_lock, attachment);
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

    /// Takes everything out of the inbox and refuses it: the acceptors are gone (side B).
    pub fn refuse_pending(&self) {
        // Not more than fit: a hostile opener could go on pushing.
        for _ in 0..self.geometry().slots {
            let Some(channel) = Channel::accept(self) else { return };
            channel.abort_dead(Some(crate::Errno::CONNRESET));
        }
    }
}
