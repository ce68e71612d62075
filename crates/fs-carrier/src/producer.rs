//! The producer's rules, P1 to P6.
//!
//! A producer may be killed. Before the compare-exchange of P1 nothing was published. Between
//! send(2) and `K`, the kernel has the bytes and the count is too low: the consumer reads them by
//! C2, because `I` stays above 0 and the ring is not granted any more. That is slower but correct.

use crate::counters::Counters;
use crate::kept::KeptError;
use crate::kernel::{Errno, Kernel};
use crate::layout::{Direction, INLINE, Side};
use crate::position::Position;
use crate::ring_unsafe::{Ring, prefetch_for_write, store_inline};
use crate::spin::{Pacing, Spin};
use crate::sync::Ordering;
use crate::word::{KernelSend, Snapshot};

/// Time that a sender uses the ring before it asks the kernel whether the connection has failed
/// (P4). Longer: more bytes are accepted after the peer's death, and P5 is later. Shorter: a sender
/// of few messages makes a system call for each.
const CHECK_NS: u64 = 50_000_000;
/// Time in which all bytes may use the ring, until some must use the kernel (P5). With [`CHECK_NS`] and
/// a tick of the coarse clock, 10 ms at most, it is below a second: within that a later firewall rule
/// takes effect. Shorter: the wake-up of a kernel send, about 70 µs, more often.
const KERNEL_NS: u64 = 900_000_000;

/// One end's outgoing direction.
#[derive(Debug)]
pub(crate) struct Producer<'a, K> {
    pub(crate) direction: &'a Direction,
    pub(crate) ring: Ring<'a>,
    /// The other direction, in which the peer stores the credit.
    pub(crate) incoming: &'a Direction,
    pub(crate) side: &'a Side,
    pub(crate) kernel: &'a K,
    pub(crate) kept_error: &'a KeptError,
    pub(crate) pacing: Pacing,
    pub(crate) spin: &'a Spin,
    pub(crate) counters: &'a Counters,
}

/// The outcome of [`Producer::publish`].
enum Published {
    Yes,
    /// No room for the piece.
    Full,
    /// P5: the kernel has to carry the piece.
    Due,
    /// The kernel carries.
    Kernel(Snapshot),
}

/// P1 for a message that fits in the word's line while the ring is empty, as far as this end knows
/// without reading another line. Returns `None` if nothing was sent. The caller then uses
/// [`Producer::send`].
#[inline]
pub(crate) fn send_short(
    direction: &Direction,
    ring: Ring<'_>,
    incoming: &Direction,
    side: &Side,
    kernel: &impl Kernel,
    bytes: &[u8],
) -> Option<()> {
    if bytes.is_empty() || bytes.len() > INLINE {
        return None;
    }
    let (send, line) = (&side.send, &direction.line_a);
    prefetch_for_write(&line.word);
    // P4, P5. The line of the word arrives while the clock is read.
    if kernel.coarse_ns() >= send.due_ns.load(Ordering::Relaxed) {
        return None;
    }
    let _guard = send.lock.try_lock(kernel)?;
    let seen = line.word.load();
    let tail = seen.tail();
    let is_empty = Position::new(send.known_head.load(Ordering::Relaxed)) == tail
        || Position::new(incoming.line_a.credit.load(Ordering::Acquire)) == tail;
    if seen.kernel_carries() || !is_empty {
        return None;
    }
    send.known_head.store(tail.bits(), Ordering::Relaxed);
    store_inline(&line.inline, bytes);
    ring.write(tail, bytes);
    line.credit.store(side.receive.head.load(Ordering::Acquire), Ordering::Release);
    line.word.publish(seen, bytes.len(), bytes.len()).then_some(())
}

impl<K: Kernel> Producer<'_, K> {
    /// Sends bytes by the carrier of the moment, and returns how many.
    ///
    /// # Errors
    /// The errors of send(2), if nothing was sent before.
    #[inline]
    pub(crate) fn send(&self, bytes: &[u8], dont_wait: bool) -> Result<usize, Errno> {
        // Only whole pieces, because a piece must not be split between the carriers.
        let most = (self.ring.capacity() / 4) as usize;
        let mut done = 0;
        let mut waited = false;
        let mut is_due = false;
        while done < bytes.len() {
            let rest = &bytes[done..];
            let piece = &rest[..rest.len().min(most)];
            let published = if is_due { self.leave_ring_once() } else { self.publish(piece) };
            match published {
                Published::Yes => {
                    done += piece.len();
                    waited = false;
                }
                Published::Due => is_due = true,
                Published::Full if !waited => waited = !self.wait_for_room(piece.len()),
                Published::Full => {
                    self.leave_full_ring(piece.len());
                    waited = false;
                }
                Published::Kernel(seen) => {
                    let Some(result) = self.send_by_kernel(seen, is_due, || self.kernel.send(rest, dont_wait)) else {
                        continue;
                    };
                    is_due = false;
                    match result {
                        // The count is short if the socket does not block, or after a signal. The
                        // caller decides.
                        Ok(n) if n < rest.len() => return Ok(done + n),
                        Ok(n) => done += n,
                        Err(error) if done > 0 => {
                            self.kept_error.keep(error);
                            return Ok(done);
                        }
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        Ok(done)
    }

    /// P1: puts one piece into the ring.
    #[inline]
    fn publish(&self, piece: &[u8]) -> Published {
        let send = &self.side.send;
        let line = &self.direction.line_a;
        let seen = line.word.load();
        if seen.kernel_carries() {
            return Published::Kernel(seen);
        }
        let Ok(guard) = send.lock.lock(self.kernel) else { return Published::Kernel(self.reentered()) };
        let seen = line.word.load();
        if seen.kernel_carries() {
            return Published::Kernel(seen);
        }
        let now = self.kernel.coarse_ns();
        let is_due = now >= send.due_ns.load(Ordering::Relaxed);
        if is_due && self.is_kernel_due(now) {
            return Published::Due;
        }
        let tail = seen.tail();
        let Some(used) = self.used(tail, piece.len()) else {
            return Published::Kernel(self.pin_locked());
        };
        if self.ring.capacity() - used < piece.len() as u64 {
            return Published::Full;
        }
        let is_inline = used == 0 && piece.len() <= INLINE;
        if is_inline {
            store_inline(&line.inline, piece);
        }
        self.ring.write(tail, piece);
        line.credit.store(self.side.receive.head.load(Ordering::Acquire), Ordering::Release);
        if !line.word.publish(seen, piece.len(), if is_inline { piece.len() } else { 0 }) {
            drop(guard);
            return Published::Kernel(line.word.load());
        }
        self.counters.ring_sends.add();
        drop(guard);
        if is_due {
            self.check_connection(now);
        }
        Published::Yes
    }

    /// Returns how many ring bytes are unread as far as this end has to know for a piece of `len`
    /// bytes: first by what it knows, then by the credit, which came with the other direction's
    /// line, then by the consumer's own line. Returns `None` if the words are invalid.
    #[inline]
    fn used(&self, tail: Position, len: usize) -> Option<u64> {
        let send = &self.side.send;
        let capacity = self.ring.capacity();
        let mut used = tail.since(Position::new(send.known_head.load(Ordering::Relaxed)));
        if used > capacity {
            return None;
        }
        if used == 0 {
            return Some(0);
        }
        // A position that lies between the known one and the tail is believed, any other is ignored.
        let credit = &self.incoming.line_a.credit;
        used = used.min(tail.since(Position::new(credit.load(Ordering::Acquire))));
        if capacity - used < len as u64 {
            used = self.used_by_consumer_line(tail, used);
        }
        send.known_head.store(tail.bits().wrapping_sub(used), Ordering::Relaxed);
        Some(used)
    }

    #[cold]
    fn used_by_consumer_line(&self, tail: Position, used: u64) -> u64 {
        used.min(tail.since(Position::new(self.direction.line_c.head.load(Ordering::Acquire))))
    }

    /// Waits for space as long as the reader may be awake. Returns whether another attempt pays.
    #[cold]
    fn wait_for_room(&self, len: usize) -> bool {
        let enough = || {
            let seen = self.direction.line_a.word.load();
            let used = seen.tail().since(Position::new(self.direction.line_c.head.load(Ordering::Acquire)));
            seen.kernel_carries() || used + len as u64 <= self.ring.capacity()
        };
        self.spin.wait_for_awake(self.pacing, self.kernel, self.pacing.room_ns, enough)
    }

    /// P3, for a ring that has stayed full.
    #[cold]
    fn leave_full_ring(&self, len: usize) {
        let Ok(_guard) = self.side.send.lock.lock(self.kernel) else {
            self.reentered();
            return;
        };
        let tail = self.direction.line_a.word.load().tail();
        let is_full = self.used(tail, len).is_none_or(|used| self.ring.capacity() - used < len as u64);
        if is_full && self.set_kernel_locked(false) {
            self.counters.full.add();
        }
    }

    /// P3: the kernel carries from here on; for good with `pin`.
    pub(crate) fn to_kernel(&self, pin: bool) {
        match self.side.send.lock.lock(self.kernel) {
            Ok(_guard) => {
                self.set_kernel_locked(pin);
            }
            Err(_held) => {
                self.reentered();
            }
        }
    }

    /// P3 under the send lock: the kernel's bytes so far precede what is in the ring, all later
    /// ones follow it. Returns whether the ring had been the carrier.
    fn set_kernel_locked(&self, pin: bool) -> bool {
        let (line, count) = (&self.direction.line_a, &self.direction.line_b);
        loop {
            let seen = line.word.load();
            if seen.kernel_carries() {
                if seen.is_pinned() {
                    return false;
                }
                if !pin && !seen.is_requested() {
                    return false;
                }
            } else {
                // `K` stands still while the ring carries, as no send is in flight. Only a hostile
                // peer sets `G` as well: a sender that took this for the kernel's turn would retry
                // forever.
                count.boundary.store(count.sent.load(Ordering::Acquire), Ordering::Release);
            }
            if line.word.set_kernel(seen, pin) {
                if pin {
                    self.counters.pins.add();
                }
                return !seen.kernel_carries();
            }
        }
    }

    fn pin_locked(&self) -> Snapshot {
        self.set_kernel_locked(true);
        self.direction.line_a.word.load()
    }

    /// A signal handler sends in the middle of its own thread's section, or the thread jumped out
    /// of one. The kernel carries for good, and the interrupted compare-exchange fails: that
    /// section has published nothing, and goes on in the kernel.
    #[cold]
    fn reentered(&self) -> Snapshot {
        self.pin_locked()
    }

    /// P2: makes one counted call that hands bytes to the kernel. Returns `None` if the carrier has
    /// changed, so that the caller has to check again.
    ///
    /// P6, with `may_hold`: the kernel may hold these bytes back until more come (MSG_MORE), and the
    /// next bytes must not come by the ring. So a request is taken back, and the consumer makes no
    /// other before it has them (C5). P5 too.
    #[inline]
    pub(crate) fn send_by_kernel(
        &self,
        seen: Snapshot,
        may_hold: bool,
        call: impl FnOnce() -> Result<usize, Errno>,
    ) -> Option<Result<usize, Errno>> {
        let word = &self.direction.line_a.word;
        if let Some(error) = self.kept_error.take() {
            return Some(Err(error));
        }
        if word.grant(seen) {
            return None;
        }
        let is_counted = match word.begin_kernel_send(seen) {
            KernelSend::Counted => true,
            KernelSend::Uncounted => false,
            KernelSend::Changed => return None,
        };
        self.kernel.before_send();
        let result = call();
        if let Ok(n) = result {
            self.direction.line_b.sent.fetch_add(n as u64, Ordering::AcqRel);
        }
        if may_hold {
            self.to_kernel(false);
        }
        if is_counted {
            word.end_kernel_send();
        }
        self.counters.kernel_sends.add();
        Some(result)
    }

    /// P5: returns whether the kernel's turn has come. Anything that stops the connection in the
    /// kernel (a firewall rule, a route, a cgroup's BPF program) stops it here too: the consumer
    /// takes the ring again only once it has the kernel's bytes (P6, C5).
    #[cold]
    fn is_kernel_due(&self, now: u64) -> bool {
        // 0 is the beginning, not a time.
        let now = now.max(1);
        let passed = &self.side.send.passed_ns;
        let before = passed.load(Ordering::Relaxed);
        if before != 0 && now.wrapping_sub(before) < KERNEL_NS {
            return false;
        }
        passed.store(now, Ordering::Relaxed);
        before != 0
    }

    /// P5, like P3. If the consumer makes the ring the carrier again before the caller has counted
    /// its send, the caller repeats this.
    #[cold]
    fn leave_ring_once(&self) -> Published {
        self.to_kernel(false);
        Published::Kernel(self.direction.line_a.word.load())
    }

    /// P4: asks the kernel whether the connection has failed, or the peer has closed its end.
    #[cold]
    fn check_connection(&self, now: u64) {
        self.side.send.due_ns.store(now + CHECK_NS, Ordering::Relaxed);
        let events = self.kernel.events();
        if events.error || events.hang_up {
            self.to_kernel(true);
        } else if events.peer_closed {
            // The peer may have died: then the kernel's next send fails. A peer that continues to
            // read requests the ring again.
            self.to_kernel(false);
        }
    }
}
