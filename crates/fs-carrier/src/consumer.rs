//! The consumer's rules, C1 to C9. All of them hold the receive lock, unless a name says otherwise.
//!
//! A consumer may be killed in its section. A ring byte counts as read after its copy is complete
//! and `head` was stored, so another holder of the side reads it again. Kernel bytes that were read
//! and not counted leave `R` too low, which C6 corrects before it matters.

use crate::counters::Counters;
use crate::exact;
use crate::kernel::{Errno, Kernel, RecvMode};
use crate::layout::{Direction, Side};
use crate::position::Position;
use crate::ring_unsafe::{Ring, load_inline};
use crate::sync::{AtomicU32, Ordering};
use crate::word::Snapshot;

/// One end's incoming direction, with the receive lock held.
#[derive(Debug)]
pub(crate) struct Consumer<'a, K> {
    pub(crate) direction: &'a Direction,
    pub(crate) ring: Ring<'a>,
    pub(crate) side: &'a Side,
    pub(crate) kernel: &'a K,
    /// Threads that sleep on the socket in the kernel; changed under the receive lock.
    pub(crate) sleepers: &'a AtomicU32,
    pub(crate) counters: &'a Counters,
}

/// The result of a receive from both carriers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// This many bytes.
    Bytes(usize),
    /// This many bytes from one carrier. The other one may have more.
    Part(usize),
    /// This many bytes from the kernel, which is the only carrier.
    ByKernel(usize),
    /// The end of the stream.
    End,
    /// The kernel's error.
    Failed(Errno),
    /// No bytes, and the kernel carries: the caller may sleep in the kernel.
    NothingByKernel,
    /// No bytes, and the ring carries or is requested: the caller may check again, and has to apply
    /// C4 before it sleeps.
    NothingByRing,
    /// Kernel bytes that precede the ring's are not there yet, or another thread has taken them and
    /// not counted them yet (C7).
    Behind,
}

/// The outcome of [`Consumer::idle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idle {
    /// The ring is empty, and the kernel carries.
    Kernel,
    /// The ring has bytes that the caller knows of, and the kernel carries what follows them.
    Behind,
    /// The ring has bytes.
    Unread,
}

impl<K: Kernel> Consumer<'_, K> {
    fn word(&self) -> Snapshot {
        self.direction.line_a.word.load()
    }

    /// Returns the position up to which the ring was read.
    pub(crate) fn head(&self) -> Position {
        Position::new(self.side.receive.head.load(Ordering::Relaxed))
    }

    fn kernel_bytes_read(&self) -> u64 {
        self.side.receive.received.load(Ordering::Relaxed)
    }

    /// `R` += `n`: bytes that this end has read from the kernel.
    pub(crate) fn count_kernel_bytes(&self, n: u64) {
        let received = &self.side.receive.received;
        received.store(received.load(Ordering::Relaxed).wrapping_add(n), Ordering::Release);
    }

    /// Returns `K`, which the peer writes.
    fn kernel_bytes_sent(&self) -> u64 {
        self.direction.line_b.sent.load(Ordering::Acquire)
    }

    fn is_distrusted(&self) -> bool {
        self.side.receive.distrusted.load(Ordering::Relaxed) != 0
    }

    /// Returns the ring's unread bytes by one reading of the word; 0 once the ring is not read any more.
    #[inline]
    pub(crate) fn unread(&self, seen: Snapshot) -> u64 {
        let unread = seen.tail().since(self.head());
        if unread == 0 || (unread <= self.ring.capacity() && !self.is_distrusted()) {
            return unread;
        }
        self.leave_ring();
        0
    }

    /// The ring is not read any more: the peer's words make no sense, or bytes that precede the
    /// ring's are lost with a reset. What is left is an ordinary kernel socket.
    #[cold]
    pub(crate) fn leave_ring(&self) {
        let receive = &self.side.receive;
        receive.distrusted.store(1, Ordering::Relaxed);
        receive.known_tail.store(receive.head.load(Ordering::Relaxed), Ordering::Relaxed);
        // This mark is a hint for the peer, which may overwrite the word at any time.
        let word = &self.direction.line_a.word;
        let _told = word.set_kernel(word.load(), true);
    }

    /// C1 to C3: takes bytes from the carrier that has the next ones.
    #[inline]
    pub(crate) fn take(&self, into: &mut [u8], peek: bool) -> Found {
        let mode = if peek { RecvMode::PEEK } else { RecvMode::NOW };
        let receive = &self.side.receive;
        let head = self.head();
        // All ring bytes that were unread at one reading of the word are next to each other in the
        // stream. A receive that was left in the middle may have stored `head` alone: then the
        // distance is longer than any ring.
        let known = Position::new(receive.known_tail.load(Ordering::Relaxed)).since(head);
        if known >= into.len() as u64 && known <= self.ring.capacity() {
            self.ring.read(head, into);
            if !peek {
                self.set_head(head.advance(into.len() as u64));
            }
            return Found::Bytes(into.len());
        }
        if receive.kernel_only.load(Ordering::Relaxed) != 0 {
            return self.take_kernel(into, mode, Found::End);
        }
        loop {
            let seen = self.word();
            let unread = self.unread(seen);
            if unread != 0 {
                if self.kernel_bytes_read() >= self.kernel_bytes_sent() {
                    return self.take_ring(seen, unread, into, peek);
                }
                return self.take_before_ring(seen, unread, into, mode);
            }
            if seen.is_kernel_only() || self.is_distrusted() {
                // C2: only the holder of this lock gives the ring back, so all that comes, comes in the kernel.
                receive.kernel_only.store(1, Ordering::Relaxed);
                return self.take_kernel(into, mode, Found::End);
            }
            // Again only if the peer has changed the word between two loads.
            if let Some(found) = self.take_late(seen, into, mode) {
                return found;
            }
        }
    }

    /// C1: ring bytes.
    #[inline]
    fn take_ring(&self, seen: Snapshot, unread: u64, into: &mut [u8], peek: bool) -> Found {
        let head = self.head();
        // `unread` is at most the ring's capacity, which is a usize.
        let n = into.len().min(unread as usize);
        let into = &mut into[..n];
        let inline = seen.inline_len();
        if unread <= inline as u64 && inline <= crate::layout::INLINE {
            load_inline(&self.direction.line_a.inline, inline - unread as usize, into);
        } else {
            self.ring.read(head, into);
        }
        if !peek {
            self.set_head(head.advance(n as u64));
        }
        self.side.receive.known_tail.store(seen.tail().bits(), Ordering::Relaxed);
        if seen.kernel_carries() { Found::Part(n) } else { Found::Bytes(n) }
    }

    /// Copies the first of the ring's unread bytes. The caller has asked how many there are.
    pub(crate) fn peek_ring(&self, into: &mut [u8]) {
        self.ring.read(self.head(), into);
    }

    #[inline]
    fn set_head(&self, head: Position) {
        // Release: a thread that sends makes its credit of it.
        self.side.receive.head.store(head.bits(), Ordering::Release);
        self.direction.line_c.head.store(head.bits(), Ordering::Release);
    }

    /// C1: takes kernel bytes that precede the ring's, or the ring's if there are none.
    #[cold]
    fn take_before_ring(&self, seen: Snapshot, unread: u64, into: &mut [u8], mode: RecvMode) -> Found {
        let mut limit = self.kernel_bytes_sent();
        if seen.kernel_carries() || self.word().kernel_carries() {
            limit = self.direction.line_b.boundary.load(Ordering::Acquire);
        }
        if self.kernel_bytes_read() < limit && !self.correct() {
            return Found::Behind;
        }
        let due = limit.saturating_sub(self.kernel_bytes_read());
        if due == 0 {
            return self.take_ring(seen, unread, into, mode.peek);
        }
        let n = into.len().min(usize::try_from(due).unwrap_or(usize::MAX));
        match self.take_kernel(&mut into[..n], mode, Found::End) {
            // C7: the kernel has nothing more, so it is the ring's turn. A hostile peer may have
            // raised `K` again by now: it does not count.
            Found::End => {
                self.side.receive.received.store(limit, Ordering::Release);
                self.take_ring(seen, unread, into, mode.peek)
            }
            Found::NothingByKernel => {
                self.counters.behind.add();
                Found::Behind
            }
            // The ring's bytes are next.
            Found::ByKernel(n) => Found::Part(n),
            Found::Failed(error) => {
                // The bytes between were lost with the connection. What is in the ring follows a gap.
                self.leave_ring();
                Found::Failed(error)
            }
            found => found,
        }
    }

    /// C3: takes counted kernel bytes while the ring carries or is requested. Returns `None` if the
    /// caller has to check again.
    #[inline]
    fn take_late(&self, seen: Snapshot, into: &mut [u8], mode: RecvMode) -> Option<Found> {
        let sent = self.kernel_bytes_sent();
        let due = sent.saturating_sub(self.kernel_bytes_read());
        if due == 0 {
            return Some(Found::NothingByRing);
        }
        if !self.word().same_but_for_flights(seen) {
            return None;
        }
        // Never without a bound: the sender may have published ring bytes by now, and then more
        // kernel bytes, which follow them.
        let n = into.len().min(usize::try_from(due).unwrap_or(usize::MAX));
        match self.take_kernel(&mut into[..n], mode, Found::NothingByRing) {
            Found::NothingByKernel => {
                self.correct();
                Some(Found::NothingByRing)
            }
            Found::NothingByRing => {
                self.correct();
                let received = &self.side.receive.received;
                received.store(received.load(Ordering::Relaxed).max(sent), Ordering::Release);
                Some(Found::NothingByRing)
            }
            Found::ByKernel(n) => Some(Found::Part(n)),
            found => Some(found),
        }
    }

    /// Receives from the kernel without a wait. `at_end` is what an end means to the caller.
    fn take_kernel(&self, into: &mut [u8], mode: RecvMode, at_end: Found) -> Found {
        match self.kernel.recv(into, mode) {
            Ok(0) => at_end,
            Ok(n) => {
                if !mode.peek {
                    self.count_kernel_bytes(n as u64);
                }
                Found::ByKernel(n)
            }
            Err(Errno::AGAIN) => Found::NothingByKernel,
            Err(error) => Found::Failed(error),
        }
    }

    fn has_sleepers(&self) -> bool {
        self.sleepers.load(Ordering::Relaxed) != 0
    }

    /// C6: raises `R` to the kernel's count, which is higher if another process read bytes without
    /// this library. Returns whether `R` is exact.
    ///
    /// A thread that comes out of recv(2) has bytes that it has yet to count, so `R` is left alone
    /// as long as one sleeps. Nothing depends on it then: the ring is empty, and the kernel
    /// carries.
    pub(crate) fn correct(&self) -> bool {
        if self.has_sleepers() {
            return false;
        }
        !self.kernel.may_ask() || self.exact().is_some()
    }

    fn exact(&self) -> Option<exact::Received> {
        let received = exact::received(self.kernel)?;
        self.raise(received.taken);
        Some(received)
    }

    fn raise(&self, taken: u64) {
        let receive = &self.side.receive;
        let counted = receive.received.load(Ordering::Relaxed);
        if taken.wrapping_sub(counted) as i64 > 0 {
            receive.received.store(taken, Ordering::Release);
            self.counters.corrected.add();
        }
    }

    /// C4: makes the kernel the carrier. Returns false if bytes have arrived in the ring.
    pub(crate) fn set_kernel(&self) -> bool {
        loop {
            let seen = self.word();
            if self.unread(seen) != 0 {
                return false;
            }
            if seen.is_kernel_only() {
                return true;
            }
            if self.direction.line_a.word.set_kernel(seen, false) {
                self.counters.to_kernel.add();
                return true;
            }
        }
    }

    /// C5: the ring carries from here on, or as soon as no send is in flight. The caller has made
    /// sure that no thread sleeps on a set that contains the socket, and that none begins to.
    /// Returns whether the ring carries or is asked for.
    pub(crate) fn set_ring(&self) -> bool {
        if self.has_sleepers() {
            return false;
        }
        loop {
            let seen = self.word();
            if seen.is_pinned() || !seen.has_joined() || self.is_distrusted() || self.unread(seen) != 0 {
                return false;
            }
            if !seen.is_kernel_only() {
                return true;
            }
            let has_all = || self.kernel_bytes_read() >= self.kernel_bytes_sent();
            // With sends in flight `R` >= `K` proves nothing: `R` has to be exact, and the kernel's
            // queue empty. Bytes in it would be read only once their sender has counted them, when
            // the report of them is gone (model `ring_is_not_requested_over_kernel_bytes`).
            if seen.in_flight() != 0 {
                if self.exact().is_none_or(|received| received.arrived != received.taken) || !has_all() {
                    return false;
                }
            } else if !has_all() && (!self.correct() || !has_all()) {
                return false;
            }
            self.side.receive.kernel_only.store(0, Ordering::Relaxed);
            if self.direction.line_a.word.set_ring(seen) {
                self.counters.to_ring.add();
                return seen.in_flight() != 0 || self.kernel_bytes_are_counted();
            }
        }
    }

    /// Returns true if all bytes that arrived were counted by their sender. Called as soon as the
    /// ring carries: the numbers of an honest peer do not change then.
    ///
    /// Bytes that no sender has counted come from a holder at the peer's end that writes without
    /// this library. The direction is then pinned, because ring bytes would overtake that holder's
    /// next bytes. Its bytes that have arrived precede the bytes in the ring.
    fn kernel_bytes_are_counted(&self) -> bool {
        // One call in nearly all cases: a FIN may count as a byte here, and then the numbers are
        // looked at more closely.
        if self.kernel.tcp_info().is_ok_and(|info| info.bytes_received <= self.kernel_bytes_sent()) {
            return true;
        }
        let Some(received) = exact::received(self.kernel) else { return true };
        let arrived = received.arrived;
        let seen = self.word();
        // The kernel carries again, by the sender's choice: the numbers move.
        if seen.kernel_carries() || arrived <= self.kernel_bytes_sent() || self.word() != seen {
            return true;
        }
        self.raise(received.taken);
        self.pin_behind(Some(arrived));
        false
    }

    /// G1, for this direction: the kernel carries for good. Ring bytes that are unread come first.
    pub(crate) fn pin(&self) {
        self.pin_behind(None);
    }

    /// Pins this direction. `B` becomes `boundary`, or `K` without one.
    fn pin_behind(&self, boundary: Option<u64>) {
        loop {
            let seen = self.word();
            // A hostile peer's word may say that the ring carries for good.
            if seen.is_pinned() && seen.kernel_carries() {
                return;
            }
            if self.set_kernel_behind(seen, boundary, true) {
                self.counters.pins.add();
                return;
            }
        }
    }

    /// C4 for a thread that may sleep though the ring has bytes, if `knows` says so of the position
    /// after the last one: the kernel carries what follows, and `B` says that the ring's bytes
    /// precede it.
    pub(crate) fn idle(&self, knows: impl Fn(Position) -> bool) -> Idle {
        loop {
            let seen = self.word();
            if self.unread(seen) == 0 {
                if self.set_kernel() {
                    return Idle::Kernel;
                }
                continue;
            }
            if !knows(seen.tail()) {
                return Idle::Unread;
            }
            if seen.is_kernel_only() || self.set_kernel_behind(seen, None, false) {
                return Idle::Behind;
            }
        }
    }

    /// One attempt to make the kernel the carrier. `K` at that moment, or `boundary`, becomes `B`
    /// if ring bytes are unread.
    ///
    /// The sender may store `B` at the same time (P3). Both store the same: `K` stands still while
    /// the ring carries, and until the ring carries again, which only the holder of the receive
    /// lock brings about.
    fn set_kernel_behind(&self, seen: Snapshot, boundary: Option<u64>, pin: bool) -> bool {
        let count = &self.direction.line_b;
        if !seen.kernel_carries() && self.unread(seen) != 0 {
            let sent = count.sent.load(Ordering::Acquire);
            if self.word() != seen {
                return false;
            }
            count.boundary.store(boundary.unwrap_or(sent), Ordering::Release);
        }
        let is_set = self.direction.line_a.word.set_kernel(seen, pin);
        if is_set && !pin {
            self.counters.to_kernel.add();
        }
        is_set
    }
}
