//! A promoted connection: a kernel socket and its two directions, as one end sees them.

mod recv;

pub use super::Pair;

use std::sync::{Arc, Weak};

use super::Member;
use crate::consumer::{Consumer, Idle};
use crate::counters::{Counters, Counts};
use crate::crowd::Crowd;
use crate::exact;
use crate::gate::Gate;
use crate::kept::KeptError;
use crate::kernel::{Errno, Kernel};
use crate::position::Position;
use crate::producer::{self, Producer};
use crate::region::{End, Region, SideRef, WordRef};
use crate::spin::{Pacing, Spin};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::word::Snapshot;

/// C7: maximum wait for kernel bytes that precede the ring's, before the words are read again.
pub(crate) const BEHIND_NS: u64 = 1_000_000;

/// A thread that sleeps on the socket outside of [`Pair::recv`] ([`Pair::before_sleep`]); dropped when it is awake.
///
/// If it is never dropped (the thread has jumped out of its sleep), the kernel stays the carrier,
/// which is slower but correct.
#[derive(Debug)]
#[must_use]
pub struct Asleep<'a, K: Kernel>(&'a Pair<K>);

impl<K: Kernel> Drop for Asleep<'_, K> {
    fn drop(&mut self) {
        self.0.after_sleep();
    }
}

impl<K: Kernel> Pair<K> {
    /// Makes the end of a connection whose bytes were all the kernel's so far. The other end may
    /// follow at any later time, or never.
    ///
    /// `side` is memory of zeros that the holders of this end alone map. The caller has made sure
    /// that no thread is in a call on the socket, and that [`exact::carried`] is what it has
    /// counted itself.
    ///
    /// All that this end has sent so far counts as one send, which [`Region::create`] has begun:
    /// `K` and `R` count from the connection's first byte, so the two ends need no common moment.
    ///
    /// # Errors
    /// The kernel gives no TCP_INFO, or the numbers do not stand still (`EAGAIN`): the connection is left as it is.
    pub fn promote(kernel: K, region: Region, end: End, side: SideRef, pacing: Pacing) -> Result<Self, Errno> {
        kernel.tcp_info()?;
        let carried = exact::carried(&kernel).ok_or(Errno::AGAIN)?;
        let view = region.view(end, side);
        view.side().receive.received.store(carried.taken, Ordering::Release);
        let (outgoing, _) = view.outgoing();
        outgoing.line_b.sent.fetch_add(carried.sent, Ordering::AcqRel);
        outgoing.line_a.word.join();
        Ok(Pair {
            spin: Spin::new(pacing),
            kernel,
            view,
            pacing,
            sleepers: AtomicU32::new(0),
            is_reported: AtomicU32::new(0),
            asked_ns: AtomicU64::new(0),
            sent_before_wait: AtomicU64::new(u64::MAX),
            kept_error: KeptError::new(),
            membership: Gate::new(Weak::new()),
            counters: Counters::default(),
        })
    }

    /// Completes the promotion: from now on [`Pair::recv`] receives the bytes.
    pub fn begin(&self) {
        if self.pacing.is_eager {
            self.try_set_ring();
        }
    }

    /// Returns the kernel's socket.
    pub fn kernel(&self) -> &K {
        &self.kernel
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn region_side(&self) -> &crate::layout::Side {
        self.view.side()
    }

    /// Returns what this end has done so far.
    pub fn counts(&self) -> Counts {
        self.counters.read()
    }

    /// Returns the words of the outgoing and of the incoming direction.
    pub fn words(&self) -> [Snapshot; 2] {
        [self.view.outgoing(), self.view.incoming()].map(|(direction, _)| direction.line_a.word.load())
    }

    #[inline]
    fn producer(&self) -> Producer<'_, K> {
        let (direction, ring) = self.view.outgoing();
        let (incoming, _) = self.view.incoming();
        Producer {
            direction,
            ring,
            incoming,
            side: self.view.side(),
            kernel: &self.kernel,
            kept_error: &self.kept_error,
            pacing: self.pacing,
            spin: &self.spin,
            counters: &self.counters,
        }
    }

    #[inline]
    pub(crate) fn consumer(&self) -> Consumer<'_, K> {
        let (direction, ring) = self.view.incoming();
        Consumer {
            direction,
            ring,
            side: self.view.side(),
            kernel: &self.kernel,
            sleepers: &self.sleepers,
            counters: &self.counters,
        }
    }

    /// Sends bytes by the carrier of the moment, as send(2) does. Returns how many; fewer than all
    /// only where send(2) returned fewer.
    ///
    /// # Errors
    /// The errors of send(2).
    #[inline]
    pub fn send(&self, bytes: &[u8], dont_wait: bool) -> Result<usize, Errno> {
        let (direction, ring) = self.view.outgoing();
        let (incoming, _) = self.view.incoming();
        match producer::send_short(direction, ring, incoming, self.view.side(), &self.kernel, bytes) {
            Some(()) => {
                self.counters.ring_sends.add();
                Ok(bytes.len())
            }
            None => self.send_any(bytes, dont_wait),
        }
    }

    #[inline(never)]
    fn send_any(&self, bytes: &[u8], dont_wait: bool) -> Result<usize, Errno> {
        if bytes.is_empty() {
            return self.kernel.send(bytes, dont_wait);
        }
        if self.pacing.is_eager {
            self.try_set_ring();
        }
        self.producer().send(bytes, dont_wait)
    }

    /// Hands bytes to the kernel by a call of the caller's: sendfile(2), splice(2), sendmsg(2) with
    /// control data. The kernel carries from here on, until the receiver asks for the ring again.
    /// `may_hold`: the kernel may hold the bytes back until more come (P6).
    ///
    /// # Errors
    /// The errors of `call`, which returns how many bytes it handed over.
    pub fn send_by_kernel(
        &self,
        may_hold: bool,
        mut call: impl FnMut(&K) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let producer = self.producer();
        loop {
            producer.to_kernel(false);
            let seen = producer.direction.line_a.word.load();
            if let Some(result) = producer.send_by_kernel(seen, may_hold, || call(&self.kernel)) {
                return result;
            }
        }
    }

    /// P2 with a call of the caller's. Returns `None` if the ring carries, and nothing was sent.
    pub fn send_if_kernel_carries(
        &self,
        may_hold: bool,
        mut call: impl FnMut() -> Result<usize, Errno>,
    ) -> Option<Result<usize, Errno>> {
        let producer = self.producer();
        loop {
            let seen = producer.direction.line_a.word.load();
            if !seen.kernel_carries() {
                return None;
            }
            if let Some(result) = producer.send_by_kernel(seen, may_hold, &mut call) {
                return Some(result);
            }
        }
    }

    /// The caller is about to end its outgoing direction by shutdown(2), or to send urgent data:
    /// the kernel carries for good.
    pub fn before_shutdown_send(&self) {
        self.producer().to_kernel(true);
    }

    /// G1: the kernel carries for good, in both directions. The next receive reads the rest of the rings first.
    ///
    /// Any holder may call it at any time; from then on the socket is an ordinary one.
    pub fn pin(&self) {
        // If this fails, the caller is a signal handler in the middle of its own section, whose
        // compare-exchange will then fail.
        let guard = self.view.side().receive.lock.lock(&self.kernel);
        self.consumer().pin();
        drop(guard);
        self.producer().to_kernel(true);
    }

    /// The caller is about to close the last descriptor of the socket: the kernel carries for good,
    /// so the peer's next receive finds the end behind the ring's bytes. Returns whether bytes are
    /// unread in the incoming ring: then the kernel has to reset the connection (SO_LINGER of 0
    /// seconds), as it does for unread bytes of its own.
    pub fn before_close(&self) -> bool {
        self.producer().to_kernel(true);
        let Ok(_guard) = self.view.side().receive.lock.lock(&self.kernel) else { return true };
        let consumer = self.consumer();
        let is_drained = consumer.set_kernel();
        consumer.pin();
        !is_drained
    }

    /// Returns the bytes that receives could return (FIONREAD).
    ///
    /// # Errors
    /// The errors of ioctl(2).
    pub fn unread(&self) -> Result<u64, Errno> {
        let by_kernel = self.kernel.unread()?;
        if by_kernel != 0 {
            self.report_readable();
        }
        Ok(by_kernel + self.unread_in_ring())
    }

    /// Returns the ring's unread bytes: what FIONREAD adds to the kernel's number. 0 as long as
    /// kernel bytes that precede them have not arrived.
    pub fn unread_in_ring(&self) -> u64 {
        let Ok(_guard) = self.view.side().receive.lock.lock(&self.kernel) else { return 0 };
        let consumer = self.consumer();
        let seen = consumer.direction.line_a.word.load();
        let unread = consumer.unread(seen);
        if unread != 0 && self.is_ring_reachable(seen) { unread } else { 0 }
    }

    /// Returns the bytes in the outgoing ring that the peer has not read yet.
    fn unsent_in_ring(&self) -> u64 {
        let (direction, ring) = self.view.outgoing();
        let head = Position::new(direction.line_c.head.load(Ordering::Acquire));
        direction.line_a.word.load().tail().since(head).min(ring.capacity())
    }

    /// Returns whether the ring has unread bytes behind a reading of the word.
    #[inline]
    pub(crate) fn has_ring_bytes_behind(&self, seen: Snapshot) -> bool {
        let receive = &self.view.side().receive;
        seen.tail() != Position::new(receive.head.load(Ordering::Relaxed))
            && receive.distrusted.load(Ordering::Relaxed) == 0
    }

    /// Returns whether a piece of any usual length fits into the outgoing ring, as far as the last
    /// message from the peer tells.
    #[inline]
    pub(crate) fn ring_has_room(&self) -> bool {
        let (direction, ring) = self.view.outgoing();
        let word = direction.line_a.word.load();
        let credit = Position::new(self.view.incoming().0.line_a.credit.load(Ordering::Acquire));
        !word.kernel_carries() && word.tail().since(credit) <= ring.capacity() / 2
    }

    /// Returns whether the ring has unread bytes.
    pub fn has_ring_bytes(&self) -> bool {
        self.has_ring_bytes_behind(self.incoming_word())
    }

    /// Returns whether the sender has counted kernel bytes that were not read yet.
    #[inline]
    pub(crate) fn has_late_bytes(&self) -> bool {
        let (direction, _) = self.view.incoming();
        direction.line_b.sent.load(Ordering::Acquire) > self.view.side().receive.received.load(Ordering::Relaxed)
    }

    /// Returns whether a receive that does not wait would find bytes, an end or an error, as far as
    /// the words know of it.
    #[inline]
    pub(crate) fn is_ready_by_words(&self, seen: Snapshot) -> bool {
        if self.has_late_bytes() { self.is_late_ready(seen) } else { self.has_ring_bytes_behind(seen) }
    }

    /// Returns true if receives reach the ring's unread bytes without waiting: the kernel bytes
    /// that precede them have arrived.
    #[inline]
    pub(crate) fn is_ring_reachable(&self, seen: Snapshot) -> bool {
        !self.has_late_bytes() || self.is_late_reachable(seen)
    }

    #[cold]
    fn is_late_reachable(&self, seen: Snapshot) -> bool {
        let missing = self.missing_before_ring(seen);
        missing == 0 || self.kernel.unread().is_ok_and(|arrived| arrived >= missing)
    }

    /// Returns true if the kernel alone carries all further bytes and the ring is empty. Then the
    /// application's own call is right: the kernel's calls know more than bytes, such as the mark
    /// of urgent data.
    #[inline]
    pub fn is_left_to_kernel(&self) -> bool {
        self.view.side().receive.kernel_only.load(Ordering::Relaxed) != 0 && self.is_pinned_and_empty()
    }

    #[cold]
    fn is_pinned_and_empty(&self) -> bool {
        let seen = self.incoming_word();
        seen.is_pinned() && !self.has_ring_bytes_behind(seen) && !self.has_kept_error()
    }

    /// Like [`Pair::is_ready_by_words`] with kernel bytes that are counted and unread. The count
    /// says that send(2) has taken them, and nothing of their arrival.
    #[cold]
    fn is_late_ready(&self, seen: Snapshot) -> bool {
        if self.has_ring_bytes_behind(seen) && self.missing_before_ring(seen) == 0 {
            return true;
        }
        self.kernel.unread().is_ok_and(|n| n > 0) || {
            let events = self.kernel.events();
            events.error || events.hang_up || events.peer_closed
        }
    }

    /// Returns true if a send would not wait. A ring that carries never makes a send wait: if it is
    /// full, the kernel carries, which has nothing to send then.
    pub(crate) fn has_room(&self) -> bool {
        let (direction, _) = self.view.outgoing();
        !direction.line_a.word.load().kernel_carries() || self.kernel.events().has_room
    }

    /// C1: returns how many kernel bytes precede the ring's unread ones.
    fn missing_before_ring(&self, seen: Snapshot) -> u64 {
        let (direction, _) = self.view.incoming();
        let line = &direction.line_b;
        let mut limit = line.sent.load(Ordering::Acquire);
        if seen.kernel_carries() || self.incoming_word().kernel_carries() {
            limit = line.boundary.load(Ordering::Acquire);
        }
        limit.saturating_sub(self.view.side().receive.received.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn incoming_word(&self) -> Snapshot {
        self.view.incoming().0.line_a.word.load()
    }

    pub(crate) fn incoming_word_ref(&self) -> WordRef {
        self.view.incoming_word()
    }

    /// Returns true if all further bytes arrive in the kernel, and the ring is empty.
    pub(crate) fn is_kernel_only_and_empty(&self) -> bool {
        self.is_kernel_only_and_empty_behind(self.incoming_word())
    }

    /// Like [`Pair::is_kernel_only_and_empty`], by one reading of the word.
    #[inline]
    pub(crate) fn is_kernel_only_and_empty_behind(&self, seen: Snapshot) -> bool {
        seen.is_kernel_only() && !self.has_ring_bytes_behind(seen)
    }

    /// Records that a set has added the socket. Returns whether the ring may be used in it: not for
    /// a pinned connection, nor for a connection in a second set.
    pub(crate) fn enter_set(&self, member: &Arc<Member<K>>) -> bool {
        // A pinned connection never asks. In a child of fork(2) the lock may be that of a thread of the parent.
        if self.incoming_word().is_pinned() {
            return false;
        }
        let Ok(mut membership) = self.membership.lock(&self.kernel) else { return false };
        let is_free = membership.upgrade().is_none();
        if is_free {
            *membership = Arc::downgrade(member);
        }
        is_free
    }

    /// Records that the set has removed the socket.
    pub(crate) fn leave_set(&self, member: &Arc<Member<K>>) {
        if self.incoming_word().is_pinned() {
            return;
        }
        if let Ok(mut membership) = self.membership.lock(&self.kernel)
            && core::ptr::eq(membership.as_ptr(), Arc::as_ptr(member))
        {
            *membership = Weak::new();
        }
    }

    /// E2: [`Consumer::idle`] with the receive lock.
    pub(crate) fn idle(&self, knows: impl Fn(Position) -> bool) -> Idle {
        if let Ok(_guard) = self.view.side().receive.lock.lock(&self.kernel) {
            return self.consumer().idle(knows);
        }
        // A signal handler interrupted its own thread's receive: the kernel becomes the only
        // carrier for good.
        self.pin();
        match self.incoming_word() {
            seen if !self.has_ring_bytes_behind(seen) => Idle::Kernel,
            seen if knows(seen.tail()) => Idle::Behind,
            _ => Idle::Unread,
        }
    }

    /// C4, unless a thread is receiving. Returns true if the ring is empty and the kernel carries.
    pub(crate) fn try_idle(&self) -> bool {
        self.view.side().receive.lock.try_lock(&self.kernel).is_some_and(|_guard| self.consumer().set_kernel())
    }

    /// C5, with the receive lock: not while a thread sleeps in a set that contains the socket.
    fn set_ring(&self, consumer: &Consumer<'_, K>) -> bool {
        let Some(membership) = self.membership.try_lock(&self.kernel) else { return false };
        match membership.upgrade() {
            Some(member) => member.set_ring(consumer),
            None => consumer.set_ring(),
        }
    }

    /// C5 for a receiver that does not wait, and has found the kernel's queue empty: only if the
    /// next epoll_wait(2) of its set looks.
    #[cold]
    fn set_ring_for_set(&self, consumer: &Consumer<'_, K>) {
        if self.pacing.is_eager {
            self.set_ring(consumer);
            return;
        }
        if self.pacing.crowd.is_some_and(Crowd::may_pause) {
            return;
        }
        let Some(membership) = self.membership.try_lock(&self.kernel) else { return };
        if let Some(member) = membership.upgrade()
            && member.would_spin()
        {
            member.set_ring(consumer);
        }
    }

    /// C9: records that the kernel has reported the socket readable, by an event or by FIONREAD.
    pub fn report_readable(&self) {
        self.is_reported.store(1, Ordering::Relaxed);
    }

    /// Frees the locks of the calling thread after it has jumped out of a call (siglongjmp).
    pub fn break_own_locks(&self) {
        self.view.side().receive.lock.break_own(&self.kernel);
        self.view.side().send.lock.break_own(&self.kernel);
        self.membership.break_own(&self.kernel);
    }

    /// C4 and C8 for a thread that is about to sleep in poll(2) or a similar call. Returns `None`
    /// if bytes have arrived, so that it must not sleep.
    pub fn before_sleep(&self) -> Option<Asleep<'_, K>> {
        self.begin_sleep().then_some(Asleep(self))
    }

    /// Like [`Pair::before_sleep`]. If it returns true, [`Pair::after_sleep`] must be called.
    pub(crate) fn begin_sleep(&self) -> bool {
        if let Ok(_guard) = self.view.side().receive.lock.lock(&self.kernel) {
            return self.sleep_locked();
        }
        // A signal handler in the middle of its own thread's receive: the kernel becomes the only
        // carrier, and no sleeper has to be counted.
        self.pin();
        !self.has_ring_bytes()
    }

    /// Records that the thread is awake.
    pub(crate) fn after_sleep(&self) {
        // This thread holds the lock: it is a signal handler that waited. The count stays, and so
        // the kernel stays the carrier.
        if let Ok(_guard) = self.view.side().receive.lock.lock(&self.kernel) {
            self.wake_locked();
        }
    }

    /// C5 for a thread that is about to look at several connections, and has found the kernel's queue empty.
    pub(crate) fn try_set_ring(&self) -> bool {
        self.view.side().receive.lock.try_lock(&self.kernel).is_some_and(|_guard| self.set_ring(&self.consumer()))
    }

    /// C4, under the receive lock. Returns whether the caller is counted and may sleep.
    fn sleep_locked(&self) -> bool {
        if !self.consumer().set_kernel() {
            return false;
        }
        self.sleepers.store(self.sleepers.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.counters.sleeps.add();
        true
    }

    fn wake_locked(&self) {
        self.sleepers.store(self.sleepers.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
    }
}
