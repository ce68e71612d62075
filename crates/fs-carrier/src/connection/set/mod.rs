//! The rules of an epoll set, E1 to E6.
//!
//! The set is the application's own, in the kernel. This is what the library keeps about it in one
//! process: which of the promoted connections in it are **hot** (their ring carries, or has unread
//! bytes), and how many threads sleep in it. A hot connection is looked at by its word; before a
//! thread sleeps in the kernel, the kernel becomes the carrier of every hot connection. So a thread
//! that sleeps is woken by the kernel, always.
//!
//! | the caller's event | call |
//! |---|---|
//! | epoll_ctl(2) of a promoted connection | [`Set::before_control`], then the kernel's epoll_ctl, then [`Set::add`] or [`Set::change`] |
//! | a connection in a set is promoted | [`Set::add`] |
//! | epoll_ctl(2) of a connection in the set | [`Set::defer`]; false: [`Set::tell`], then as above |
//! | fork(2), exec(3), close(2), another use of the set | [`Set::tell`] before it |
//! | EPOLL_CTL_DEL, close(2) of the connection | [`Set::remove`] |
//! | epoll_wait(2) of any set in which a promoted connection may come to be | [`Set::wait`] |
//! | fork(2), in the child | the old [`Set`]s and [`Member`]s are forgotten, not dropped: a thread of the parent may have been in one. The first use of a set pins the connections in it ([`Pair::pin`](crate::pair::Pair::pin)) and adds them to a new `Set` |
//!
//! Locks are taken in this order: gate, the pair's membership, the pair's receive lock. A holder of
//! a later one only tries an earlier one.

mod defer;
mod hot;
mod member;
mod wait;

use core::sync::atomic::Ordering;
use std::sync::Arc;

use super::{Hot, Pair};
use crate::gate::Gate;
use crate::kernel::{Errno, Kernel, KernelSet};
use crate::merged::Merged;
use crate::spin::{Pacing, Spin};

pub use super::{Member, Set};

/// EPOLLIN.
pub const EPOLLIN: u32 = 1;
/// EPOLLRDNORM.
pub const EPOLLRDNORM: u32 = 0x40;
/// The events by which epoll(7) reports an unread byte.
const READABLE: u32 = EPOLLIN | EPOLLRDNORM;
/// EPOLLOUT and EPOLLWRNORM.
const WRITABLE: u32 = 4 | 0x100;
const EPOLLERR: u32 = 8;
const EPOLLHUP: u32 = 0x10;
const EPOLLRDHUP: u32 = 0x2000;
/// EPOLLET.
pub const EPOLLET: u32 = 1 << 31;
/// EPOLLONESHOT.
pub const EPOLLONESHOT: u32 = 1 << 30;
/// EPOLLEXCLUSIVE.
pub const EPOLLEXCLUSIVE: u32 = 1 << 28;
/// Level-triggered events without a condition.
const LEVEL: u32 = 0x3FFF;
/// These registrations wake one thread or report one event, so the kernel has to know every
/// arrival. They are never hot.
const KERNEL_ONLY: u32 = EPOLLONESHOT | EPOLLEXCLUSIVE;

/// The calling thread holds the gate already: this is a signal handler that interrupted its own
/// thread's call.
const REENTERED: Errno = Errno::INTR;

impl<K: Kernel> Set<K> {
    /// Makes an empty set.
    #[must_use]
    pub fn new(pacing: Pacing) -> Arc<Self> {
        Arc::new(Set { gate: Gate::new(Hot::new()), pacing, spin: Spin::new(pacing), merged: Merged::default() })
    }

    /// Must be called before the kernel's epoll_ctl(2) that registers a connection for `events`.
    /// EPOLLONESHOT and EPOLLEXCLUSIVE pin the connection.
    pub fn before_control(pair: &Pair<K>, events: u32) {
        if events & KERNEL_ONLY != 0 {
            pair.pin();
        }
    }

    /// Adds a connection that the application has registered in the kernel's set for `events`, with `data`.
    ///
    /// A connection in a second set is pinned. The returned [`Member`] is for [`Set::change`] and [`Set::remove`].
    ///
    /// # Errors
    /// Those of [`KernelSet::interrupt`]: a thread sleeps in the set, has to look at unread ring
    /// bytes, and cannot be told. The connection is not in the set, and the caller takes it out of
    /// the kernel's.
    pub fn add(
        self: &Arc<Self>,
        kernel: &impl KernelSet,
        pair: &Arc<Pair<K>>,
        events: u32,
        data: u64,
    ) -> Result<Arc<Member<K>>, Errno> {
        let member = Member::new(self, pair, events, data);
        let mut hot = self.gate.lock(kernel).map_err(|_held| REENTERED)?;
        self.enter(&mut hot, kernel, &member, events)?;
        Ok(member)
    }

    /// Like [`Set::add`] for a connection that was in the set before: its removed member is used again.
    ///
    /// # Errors
    /// The errors of [`Set::add`].
    pub fn add_again(
        &self,
        kernel: &impl KernelSet,
        member: &Arc<Member<K>>,
        events: u32,
        data: u64,
    ) -> Result<(), Errno> {
        let mut hot = self.gate.lock(kernel).map_err(|_held| REENTERED)?;
        member.register(events, data);
        member.is_removed.store(false, Ordering::Relaxed);
        self.enter(&mut hot, kernel, member, events)
    }

    fn enter(
        &self,
        hot: &mut Hot<K>,
        kernel: &impl KernelSet,
        member: &Arc<Member<K>>,
        events: u32,
    ) -> Result<(), Errno> {
        let pair = member.pair();
        self.expect_edge(events);
        if events & KERNEL_ONLY != 0 || !pair.enter_set(member) {
            pair.pin();
        }
        hot.take_in(member, kernel).inspect_err(|_error| {
            hot.drop_member(member);
            pair.leave_set(member);
        })?;
        hot.count(member, true);
        Ok(())
    }

    /// Changes what the application has registered (EPOLL_CTL_MOD).
    ///
    /// # Errors
    /// The errors of [`Set::add`]; the connection is no longer in the set.
    pub fn change(
        &self,
        kernel: &impl KernelSet,
        member: &Arc<Member<K>>,
        events: u32,
        data: u64,
    ) -> Result<(), Errno> {
        let mut hot = self.gate.lock(kernel).map_err(|_held| REENTERED)?;
        if events & KERNEL_ONLY != 0 {
            member.pair().pin();
        }
        self.expect_edge(events);
        hot.drop_member(member);
        hot.count(member, false);
        member.register(events, data);
        hot.take_in(member, kernel).inspect_err(|_error| {
            hot.drop_member(member);
            member.pair().leave_set(member);
        })?;
        hot.count(member, true);
        Ok(())
    }

    /// Handles the application's shutdown(2), which is an edge for unread bytes too
    /// (`sk_state_change` of inet_shutdown(), net/ipv4/af_inet.c).
    pub fn repeat_edge(&self, kernel: &impl KernelSet, member: &Member<K>) {
        if let Ok(mut hot) = self.gate.lock(kernel) {
            hot.repeat_edge(member);
        }
    }

    /// Handles a new registration for `events`. With EPOLLET the kernel has an edge for what is
    /// ready now. The next call asks the kernel first, so that the ring's bytes and that edge are
    /// one event.
    fn expect_edge(&self, events: u32) {
        if events & EPOLLET != 0 {
            self.merged.is_crowded_out();
        }
    }

    /// Removes a connection from the set, for EPOLL_CTL_DEL or when its last descriptor is closed.
    pub fn remove(&self, kernel: &impl KernelSet, member: &Arc<Member<K>>) {
        member.is_removed.store(true, Ordering::Relaxed);
        // If this fails, the caller is a signal handler. The member is pinned, so it leaves the hot
        // list when its ring is empty.
        match self.gate.lock(kernel) {
            Ok(mut hot) => {
                hot.drop_member(member);
                hot.count(member, false);
            }
            Err(_held) => member.pair().pin(),
        }
        member.pair().leave_set(member);
    }

    /// The set is about to be in another one, whose sleepers only the kernel knows: it is readable
    /// as long as a ring in it has bytes to report. The interruption of E5 says so. The next scan
    /// that finds nothing ends it, or the next call of this function.
    ///
    /// # Errors
    /// The errors of [`KernelSet::interrupt`].
    pub fn show_rest(&self, kernel: &impl KernelSet) -> Result<(), Errno> {
        let mut hot = self.gate.lock(kernel).map_err(|_held| REENTERED)?;
        match (hot.has_event(), hot.is_interrupted) {
            (true, false) => kernel.interrupt()?,
            (false, true) => kernel.end_interrupt(),
            _ => return Ok(()),
        }
        hot.is_interrupted = !hot.is_interrupted;
        Ok(())
    }

    /// Returns whether a ring in the set has bytes to report.
    pub fn has_event(&self, kernel: &impl KernelSet) -> bool {
        self.gate.lock(kernel).is_ok_and(|hot| hot.has_event())
    }

    /// Returns whether a thread sleeps in the set, or is about to.
    pub fn has_sleepers(&self, kernel: &impl KernelSet) -> bool {
        self.gate.lock(kernel).is_ok_and(|hot| hot.sleepers != 0)
    }

    /// Frees the gate of the calling thread after it has jumped out of a call (siglongjmp).
    pub fn break_own_locks(&self, kernel: &impl KernelSet) {
        self.gate.break_own(kernel);
    }
}
