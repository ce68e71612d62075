//! A connection's membership in a set.

use std::sync::{Arc, Weak};

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::{EPOLLET, Hot, READABLE, Set, WRITABLE};
use crate::consumer::Consumer;
use crate::kernel::Kernel;
use crate::pair::Pair;

/// A connection in a set, with what the application has registered. The set's gate guards what changes.
///
/// The caller keeps it until [`Set::remove`]. One that is dropped before that pins its connection: the set does not know of it any more.
#[derive(Debug)]
#[must_use = "a dropped member pins its connection"]
pub struct Member<K: Kernel> {
    pair: Arc<Pair<K>>,
    set: Weak<Set<K>>,
    events: AtomicU32,
    data: AtomicU64,
    /// It is in the set's hot list.
    pub(super) is_hot: AtomicBool,
    pub(super) is_removed: AtomicBool,
}

impl<K: Kernel> Drop for Member<K> {
    fn drop(&mut self) {
        if !self.is_removed.load(Ordering::Relaxed) {
            self.pair.pin();
        }
    }
}

impl<K: Kernel> Member<K> {
    pub(super) fn new(set: &Arc<Set<K>>, pair: &Arc<Pair<K>>, events: u32, data: u64) -> Arc<Self> {
        Arc::new(Member {
            pair: Arc::clone(pair),
            set: Arc::downgrade(set),
            events: AtomicU32::new(events),
            data: AtomicU64::new(data),
            is_hot: AtomicBool::new(false),
            is_removed: AtomicBool::new(false),
        })
    }

    /// Returns the connection.
    pub fn pair(&self) -> &Arc<Pair<K>> {
        &self.pair
    }

    pub(super) fn register(&self, events: u32, data: u64) {
        self.events.store(events, Ordering::Relaxed);
        self.data.store(data, Ordering::Relaxed);
    }

    /// Returns whether unread bytes are an event for the application.
    #[inline]
    pub(super) fn wants_bytes(&self) -> bool {
        self.events.load(Ordering::Relaxed) & READABLE != 0
    }

    /// Returns whether room to send is an event of the kernel's at any time, and not one after a full buffer only.
    pub(super) fn wants_room(&self) -> bool {
        let events = self.events();
        events & EPOLLET == 0 && events & WRITABLE != 0
    }

    #[inline]
    pub(super) fn events(&self) -> u32 {
        self.events.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn data(&self) -> u64 {
        self.data.load(Ordering::Relaxed)
    }
}

impl<K: Kernel> Member<K> {
    /// C5 for a connection in this set, with the receive lock: the set's gate is tried, and no thread may sleep in the set. The connection
    /// becomes hot together with the carrier's change. Returns whether the ring carries or is asked for.
    pub(crate) fn set_ring(self: &Arc<Self>, consumer: &Consumer<'_, K>) -> bool {
        let Some(set) = self.set.upgrade() else { return consumer.set_ring() };
        let Some(mut hot) = set.gate.try_lock(consumer.kernel) else { return false };
        hot.sleepers == 0 && consumer.set_ring() && {
            hot.insert(self, true);
            true
        }
    }

    /// Returns whether the next epoll_wait(2) of the set would look at the ring, so that C5 pays.
    pub(crate) fn would_look(&self) -> bool {
        self.set.upgrade().is_some_and(|set| set.look.would_look())
    }
}

impl<K: Kernel> Hot<K> {
    /// Puts a member in the hot list. `is_drained`: what is in its ring was reported.
    pub(super) fn insert(&mut self, member: &Arc<Member<K>>, is_drained: bool) {
        if !member.is_hot.swap(true, Ordering::Relaxed) {
            self.push(member, is_drained);
        }
    }
}
