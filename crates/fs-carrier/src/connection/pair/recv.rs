//! Receiving from both carriers.

use super::{BEHIND_NS, Pair};
use crate::consumer::{Consumer, Found};
use crate::kernel::{Errno, Kernel, RecvMode};
use crate::layout::INLINE;
use crate::position::Position;
use crate::ring_unsafe::load_inline;
use crate::sync::Ordering;

/// Interval at which a receiver that neither waits nor uses a set asks the kernel while the ring
/// carries (C9). More often: a system call where the ring would do; less often: it learns later of
/// an end.
const ASK_KERNEL_NS: u64 = 50_000;
/// Number of times that a receiver which would spin receives again after C5 has failed because of a
/// send in flight. More: CPU for a sender that does not run. Fewer: a sleep, and a wake-up for the
/// sender, in the middle of a stream of messages.
const RETRIES: u32 = 4;
/// Time in which a receiver that has sent nothing since its last wait leaves the words alone. Its
/// peer streams, and each look takes the line of the words from it. More: the first bytes are later.
/// Less: 8-byte messages one way had 5 million a second with 0, and 12 with this, where a line takes
/// 250 ns from one processor to the other.
const GATHER_NS: u64 = 500;
/// [`BEHIND_NS`] in milliseconds.
const BEHIND_MS: u32 = (BEHIND_NS / 1_000_000) as u32;

impl<K: Kernel> Pair<K> {
    /// Receives bytes by whichever carrier has the next ones, as recv(2) does. 0 is the end of the stream.
    ///
    /// # Errors
    /// The errors of recv(2).
    #[inline]
    pub fn recv(&self, into: &mut [u8], mode: RecvMode) -> Result<usize, Errno> {
        let mut spin_ns = if mode.dont_wait { 0 } else { self.spin.next(self.pacing, &self.kernel) };
        // Before the lock: it is taken once for a message that comes while the ring carries.
        if spin_ns != 0 && self.is_waiting_for_ring() {
            spin_ns = self.look_at_words(spin_ns);
        }
        if !mode.peek
            && let Some(n) = self.recv_short(into)
        {
            return Ok(n);
        }
        self.recv_any(into, mode, spin_ns)
    }

    /// C1 for one message that stands in the word's line, with nothing else to be considered: the
    /// next bytes are its, and all of it fits.
    #[inline]
    fn recv_short(&self, into: &mut [u8]) -> Option<usize> {
        let (direction, _) = self.view.incoming();
        let receive = &self.view.side().receive;
        if receive.kernel_only.load(Ordering::Relaxed) != 0 {
            return None;
        }
        let _guard = receive.lock.try_lock(&self.kernel)?;
        let seen = direction.line_a.word.load();
        let n = seen.inline_len();
        let is_next = seen.tail().since(Position::new(receive.head.load(Ordering::Relaxed))) == n as u64
            && direction.line_b.sent.load(Ordering::Acquire) <= receive.received.load(Ordering::Relaxed)
            && receive.distrusted.load(Ordering::Relaxed) == 0
            && !seen.kernel_carries();
        if !is_next || n == 0 || n > into.len().min(INLINE) {
            return None;
        }
        load_inline(&direction.line_a.inline, 0, &mut into[..n]);
        let tail = seen.tail().bits();
        // Release: a thread that sends makes its credit of it.
        receive.head.store(tail, Ordering::Release);
        receive.known_tail.store(tail, Ordering::Relaxed);
        direction.line_c.head.store(tail, Ordering::Release);
        Some(n)
    }

    #[inline(never)]
    fn recv_any(&self, into: &mut [u8], mode: RecvMode, mut spin_ns: u32) -> Result<usize, Errno> {
        if into.is_empty() {
            return self.recv_nothing(mode);
        }
        let mut start_ns = mode.continues;
        let mut retries = RETRIES;
        let waits_for_all = mode.peek && mode.all && !mode.dont_wait;
        loop {
            let Ok(guard) = self.view.side().receive.lock.lock(&self.kernel) else { return self.recv_reentered() };
            let consumer = self.consumer();
            match consumer.take(into, mode.peek) {
                Found::Bytes(n) | Found::Part(n) if n < into.len() && waits_for_all => {
                    drop(guard);
                    self.pin();
                    return self.peek_both(into, mode);
                }
                Found::Bytes(n) => return Ok(n),
                // With more bytes from the other carrier, a short count would tell the caller that
                // nothing is left, after an edge was reported.
                Found::Part(n) if n < into.len() && !mode.peek => return Ok(self.take_rest(&consumer, into, n)),
                Found::Part(n) if n < into.len() => {
                    drop(guard);
                    return self.peek_both(into, RecvMode::PEEK);
                }
                Found::Part(n) => return Ok(n),
                Found::ByKernel(n) if n < into.len() && waits_for_all => {
                    if self.sleep_locked() {
                        drop(guard);
                        return self.sleep_in_recv(into, mode);
                    }
                }
                Found::ByKernel(n) => {
                    if mode.dont_wait && n < into.len() {
                        self.set_ring_for_set(&consumer);
                    }
                    return Ok(n);
                }
                Found::End => return self.end(),
                Found::Failed(error) => return Err(error),
                Found::Behind => {
                    drop(guard);
                    if mode.dont_wait {
                        return Err(Errno::AGAIN);
                    }
                    self.wait_behind(*start_ns.get_or_insert_with(|| self.kernel.now_ns()), mode)?;
                }
                Found::NothingByKernel if mode.dont_wait => {
                    self.set_ring_for_set(&consumer);
                    return Err(self.kept_error().unwrap_or(Errno::AGAIN));
                }
                Found::NothingByRing if mode.dont_wait => {
                    if !self.has_to_ask_kernel(&consumer) {
                        return Err(Errno::AGAIN);
                    }
                }
                found => {
                    if let Some(error) = self.kept_error() {
                        return Err(error);
                    }
                    let is_ring = found == Found::NothingByRing;
                    // A spin pays only if the bytes would come through the ring.
                    if spin_ns != 0 && (is_ring || self.set_ring(&consumer)) {
                        drop(guard);
                        spin_ns = self.look_at_words(spin_ns);
                        continue;
                    }
                    // The sender's bytes arrive within a moment: another receive costs less than a
                    // sleep, and may find the ring free afterwards.
                    let seen = consumer.direction.line_a.word.load();
                    if spin_ns != 0 && retries > 0 && seen.in_flight() != 0 && seen.has_joined() && !seen.is_pinned() {
                        retries -= 1;
                        continue;
                    }
                    if !self.sleep_locked() {
                        continue;
                    }
                    drop(guard);
                    let Some(start_ns) = mode.continues else { return self.sleep_in_recv(into, mode) };
                    let result = self.kernel.wait_for_more(start_ns);
                    self.after_sleep();
                    result?;
                }
            }
        }
    }

    /// A receive of no bytes returns as soon as there are some, or with the end or the error (C8).
    #[cold]
    fn recv_nothing(&self, mode: RecvMode) -> Result<usize, Errno> {
        if self.has_ring_bytes() {
            return Ok(0);
        }
        if let Some(error) = self.kept_error() {
            return Err(error);
        }
        if mode.dont_wait {
            return self.kernel.recv(&mut [], mode);
        }
        let Some(_asleep) = self.before_sleep() else { return Ok(0) };
        self.kernel.recv(&mut [], mode)
    }

    /// C7 for a receive that began at `start_ns`. It does not wait in recv(2): another thread may
    /// take the bytes that are missing.
    ///
    /// recv(2) without a time-out goes on after a handler with SA_RESTART, and poll(2) does not say
    /// which handler has run. So only a receive with a time-out ends, which recv(2) never restarts,
    /// and one that has bytes.
    #[cold]
    fn wait_behind(&self, start_ns: u64, mode: RecvMode) -> Result<(), Errno> {
        let limit = self.kernel.receive_limit_ns()?;
        if limit.is_some_and(|limit| self.kernel.now_ns().saturating_sub(start_ns) >= limit) {
            return Err(Errno::AGAIN);
        }
        match self.kernel.wait_readable(BEHIND_MS) {
            Err(Errno::INTR) if limit.is_some() || mode.continues.is_some() => Err(Errno::INTR),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Handles the end of the stream that the kernel reports.
    ///
    /// A peer that ends its stream by close(2) or shutdown(2) has made the kernel the carrier for
    /// good, and resets the connection if it leaves bytes unread. One that has done neither is
    /// dead. If it has left bytes in the ring, the kernel would have reset the connection.
    #[cold]
    fn end(&self) -> Result<usize, Errno> {
        if let Some(error) = self.kept_error() {
            return Err(error);
        }
        if self.incoming_word().is_pinned() || self.unsent_in_ring() == 0 {
            return Ok(0);
        }
        self.pin();
        Err(Errno::CONNRESET)
    }

    /// Fills `into` after the first `done` bytes, which came from one carrier, with bytes that are
    /// available now. Returns the number of bytes in `into`.
    #[cold]
    fn take_rest(&self, consumer: &Consumer<'_, K>, into: &mut [u8], mut done: usize) -> usize {
        let mut has_set_kernel = false;
        // Only with a byte in the kernel, because a receive also takes the socket's pending error.
        while done < into.len() && (self.has_ring_bytes() || self.kernel.unread().is_ok_and(|n| n > 0)) {
            // Urgent data uses the kernel and pins the connection.
            if self.incoming_word().is_pinned() && !self.has_ring_bytes() && self.kernel.is_at_mark() {
                return done;
            }
            match consumer.take(&mut into[done..], false) {
                Found::Bytes(n) | Found::ByKernel(n) => return done + n,
                Found::Part(n) => done += n,
                Found::Failed(error) => {
                    self.keep_error(error);
                    return done;
                }
                // C9: another sender has yet to count these bytes, and the report of them may be
                // gone. If this fails, bytes have arrived in the ring. Once, because a hostile peer
                // may take it back again and again.
                Found::NothingByRing if !has_set_kernel => {
                    has_set_kernel = true;
                    let _set = consumer.set_kernel();
                }
                Found::End | Found::NothingByRing | Found::NothingByKernel | Found::Behind => return done,
            }
        }
        done
    }

    /// MSG_PEEK of both carriers' bytes: the kernel's that precede the ring's, the ring's, and the
    /// kernel's that follow. Waits in the kernel if `mode` does; the caller has pinned the
    /// connection then, so the ring stays as it is.
    #[cold]
    fn peek_both(&self, into: &mut [u8], mode: RecvMode) -> Result<usize, Errno> {
        let Ok(guard) = self.view.side().receive.lock.lock(&self.kernel) else { return self.recv_reentered() };
        let consumer = self.consumer();
        consumer.correct();
        let seen = self.incoming_word();
        let len = into.len();
        let before = usize::try_from(self.missing_before_ring(seen)).unwrap_or(len).min(len);
        let by_ring = usize::try_from(consumer.unread(seen)).unwrap_or(len).min(len - before);
        consumer.peek_ring(&mut into[len - by_ring..]);
        drop(guard);
        // As long as the ring carries, no bytes of the kernel follow the ring's.
        let has_more = seen.kernel_carries() && !(before == 0 && by_ring > 0 && self.kernel.is_at_mark());
        let room = if has_more { len - by_ring } else { before };
        // Only with a byte in the kernel, because a receive also takes the socket's pending error.
        let is_vain = before == 0 && by_ring > 0 && mode.dont_wait && self.kernel.unread().is_ok_and(|n| n == 0);
        let result = if room == 0 || is_vain { Ok(0) } else { self.kernel.recv(&mut into[..room], mode) };
        let by_kernel = match result {
            Ok(n) => n,
            Err(_) if before == 0 && by_ring > 0 => 0,
            Err(error) => return Err(error),
        };
        if by_kernel < before {
            return Ok(by_kernel);
        }
        into.copy_within(len - by_ring.., by_kernel);
        into[before..by_kernel + by_ring].rotate_left(by_kernel - before);
        Ok(by_kernel + by_ring)
    }

    /// Stores an error for a call that has moved bytes already, if it is the connection's. The next
    /// receive, or send by the kernel, returns it.
    pub fn keep_error(&self, error: Errno) {
        self.kept_error.keep(error);
    }

    /// Returns whether an error was kept.
    pub fn has_kept_error(&self) -> bool {
        self.kept_error.is_kept()
    }

    /// Takes the error of an earlier call, which returned the bytes that it had moved.
    pub fn kept_error(&self) -> Option<Errno> {
        self.kept_error.take()
    }

    /// Returns whether the ring carries and nothing is unread.
    #[inline]
    fn is_waiting_for_ring(&self) -> bool {
        let receive = &self.view.side().receive;
        if receive.kernel_only.load(Ordering::Relaxed) != 0
            || receive.known_tail.load(Ordering::Relaxed) != receive.head.load(Ordering::Relaxed)
        {
            return false;
        }
        let seen = self.incoming_word();
        !seen.kernel_carries() && !self.is_ready_by_words(seen)
    }

    /// Spins until bytes arrive or the time is over. Returns the maximum time of the next spin.
    #[inline]
    fn look_at_words(&self, spin_ns: u32) -> u32 {
        let sent = self.view.outgoing().0.line_a.word.load().tail().bits();
        if self.sent_before_wait.load(Ordering::Relaxed) == sent {
            self.gather();
        } else {
            self.sent_before_wait.store(sent, Ordering::Relaxed);
        }
        let found = self.spin.look(self.pacing, &self.kernel, spin_ns, || {
            let seen = self.incoming_word();
            self.is_ready_by_words(seen) || seen.is_kernel_only()
        });
        // The kernel carries by another thread's decision, and its queue was not read since.
        if found {
            self.spin.found(self.pacing);
            return spin_ns;
        }
        self.spin.was_vain();
        0
    }

    #[cold]
    fn gather(&self) {
        let end = self.kernel.now_ns() + GATHER_NS;
        while self.kernel.now_ns() < end {
            self.kernel.pause();
        }
    }

    /// C8: sleeps in recv(2), counted, without a lock.
    #[cold]
    fn sleep_in_recv(&self, into: &mut [u8], mode: RecvMode) -> Result<usize, Errno> {
        let result = self.kernel.recv(into, mode);
        if let Ok(_guard) = self.view.side().receive.lock.lock(&self.kernel) {
            if let (Ok(n), false) = (result, mode.peek) {
                self.consumer().count_kernel_bytes(n as u64);
            }
            self.wake_locked();
        }
        if result == Ok(0) { self.end() } else { result }
    }

    /// A signal handler receives while it interrupts its own thread's receive, which may have taken
    /// the next bytes already.
    #[cold]
    fn recv_reentered(&self) -> Result<usize, Errno> {
        Err(Errno::AGAIN)
    }

    /// C9, for a receiver that does not wait: the kernel becomes the carrier if it may have an
    /// event that the direction's word does not show. Returns true if the caller must read again.
    fn has_to_ask_kernel(&self, consumer: &Consumer<'_, K>) -> bool {
        // The sender has made the kernel the carrier after the check, which limited the bytes to
        // take from the kernel.
        if consumer.direction.line_a.word.load().is_kernel_only() {
            return true;
        }
        let mut asks = self.is_reported.load(Ordering::Relaxed) != 0;
        self.is_reported.store(0, Ordering::Relaxed);
        if !asks {
            let now = self.kernel.now_ns();
            if now.wrapping_sub(self.asked_ns.load(Ordering::Relaxed)) > ASK_KERNEL_NS {
                self.asked_ns.store(now, Ordering::Relaxed);
                asks = true;
            }
        }
        if asks {
            // If this fails, bytes have arrived, which is also a reason to check again.
            let _set = consumer.set_kernel();
        }
        asks
    }
}
