//! E6: epoll_ctl(2) of a connection changes the library's table only. The kernel is told before it is asked.
//!
//! A thread that looks at the rings needs nothing of the kernel's set. Programs that register EPOLLOUT for each message, or take a connection
//! out and put it in again, make two to five system calls a message. Of several changes before a thread asks the kernel, at most the
//! last one is told: that pays also while the kernel carries, and makes up for what the library costs there.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use super::LEVEL;
use crate::connection::{Hot, Member, Set};
use crate::kernel::{Kernel, KernelSet};

impl<K: Kernel> Set<K> {
    /// Takes note of EPOLL_CTL_MOD or EPOLL_CTL_ADD (`Some`), or EPOLL_CTL_DEL (`None`), of a descriptor that the kernel's set has. The
    /// caller knows that the operation fits what the application has registered, and that no other process has the set.
    ///
    /// Returns false if nothing is noted: a thread sleeps in the set, or the connection is pinned, edge-triggered or not in the kernel's set. The caller calls
    /// [`Set::tell`], and then the kernel.
    pub fn defer(
        &self,
        kernel: &impl KernelSet,
        member: &Arc<Member<K>>,
        fd: i32,
        registered: Option<(u32, u64)>,
    ) -> bool {
        self.gate.lock(kernel).is_ok_and(|mut hot| hot.defer(member, fd, registered))
    }

    /// Tells the kernel what it has not been told. Refused, in a signal handler amid a call of its thread: that call tells it.
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
        // A pinned one may have a second number, under which the kernel's set does not have it.
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
            member.is_untold.store(true, Ordering::Relaxed);
            self.untold.push(Arc::clone(member));
        }
        true
    }

    pub(super) fn tell(&mut self, kernel: &impl KernelSet) {
        if self.untold.is_empty() {
            return;
        }
        let mut untold = core::mem::take(&mut self.untold);
        for member in untold.drain(..) {
            member.is_untold.store(false, Ordering::Relaxed);
            if let Some(registration) = member.untold() {
                kernel.register(registration);
                member.is_told();
            }
            if member.is_out.swap(false, Ordering::Relaxed) {
                self.drop_member(&member);
                member.is_removed.store(true, Ordering::Relaxed);
                member.pair().leave_set(&member);
            }
        }
        // The list's memory is used again.
        self.untold = untold;
    }
}
