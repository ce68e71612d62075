//! A connection's membership in a set.

use std::sync::Arc;

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::{EPOLLET, READABLE, WRITABLE};
use crate::connection::{Hot, Member, Pair, Set};
use crate::consumer::Consumer;
use crate::kernel::{Event, Kernel, Registration};
use crate::position::Position;

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
            told_events: AtomicU32::new(events),
            told_data: AtomicU64::new(data),
            fd: AtomicI32::new(-1),
            is_untold: AtomicBool::new(false),
            is_out: AtomicBool::new(false),
            is_hot: AtomicBool::new(false),
            place: AtomicUsize::new(0),
            is_removed: AtomicBool::new(false),
            is_spent: AtomicBool::new(false),
        })
    }

    /// Returns the connection.
    pub fn pair(&self) -> &Arc<Pair<K>> {
        &self.pair
    }

    /// Stores the application's registration, which the kernel has too.
    pub(super) fn register(&self, events: u32, data: u64) {
        self.defer(events, data);
        self.is_told(events);
    }

    /// Stores the application's registration, which the kernel does not have.
    pub(super) fn defer(&self, events: u32, data: u64) {
        self.is_spent.store(false, Ordering::Relaxed);
        self.events.store(events, Ordering::Relaxed);
        self.data.store(data, Ordering::Relaxed);
    }

    /// Records that the kernel's registration is the application's, for these events.
    pub(super) fn is_told(&self, events: u32) {
        self.told_events.store(events, Ordering::Relaxed);
        self.told_data.store(self.data(), Ordering::Relaxed);
    }

    pub(super) fn told_events(&self) -> u32 {
        self.told_events.load(Ordering::Relaxed)
    }

    /// Returns the registration that the kernel needs to report `events`.
    pub(super) fn untold(&self, events: u32) -> Option<Registration> {
        let fd = self.fd.load(Ordering::Relaxed);
        if self.is_out.load(Ordering::Relaxed) {
            return Some(Registration { fd, event: None });
        }
        let data = self.data();
        let is_known = events == self.told_events() && data == self.told_data.load(Ordering::Relaxed);
        (!is_known).then_some(Registration { fd, event: Some(Event { events, data }) })
    }

    /// Returns whether the ring has made the one report of an EPOLLONESHOT registration. The
    /// kernel's one has no events then, but would report an error or a hang-up, which the set drops
    /// as long as the member is in it.
    pub fn is_spent(&self) -> bool {
        self.is_spent.load(Ordering::Relaxed)
    }

    /// Returns whether the kernel may have to be told of a change ([`Set::tell`]).
    pub fn is_untold(&self) -> bool {
        self.is_untold.load(Ordering::Relaxed)
    }

    /// Returns whether unread bytes are an event for the application.
    #[inline]
    pub(super) fn wants_bytes(&self) -> bool {
        self.events.load(Ordering::Relaxed) & READABLE != 0
    }

    /// Returns true if space to send is always an event of the kernel's, and not only after a full
    /// buffer.
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
    /// C5 for a connection in this set, with the receive lock: the set's gate is tried, and no
    /// thread may sleep in the set. The connection becomes hot together with the carrier's change.
    /// Returns whether the ring carries or is asked for.
    pub(crate) fn set_ring(self: &Arc<Self>, consumer: &Consumer<'_, K>) -> bool {
        let Some(set) = self.set.upgrade() else { return consumer.set_ring() };
        let Some(mut hot) = set.gate.try_lock(consumer.kernel) else { return false };
        hot.sleepers == 0 && consumer.set_ring() && {
            // The peer may have sent since the ring carries. These bytes are new events, and
            // earlier ones are not.
            hot.insert(self, Some(consumer.head()));
            true
        }
    }

    /// Returns whether the next epoll_wait(2) of the set would look at the ring, so that C5 pays.
    pub(crate) fn would_spin(&self) -> bool {
        self.set.upgrade().is_some_and(|set| set.spin.would_spin(set.pacing))
    }
}

impl<K: Kernel> Hot<K> {
    /// Puts a member in the hot list. `reported`: the application knows of ring bytes up to here.
    pub(super) fn insert(&mut self, member: &Arc<Member<K>>, reported: Option<Position>) {
        if !member.is_hot.swap(true, Ordering::Relaxed) {
            self.push(member, reported);
        }
    }
}
