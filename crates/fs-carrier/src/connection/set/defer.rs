//! E6: epoll_ctl(2) of a connection changes the library's table only. The kernel is told before it is asked.
//!
//! A thread that looks at the rings needs nothing of the kernel's set. Programs that register
//! EPOLLOUT for each message, or take a connection out and put it in again, make two to five system
//! calls a message. Of several changes before a thread asks the kernel, at most the last one is
//! told: that pays also while the kernel carries, and makes up for what the library costs there.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use super::{LEVEL, WRITABLE};
use crate::connection::{Hot, Member, Set};
use crate::kernel::{Kernel, KernelSet};

impl<K: Kernel> Set<K> {
    /// Records EPOLL_CTL_MOD or EPOLL_CTL_ADD (`Some`), or EPOLL_CTL_DEL (`None`), of a descriptor
    /// that the kernel's set has. The caller knows that the operation is valid for the
    /// application's registration, and that no other process has the set.
    ///
    /// Returns false if nothing is noted: a thread sleeps in the set, or the connection is pinned,
    /// edge-triggered or not in the kernel's set. The caller calls [`Set::tell`], and then the
    /// kernel.
    pub fn defer(
        &self,
        kernel: &impl KernelSet,
        member: &Arc<Member<K>>,
        fd: i32,
        registered: Option<(u32, u64)>,
    ) -> bool {
        self.gate.lock(kernel).is_ok_and(|mut hot| hot.defer(member, fd, registered))
    }

    /// Makes the deferred epoll_ctl(2) calls. If it fails in a signal handler in the middle of a
    /// call of its thread, that call makes them.
    pub fn tell(&self, kernel: &impl KernelSet) {
        if let Ok(mut hot) = self.gate.lock(kernel) {
            hot.tell(kernel);
        }
    }
}

impl<K: Kernel> Hot<K> {
    fn defer(&mut self, member: &Arc<Member<K>>, fd: i32, registered: Option<(u32, u64)>) -> bool {
        let (events, data) = registered.unwrap_or((0, member.data()));
        let is_level = (events | member.told_events()) & !LEVEL == 0;
        // A pinned connection may have a second number, under which the kernel's set does not have
        // it.
        let is_pinned = member.pair().incoming_word().is_pinned();
        if self.sleepers != 0 || !is_level || is_pinned || member.is_removed.load(Ordering::Relaxed) {
            return false;
        }
        self.count(member, false);
        member.defer(events, data);
        self.count(member, true);
        member.is_out.store(registered.is_none(), Ordering::Relaxed);
        self.renew(member);
        if !member.is_untold() {
            member.fd.store(fd, Ordering::Relaxed);
            // A handler that jumps out in between leaves a member that is in the list twice, and not one
            // of which the kernel is never told.
            self.untold.push(Arc::clone(member));
            member.is_untold.store(true, Ordering::Relaxed);
        }
        true
    }

    pub(super) fn tell(&mut self, kernel: &impl KernelSet) {
        self.tell_which(kernel, |_, _| 0, |_, _| true);
    }

    /// Prepares a call to the kernel that does not wait: makes the deferred epoll_ctl(2) calls that
    /// it needs. Returns false if the call is not needed, because rings report the deferred events,
    /// and the kernel has nothing by its present registrations.
    ///
    /// Registrations that the application has withdrawn stay as long as they report nothing. A
    /// program that registers a thousand connections for space and bytes in turn asks with both
    /// kinds deferred. If each of these calls withdrew what the other kind needs again, the kernel
    /// would be told of each message.
    pub(super) fn prepare_ask(&mut self, kernel: &impl KernelSet) -> bool {
        if self.untold.is_empty() {
            return true;
        }
        self.tell_which(kernel, Self::known_to_ring, |hot, member| hot.unknown_to_all(member) != 0);
        if kernel.has_nothing() {
            return false;
        }
        // If the kernel knew of space that the ring reports anyway, it would have an event at every
        // call.
        self.tell_which(kernel, Self::known_to_ring, |_, _| true);
        true
    }

    /// Makes the deferred calls of the members that `which` selects, for all events except those that `except` returns.
    fn tell_which(
        &mut self,
        kernel: &impl KernelSet,
        except: impl Fn(&Self, &Member<K>) -> u32,
        which: impl Fn(&Self, &Member<K>) -> bool,
    ) {
        // A member stays in the list until all of this is done: a signal handler may jump out of the kernel's call.
        let mut i = 0;
        while let Some(member) = self.untold.get(i) {
            if !which(self, member) {
                i += 1;
                continue;
            }
            let events = member.events() & !except(self, member);
            let is_out = member.is_out.load(Ordering::Relaxed);
            if is_out {
                // After such a jump the kernel's set may not have it. No later EPOLL_CTL_ADD may be deferred.
                member.is_removed.store(true, Ordering::Relaxed);
            }
            if let Some(registration) = member.untold(events) {
                kernel.register(registration);
                member.is_told(events);
            }
            if is_out {
                let member = Arc::clone(member);
                self.drop_member(&member);
                member.pair().leave_set(&member);
                member.is_out.store(false, Ordering::Relaxed);
            } else if events != member.events() {
                i += 1;
                continue;
            }
            // A handler that jumps out in between leaves a member in the list that has been told, and not one that
            // no later call enters.
            self.untold[i].is_untold.store(false, Ordering::Relaxed);
            self.untold.swap_remove(i);
        }
    }

    /// Returns which of a member's events its ring reports at the moment, so that the kernel need not know of them.
    fn known_to_ring(&self, member: &Member<K>) -> u32 {
        let entry = member.is_hot.load(Ordering::Relaxed).then(|| &self.list[member.place.load(Ordering::Relaxed)]);
        entry.map_or(0, |entry| if entry.has_room(entry.word.load()) { member.events() & WRITABLE } else { 0 })
    }

    /// Returns the events of a member that neither the kernel nor the ring would report.
    fn unknown_to_all(&self, member: &Member<K>) -> u32 {
        let events = if member.is_out.load(Ordering::Relaxed) { 0 } else { member.events() };
        events & !member.told_events() & !self.known_to_ring(member)
    }
}
