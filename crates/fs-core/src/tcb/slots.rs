//! The connections of a core, by slot.

use crate::rx::owner::Owner;
use crate::slab::NIL;
use crate::tcb::connection_stats::ConnectionStats;
use crate::tcb::{Slot, Tcb};
use alloc::vec::Vec;

/// A slot with the counters of its connection, if it is open: three consecutive cache lines, nearly
/// always on one page. With many connections, each further page that a segment needs costs a
/// page-table walk.
#[derive(Debug)]
#[repr(C, align(64))]
struct ConnectionSlot {
    slot: Slot,
    conn_stats: ConnectionStats,
}

const _: () = assert!(size_of::<ConnectionSlot>() == 192);

/// Connection slots.
#[derive(Debug)]
pub(crate) struct Slots {
    places: Vec<ConnectionSlot>,
    free: u32,
    pub(crate) live: usize,
    limit: u32,
}

impl Slots {
    /// Reserves memory for the maximum number of connections, if available: unused pages are not
    /// backed.
    pub(crate) fn new(limit: u32) -> Self {
        let limit = limit.min(Owner::INDEX);
        let mut places = Vec::new();
        // Otherwise the array grows.
        let _ = places.try_reserve_exact(limit as usize);
        Self { places, free: NIL, live: 0, limit }
    }

    /// Returns the address and size of its memory.
    pub(crate) fn memory(&self) -> (*const u8, usize) {
        (self.places.as_ptr().cast(), self.places.capacity() * size_of::<ConnectionSlot>())
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.live >= self.limit as usize
    }

    /// Takes a free slot; `make` receives its generation.
    pub(crate) fn insert(&mut self, make: impl FnOnce(u32) -> Slot) -> Option<u32> {
        if self.is_full() {
            return None;
        }
        self.live += 1;
        if let Some(ConnectionSlot { slot, .. }) = self.places.get_mut(self.free as usize)
            && let Slot::Free { next, generation } = *slot
        {
            let index = core::mem::replace(&mut self.free, next);
            *slot = make(generation);
            return Some(index);
        }
        self.places.push(ConnectionSlot { slot: make(1), conn_stats: ConnectionStats::default() });
        Some((self.places.len() - 1) as u32)
    }

    /// Like [`Slots::remove`], for a slot whose contents are no longer needed.
    pub(crate) fn vacate(&mut self, index: u32) {
        let slot = &mut self.places[index as usize].slot;
        let generation = slot.generation().wrapping_add(1).max(1);
        self.live -= 1;
        let next = core::mem::replace(&mut self.free, index);
        *slot = Slot::Free { next, generation };
    }

    /// Empties a slot. Handles to it are stale from now on.
    pub(crate) fn remove(&mut self, index: u32) -> Slot {
        let slot = &mut self.places[index as usize].slot;
        let generation = slot.generation().wrapping_add(1).max(1);
        self.live -= 1;
        let next = core::mem::replace(&mut self.free, index);
        core::mem::replace(slot, Slot::Free { next, generation })
    }

    #[inline]
    pub(crate) fn slot(&self, index: u32) -> &Slot {
        &self.places[index as usize].slot
    }

    #[inline]
    pub(crate) fn slot_mut(&mut self, index: u32) -> &mut Slot {
        &mut self.places[index as usize].slot
    }

    #[inline]
    pub(crate) fn open(&self, index: u32) -> Option<&Tcb> {
        match self.places.get(index as usize) {
            Some(ConnectionSlot { slot: Slot::Open(tcb), .. }) => Some(tcb),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn open_mut(&mut self, index: u32) -> Option<&mut Tcb> {
        match self.places.get_mut(index as usize) {
            Some(ConnectionSlot { slot: Slot::Open(tcb), .. }) => Some(tcb),
            _ => None,
        }
    }

    /// Prefetches the connection's counters.
    #[inline]
    pub(crate) fn prefetch_stats(&self, index: u32) {
        if let Some(place) = self.places.get(index as usize) {
            fs_prefetch::lines(&place.conn_stats);
        }
    }

    /// Prefetches the connection's control block.
    #[inline]
    pub(crate) fn prefetch_slot(&self, index: u32) {
        if let Some(place) = self.places.get(index as usize) {
            fs_prefetch::lines(&place.slot);
        }
    }

    /// Returns the counters of a connection.
    pub(crate) fn conn_stats(&self, index: u32) -> &ConnectionStats {
        &self.places[index as usize].conn_stats
    }

    pub(crate) fn conn_stats_mut(&mut self, index: u32) -> &mut ConnectionStats {
        &mut self.places[index as usize].conn_stats
    }

    #[inline]
    pub(crate) fn slot_and_stats(&mut self, index: u32) -> (&mut Slot, &mut ConnectionStats) {
        let ConnectionSlot { slot, conn_stats } = &mut self.places[index as usize];
        (slot, conn_stats)
    }

    /// Like `open_mut`, with the connection's counters.
    #[inline(always)]
    pub(crate) fn open_and_stats(&mut self, index: u32) -> Option<(&mut Tcb, &mut ConnectionStats)> {
        match self.places.get_mut(index as usize) {
            Some(ConnectionSlot { slot: Slot::Open(tcb), conn_stats }) => Some((tcb, conn_stats)),
            _ => None,
        }
    }

    pub(crate) fn generation(&self, index: u32) -> u32 {
        self.places[index as usize].slot.generation()
    }
}
