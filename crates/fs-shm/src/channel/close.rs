//! Shutdown, close, reset, SO_ERROR.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use rustix::io::Errno;

use super::state::{Phase, State, closed_bit, refusing_bit, reset_bit, told_bit};
use super::{CAPTURED, Channel, DEFERRED, RCV_SHUT, RESET_SEEN, SND_SHUT};
use crate::arena::IN_TURN;
use crate::holder::{self, Sending};
use crate::large::STEP;
use crate::layout::Side;
use crate::ring::FIRST_GROWTH_LOG2;
use crate::word::AtomicU32;

/// shutdown(2)'s second argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// SHUT_RD: reads give 0 once what has come is read. The peer is not told.
    Read,
    /// SHUT_WR: the peer reads 0 after the last byte.
    Write,
    /// SHUT_RDWR.
    Both,
}

/// A call that ends a direction, until it has told of that.
struct Telling<'a>(&'a AtomicU32);

impl<'a> Telling<'a> {
    fn begin(calls: &'a AtomicU32) -> Self {
        calls.fetch_add(1, SeqCst);
        Telling(calls)
    }
}

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// What closing does with the locks of its side.
#[derive(Clone, Copy)]
pub(super) enum Locks {
    Take,
    Break,
}

impl Channel<'_> {
    /// shutdown(2).
    ///
    /// # Errors
    /// `ENOTCONN`: not connected (any more). `EBADF`: closed.
    pub fn shutdown(&self, how: Shutdown) -> Result<(), Errno> {
        let state = self.live()?;
        self.absorb_reset(state);
        if state.phase() != Phase::Open || self.own().flags.load(Acquire) & RESET_SEEN != 0 {
            return Err(self.shut_in_vain());
        }
        let flags = match how {
            Shutdown::Read => RCV_SHUT,
            Shutdown::Write => SND_SHUT,
            Shutdown::Both => RCV_SHUT | SND_SHUT,
        };
        let _telling = Telling::begin(&self.own().telling);
        let mut ends = false;
        if flags & SND_SHUT != 0 {
            let _held = self.lock_send()?;
            if self.is_holding() {
                self.let_go_locked();
            }
            self.own().flags.fetch_or(flags | self.is_first_to_end(), SeqCst);
            if self.own().flags.load(Acquire) & RESET_SEEN != 0 {
                // What was held back has met a peer that takes no more: no FIN behind the reset.
                return Ok(());
            }
            // The peer is told of the end once.
            ends = self.tx().rare.fin.swap(1, SeqCst) == 0;
        } else {
            self.own().flags.fetch_or(flags, SeqCst);
        }
        // Over the wire it is the core's TCP that answers what comes.
        let has_ended = self.tx().rare.fin.load(Acquire) != 0;
        if has_ended && !self.is_wire() && self.own().flags.load(Acquire) & (RCV_SHUT | SND_SHUT) == RCV_SHUT | SND_SHUT
        {
            self.change(|state| Some(state.with(refusing_bit(self.side()))));
        }
        if ends {
            self.announce_deferred(Locks::Take);
            self.notify(self.side().other(), true, true);
        }
        self.notify(self.side(), true, true);
        Ok(())
    }

    /// It was shut down before it was connected: nothing is read or sent, and the peer is not told. Before anybody else has it.
    pub fn begin_shut(&self, read: bool, write: bool) {
        let flags = if read { RCV_SHUT } else { 0 } | if write { SND_SHUT } else { 0 };
        if flags != 0 {
            self.own().flags.fetch_or(flags, SeqCst);
        }
    }

    /// What shutdown(2) answers of a connection that is over: who waits is woken all the same (inet_shutdown() of the kernel).
    pub fn shut_in_vain(&self) -> Errno {
        self.notify(self.side(), true, true);
        Errno::NOTCONN
    }

    /// Gives one reference back. With the last one the side closes: FIN, or a reset if unread bytes are left or
    /// `linger_zero` (SO_LINGER with 0 seconds). Calls of other threads on this side that are under way end first.
    /// Returns whether it was the last.
    ///
    /// # Errors
    /// `EINTR`: it was the last, and this very thread is inside of a call on this side (a signal handler closes what
    /// its thread uses). Nothing was closed: it is left to the daemon ([`Channel::abort`] when the process ends).
    pub fn close(&self, linger_zero: bool) -> Result<bool, Errno> {
        self.close_by(|| linger_zero)
    }

    /// [`Channel::close`] with the SO_LINGER that the side has, whichever of the processes that hold it has set it.
    ///
    /// # Errors
    /// As [`Channel::close`].
    pub fn close_as_set(&self) -> Result<bool, Errno> {
        self.close_by(|| self.options().reset_on_close)
    }

    fn close_by(&self, linger_zero: impl FnOnce() -> bool) -> Result<bool, Errno> {
        let refs = &self.own().refs;
        // Not below 0: a hostile peer may have written it; our descriptor is gone either way.
        let others = refs.fetch_update(SeqCst, SeqCst, |refs| refs.checked_sub(1)).is_ok_and(|before| before > 1);
        if others {
            // Whoever holds it may not be known to the daemon as one who does.
            self.let_go();
            self.announce_deferred(Locks::Take);
            return Ok(false);
        }
        self.close_side(linger_zero(), None, Locks::Take)?;
        Ok(true)
    }

    /// Closes this side whatever its references are: with a FIN (`None`) or a reset that the peer sees as `errno`.
    /// For the daemon: RST or time-out from the wire, a dead process, connections nobody accepted.
    pub fn abort(&self, errno: Option<Errno>) {
        self.own().refs.store(0, SeqCst);
        // Not from a signal handler that interrupted its own call on it; if so nevertheless, the side stays open.
        let _open = self.close_side(errno.is_some(), errno, Locks::Take);
    }

    /// [`Channel::close`] for a descriptor of a process that is gone (the daemon): never waits. With the last reference
    /// nobody is left who could rightfully hold a lock of this side, so they are freed whatever they say.
    pub fn close_dead(&self) {
        self.release_dead(1);
    }

    /// [`Channel::close_dead`] for so many references, or all there are. Whether nobody holds the side any more.
    pub fn release_dead(&self, references: u32) -> bool {
        let less = |refs: u32| Some(refs.saturating_sub(references));
        let others = self.own().refs.fetch_update(SeqCst, SeqCst, less).is_ok_and(|before| before > references);
        if !others {
            let resets = self.options().reset_on_close;
            self.abort_dead(resets.then_some(Errno::CONNRESET));
        }
        !others
    }

    /// [`Channel::abort`] of a side that nobody holds any more (the daemon): never waits.
    pub fn abort_dead(&self, errno: Option<Errno>) {
        self.own().refs.store(0, SeqCst);
        // Without taking locks it cannot fail.
        let _closed = self.close_side(errno.is_some(), errno, Locks::Break);
    }

    fn close_side(&self, reset: bool, errno: Option<Errno>, locks: Locks) -> Result<(), Errno> {
        let me = self.side();
        let lock = |word| match locks {
            Locks::Take => holder::lock(word, self.locks().users()).map(Some),
            Locks::Break => {
                word.store(0, SeqCst);
                Ok(None)
            }
        };
        // Calls of other threads on this side that are under way end first; those that come later find it closed. A
        // lock that is not to be had for seconds (a stopped holder) does not keep the side open.
        let rx_held = lock(&self.locks().receive);
        let tx_held = lock(&self.locks().send);
        if matches!(rx_held, Err(Errno::INTR)) || matches!(tx_held, Err(Errno::INTR)) {
            return Err(Errno::INTR);
        }
        let tx_held = match tx_held {
            Ok(Some(held)) => Some(Sending::new(held, self.writer())),
            _ => {
                self.writer().store(0, SeqCst);
                None
            }
        };
        if self.live().is_err() {
            return Ok(());
        }
        let unread = self.rx().unread().map_or(true, |(_, unread)| unread != 0);
        // Held bytes go before the FIN, and are answered by a reset where the peer takes none.
        let refused = self.is_holding() && self.state().is_some_and(|state| state.is_refusing(me.other()));
        // Both directions had ended before: nobody is left to be reset (__tcp_close() of the kernel, TCP_CLOSE).
        let is_over = errno.is_none()
            && !self.is_wire()
            && self.rx().rare.fin.load(Acquire) != 0
            && self.tx().rare.fin.load(Acquire) != 0
            && self.own().flags.load(Acquire) & RESET_SEEN == 0;
        let reset = (reset || unread || refused) && !is_over;
        let mut first = 0;
        // No FIN behind a reset: the peer is to find the error.
        let mut had_ended = false;
        if !reset && !self.is_reset() {
            if self.is_holding() {
                self.tx().let_go();
            }
            first = self.is_first_to_end();
            had_ended = self.tx().rare.fin.swap(1, SeqCst) != 0;
            self.announce_deferred(locks);
        } else if self.own().flags.fetch_and(!DEFERRED, SeqCst) & DEFERRED != 0 {
            // Its acceptor never hears of it.
            self.change(|state| Some(state.with(closed_bit(me.other()))));
        }
        self.own().flags.fetch_or(RCV_SHUT | SND_SHUT | first, SeqCst);
        // Nothing comes that has not come before (FIN_WAIT2, or a reset). A core hears of it all the same, and who was killed may not have
        // told of the end.
        let is_quiet = |state: State| {
            (had_ended || state.is_reset(me) || state.is_reset(me.other()))
                && !self.is_wire()
                && matches!(locks, Locks::Take)
        };
        let before = self.change(|state| {
            let mut next = state.with(closed_bit(me));
            if is_quiet(state) && !state.is_reset(me) {
                // Of a reset of before its own call tells, or has not.
                next = next.with(told_bit(me));
            }
            if reset {
                next = next.with(reset_bit(me));
                if let Some(errno) = errno.filter(|_| state.errno() == 0) {
                    next = next.with_errno(errno.raw_os_error() as u16);
                }
            }
            Some(next)
        });
        drop((rx_held, tx_held));
        match before {
            // Somebody else did it at the same time.
            None => {}
            Some(state) if state.is_closed(me) => {}
            Some(state) if state.is_closed(me.other()) => {
                if !reset {
                    self.record_wait(state);
                }
                self.free();
            }
            Some(state) if is_quiet(state) => {}
            Some(_) => {
                self.notify(me.other(), true, true);
                self.change(|state| Some(state.with(told_bit(me))));
            }
        }
        Ok(())
    }

    /// Both sides have closed, and this one was second.
    fn free(&self) {
        let geometry = self.arena().geometry();
        let head = self.arena().head();
        head.ended.fetch_add(1, Relaxed);
        head.ended_bytes.fetch_add(self.carried(), Relaxed);
        let (word, bit) = (&self.arena().touched()[(self.slot() / 64) as usize], 1 << (self.slot() % 64));
        // Seldom written where slots come and go all the time.
        if word.load(Relaxed) & bit == 0 {
            word.fetch_or(bit, Relaxed);
        }
        // What a connection carried that is followed goes a moment later, with all that is free (`Arena::trim`).
        let captured = self.block().own.iter().any(|own| own.flags.load(Relaxed) & CAPTURED != 0);
        for side in [Side::A, Side::B] {
            self.ring(side).drop_large();
            let log2 = (self.ring(side).rare.map.load(Relaxed) >> 56) as u8;
            if log2 != geometry.ring_log2 && !captured {
                self.give_grown(side, log2);
            }
        }
        self.block().state.store(State::new(self.generation().wrapping_add(1), Phase::Free).0, Release);
        self.arena().give_slot(self.slot());
        self.arena().ask_trim();
    }

    /// What a side's grown ring has taken goes back, but for that of the first growth in a slot that takes turns, as each new connection
    /// that carries more than 16 KiB would fault its pages in, and have them given back: it goes with the slot's first one, when the daemon
    /// next finds the slot free ([`Arena::trim`](crate::Arena::trim)). Few slots, so that a burst does not keep memory for each of its connections; and
    /// none where this process has not memory for what another ring may ask for at once.
    fn give_grown(&self, side: Side, log2: u8) {
        let geometry = self.arena().geometry();
        let first_growth = geometry.ring_log2.max(FIRST_GROWTH_LOG2);
        let is_kept = self.slot() < IN_TURN && self.arena().bells().may_use(STEP);
        let stays = if is_kept { first_growth } else { geometry.ring_log2 };
        let first = 2usize << stays;
        // The peer may have written any size, also where a stride has no room for a larger ring.
        let len = (1usize << geometry.stride_log2).saturating_sub(first);
        if log2 > stays && len != 0 {
            self.arena().region().punch(self.arena().ring_offset(self.slot(), side) + first, len);
        }
    }

    /// Bytes that both directions have carried so far.
    pub(crate) fn carried(&self) -> u64 {
        let [a, b] = &self.block().out;
        a.hot.tail.load(Relaxed).wrapping_add(b.hot.tail.load(Relaxed))
    }

    /// Resets the connection without closing this side: the peer sees ECONNRESET, this side finds `errno`.
    pub fn reset_both(&self, errno: Errno) {
        let own = self.own();
        if own.flags.fetch_or(RESET_SEEN | RCV_SHUT | SND_SHUT, SeqCst) & RESET_SEEN == 0 {
            own.error.store(errno.raw_os_error() as u32, SeqCst);
        }
        let me = self.side();
        self.change(|state| Some(state.with(reset_bit(me))));
        self.notify(me.other(), true, true);
        self.notify(me, true, true);
    }

    /// [`Channel::reset_both`], but for one of which that is true. `false`: it was.
    pub(crate) fn reset_unless_over(&self, errno: Errno) -> bool {
        let by_state = self.state().is_none_or(|state| state.is_reset(self.side()));
        let is_over = by_state && self.own().flags.load(Acquire) & RESET_SEEN != 0;
        if !is_over {
            self.reset_both(errno);
        }
        !is_over
    }

    /// SO_ERROR: takes the pending error.
    pub fn take_error(&self) -> Option<Errno> {
        if let Some(state) = self.state() {
            self.absorb_reset(state);
        }
        let error = &self.own().error;
        if error.load(Acquire) == 0 {
            return None;
        }
        errno_of(error.swap(0, AcqRel))
    }

    /// Sets the pending error (the bridge: an ICMP error, a time-out) and wakes who waits.
    pub fn set_error(&self, errno: Errno) {
        self.own().error.store(errno.raw_os_error() as u32, SeqCst);
        self.notify(self.side(), true, true);
    }

    /// Sets the error that the *peer* finds in SO_ERROR, without resetting anything (the bridge: a soft error of the
    /// wire connection).
    pub fn set_peer_error(&self, errno: Errno) {
        let peer = self.side().other();
        self.block().own[peer.index()].error.store(errno.raw_os_error() as u32, SeqCst);
        self.notify(peer, true, true);
    }

    /// Takes notice, once, that the peer reset the connection or that it could not be made.
    #[inline]
    pub(crate) fn absorb_reset(&self, state: State) {
        if state.is_reset(self.side().other()) || state.phase() == Phase::Failed {
            self.absorb_reset_cold(state);
        }
    }

    #[cold]
    fn absorb_reset_cold(&self, state: State) {
        let own = self.own();
        let fin = self.rx().rare.fin.load(Acquire) != 0;
        if own.flags.fetch_or(RESET_SEEN | SND_SHUT, SeqCst) & RESET_SEEN == 0 {
            let errno = match state.errno() {
                // After a FIN it is a broken pipe (Linux tcp_reset(), CLOSE_WAIT).
                0 if fin => Errno::PIPE,
                0 => Errno::CONNRESET,
                errno => errno_of(u32::from(errno)).unwrap_or(Errno::CONNRESET),
            };
            own.error.store(errno.raw_os_error() as u32, SeqCst);
        }
    }
}

/// `None` for 0 and for what is no errno (scribbled).
fn errno_of(raw: u32) -> Option<Errno> {
    (raw != 0).then(|| if raw < 4096 { Errno::from_raw_os_error(raw as i32) } else { Errno::CONNRESET })
}
