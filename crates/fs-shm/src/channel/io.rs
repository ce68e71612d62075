//! Sending and receiving.

use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use rustix::io::Errno;

use super::close::Locks;
use super::state::{Phase, State};
use super::{CAPTURED, CORE, CORKED, CUT, Channel, DEFERRED, HOLDING, OOB_INLINE, RCV_SHUT, RESET_SEEN, SND_SHUT};
use crate::holder::{self, Held, Sending};
use crate::ring::{Ring, SEGMENT};

/// Flags of a receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecvFlags {
    /// MSG_PEEK: the bytes stay.
    pub peek: bool,
    /// MSG_TRUNC: the bytes are thrown away, the buffers not touched (tcp(7)).
    pub discard: bool,
}

/// So much one call sends to a peer that has closed until it sees the reset that the first bytes bring: tcp_sendmsg_locked() of the
/// kernel takes in what has come after each 16 segments, each of half of the window that the peer began with.
const VANISHES: usize = 16 * 32_768;

impl<'a> Channel<'a> {
    /// send(2) without waiting: copies what fits; fewer than asked means full.
    ///
    /// # Errors
    /// `EAGAIN`: full (the peer will tell when a quarter is free), or not connected yet. `EPIPE`: shut for sending, or
    /// the peer is gone (SIGPIPE is the caller's to raise). `ECONNRESET` and what else is in SO_ERROR. `EBADF`: closed.
    /// `EINTR`: a signal handler interrupted its own thread's send on this channel.
    #[inline]
    pub fn send(&self, bufs: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let [buf] = bufs else { return self.send_within(bufs, true) };
        match self.send_near(bufs) {
            Ok(sent) if sent < buf.len() => self.send_far(buf, sent),
            Err(Errno::AGAIN) => self.send_far(buf, 0),
            answer => answer,
        }
    }

    /// What is behind the first `sent` bytes, which the slot's ring had no room for: a reader on this CPU that is ready to run may
    /// read first, so that the queue does not leave the caches.
    #[cold]
    fn send_far(&self, buf: &[u8], mut sent: usize) -> Result<usize, Errno> {
        while sent < buf.len() && self.let_reader_run() {
            match self.send_near(&[IoSlice::new(&buf[sent..])]) {
                Ok(more) => sent += more,
                Err(Errno::AGAIN) => break,
                Err(errno) => return self.sent_before(sent, errno),
            }
        }
        if sent == buf.len() {
            return Ok(sent);
        }
        // The fast path found no room just now.
        let rest = self.lock_send().and_then(|held| self.send_any(&[IoSlice::new(&buf[sent..])], held, true, false));
        rest.map(|more| sent + more).or_else(|errno| self.sent_before(sent, errno))
    }

    /// What a call answers that met an error behind its first `sent` bytes: the next call tells it.
    fn sent_before(&self, sent: usize, errno: Errno) -> Result<usize, Errno> {
        if sent == 0 {
            return Err(errno);
        }
        if !matches!(errno, Errno::AGAIN | Errno::PIPE | Errno::BADF | Errno::INTR) {
            self.set_error(errno);
        }
        Ok(sent)
    }

    /// [`Channel::send`] that takes no large ring: who gets less than it asked for either waits a moment for the reader
    /// ([`crate::Interest::Room`]), or calls `send` for the rest; nobody tells it of space otherwise. A queue that a reader
    /// keeps up with stays in the caches so.
    ///
    /// # Errors
    /// As [`Channel::send`].
    #[inline]
    pub fn send_near(&self, bufs: &[IoSlice<'_>]) -> Result<usize, Errno> {
        self.send_within(bufs, false)
    }

    // Out of line it would save and bring back more registers than a message has bytes, where the fast path is all that is run.
    #[inline(always)]
    fn send_within(&self, bufs: &[IoSlice<'_>], enter: bool) -> Result<usize, Errno> {
        let held = self.lock_send()?;
        if let [buf] = bufs
            && self.send_short(buf)
        {
            return Ok(buf.len());
        }
        self.send_any(bufs, held, enter, false)
    }

    /// [`Channel::send_near`] with MSG_MORE, between processes: what does not fill a segment is held back.
    ///
    /// # Errors
    /// As [`Channel::send`].
    pub fn send_more(&self, bufs: &[IoSlice<'_>]) -> Result<usize, Errno> {
        // As for `set_cork`.
        self.locks().several.store(1, SeqCst);
        let held = self.lock_send()?;
        self.send_any(bufs, held, false, true)
    }

    /// Any bytes, to any connection.
    fn send_any(&self, bufs: &[IoSlice<'_>], held: Sending<'a>, enter: bool, more: bool) -> Result<usize, Errno> {
        let total: usize = bufs.iter().map(|buf| buf.len()).fold(0, usize::saturating_add);
        let stays = || {
            let hold = more || self.own().flags.load(Relaxed) & CORKED != 0;
            hold && self.tx().held().saturating_add(total as u64) < SEGMENT
        };
        let Some(_held) = self.begin_send(total, held, stays)? else { return Ok(total.min(VANISHES)) };
        let tx = self.tx();
        if more || self.own().flags.load(Relaxed) & (CORKED | HOLDING | CAPTURED) != 0 {
            return self.send_or_hold(bufs, total, enter, more);
        }
        let mut sent = tx.write(bufs, total, enter).map_err(|broken| self.broken(broken))?;
        if sent < total && enter {
            // Full: ask to be told, and look once more, as the peer may have made room before it saw the wish.
            tx.want_space();
            if sent == 0 {
                sent = tx.write(bufs, total, true).map_err(|broken| self.broken(broken))?;
            } else if tx.writable(true).unwrap_or(true) {
                // The caller takes a short count for "full" and waits to be told: nobody else would now.
                self.notify(self.side(), false, true);
            }
        }
        self.note_cut(sent < total);
        if sent != 0 {
            self.announce_deferred_now();
            self.notify_published(self.side().other(), true, false);
            Ok(sent)
        } else if total == 0 {
            Ok(0)
        } else {
            self.tell_full();
            Err(Errno::AGAIN)
        }
    }

    /// [`Ring::write_or_hold`], in the ring alone if somebody follows it.
    fn put(&self, bufs: &[IoSlice<'_>], total: usize, enter: bool, hold: bool) -> Result<usize, Errno> {
        let tx = self.tx();
        let written = match self.own().flags.load(Relaxed) & CAPTURED {
            0 => tx.write_or_hold(bufs, total, enter, hold),
            _ => tx.write_in_ring(bufs, total, enter, hold),
        };
        written.map_err(|broken| self.broken(broken))
    }

    /// What is not enough for a segment is held back, if the socket is corked or this call says that more follows. The caller
    /// has the send lock.
    #[cold]
    fn send_or_hold(&self, bufs: &[IoSlice<'_>], total: usize, enter: bool, more: bool) -> Result<usize, Errno> {
        let tx = self.tx();
        let hold = more || self.own().flags.load(Relaxed) & CORKED != 0;
        let before = tx.out.tail.load(Relaxed);
        let mut sent = self.put(bufs, total, enter, hold)?;
        if sent < total {
            // It waits for room, and the reader for bytes (tcp_sendmsg_locked() pushes all before it waits).
            self.let_go_locked();
            if enter {
                tx.want_space();
                sent += match bufs {
                    [_] if sent == 0 => self.put(bufs, total, true, false)?,
                    _ => 0,
                };
                if tx.writable(true).unwrap_or(true) {
                    self.notify(self.side(), false, true);
                }
            }
        }
        self.note_cut(sent < total);
        if tx.held() != 0 {
            self.own().flags.fetch_or(HOLDING, SeqCst);
        } else if self.is_holding() {
            self.own().flags.fetch_and(!HOLDING, SeqCst);
            tx.tx.due.store(0, Relaxed);
        }
        if tx.out.tail.load(Relaxed) != before {
            self.announce_deferred_now();
            self.notify_published(self.side().other(), true, false);
        }
        if sent == 0 && total != 0 {
            self.tell_full();
            return Err(Errno::AGAIN);
        }
        Ok(sent)
    }

    /// A call has sent, all or what there was room for. The rest comes with the next one, and its reader is not to wait for more
    /// than that. The caller has the send lock, and wakes the reader afterwards.
    #[inline]
    fn note_cut(&self, is_cut: bool) {
        let was_cut = self.own().flags.load(Relaxed) & CUT != 0;
        if !is_cut && !was_cut {
            return;
        }
        let out = self.tx().out.tail.load(Relaxed);
        self.tx().rare.pushed.store(if is_cut { u64::MAX } else { out }, SeqCst);
        if is_cut != was_cut {
            self.own().flags.fetch_xor(CUT, SeqCst);
        }
    }

    /// There is no room for a byte: a reader that waits for SO_RCVLOWAT bytes looks ([`Channel::is_enough`]). Who reads them all
    /// was woken by the last that came.
    #[cold]
    fn tell_full(&self) {
        self.notify(self.side().other(), true, false);
    }

    /// [`Channel::send`] of one buffer.
    ///
    /// # Errors
    /// As [`Channel::send`].
    #[inline]
    pub fn send_one(&self, buf: &[u8]) -> Result<usize, Errno> {
        self.send(&[IoSlice::new(buf)])
    }

    /// send(2) with MSG_OOB: the last byte of `bufs` is urgent. If the message is cut, as by [`Channel::send`], nothing is
    /// urgent yet; the call for the rest makes it so.
    ///
    /// # Errors
    /// As [`Channel::send`].
    pub fn send_urgent(&self, bufs: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let total: usize = bufs.iter().map(|buf| buf.len()).fold(0, usize::saturating_add);
        let held = self.lock_send()?;
        let tx = self.tx();
        let leaves = total != 0 && !self.is_reset() && self.own().flags.load(Acquire) & SND_SHUT == 0;
        if leaves && self.state().is_some_and(|state| state.is_refusing(self.side().other())) {
            // tcp_urg() of the kernel comes before the reset that answers the byte.
            let end = tx.out.tail.load(Relaxed).wrapping_add(total as u64);
            tx.rare.urgent.store(end, Relaxed);
        }
        let Some(_held) = self.begin_send(total, held, || false)? else { return Ok(total) };
        if total == 0 {
            // Nothing leaves (tcp_push() is for what was copied).
            return Ok(0);
        }
        if self.is_holding() {
            self.let_go_locked();
        }
        let before = tx.out.tail.load(Relaxed);
        let (mark, skipped) = (tx.rare.urgent.load(Relaxed), tx.rare.skipped.load(Relaxed));
        let peer = &self.block().own[self.side().other().index()].flags;
        if peer.load(Relaxed) & (OOB_INLINE | CORE) == 0 {
            tx.skip_urgent();
        }
        // Before tail is published: whoever sees the byte sees the mark. A mark beyond tail means nothing yet.
        tx.rare.urgent.store(before.wrapping_add(total as u64), Relaxed);
        let mut sent = self.put(bufs, total, true, false)?;
        if sent < total {
            tx.want_space();
            if sent == 0 {
                sent = self.put(bufs, total, true, false)?;
            }
        }
        if sent < total {
            tx.rare.urgent.store(mark, Relaxed);
            tx.rare.skipped.store(skipped, Relaxed);
        }
        self.note_cut(sent < total);
        if sent == 0 && total != 0 {
            return Err(Errno::AGAIN);
        }
        self.announce_deferred_now();
        self.notify(self.side().other(), true, false);
        Ok(sent)
    }

    /// The first bytes are there.
    #[inline]
    pub(super) fn announce_deferred_now(&self) {
        if self.own().flags.load(Relaxed) & DEFERRED != 0 {
            self.announce_deferred(Locks::Take);
        }
    }

    #[inline]
    pub(super) fn lock_send(&self) -> Result<Sending<'a>, Errno> {
        let locks = self.locks();
        let held = holder::lock(&locks.send, locks.users())?;
        Ok(Sending::new(held, self.writer()))
    }

    #[inline]
    fn lock_recv(&self) -> Result<Held<'a>, Errno> {
        let locks = self.locks();
        holder::lock(&locks.receive, locks.users())
    }

    /// The checks before sending; gives the lock back. `stays`: all of it is held back. `Ok(None)`: the peer has closed, or shut
    /// both directions; the bytes vanish, as on the kernel, where they bring the RST that the next call meets.
    fn begin_send(
        &self,
        total: usize,
        held: Sending<'a>,
        stays: impl FnOnce() -> bool,
    ) -> Result<Option<Sending<'a>>, Errno> {
        if self.may_send() {
            return Ok(Some(held));
        }
        self.begin_send_slow(self.live()?, total, stays()).map(|open| open.then_some(held))
    }

    #[cold]
    fn begin_send_slow(&self, state: State, total: usize, stays: bool) -> Result<bool, Errno> {
        self.absorb_reset(state);
        if let Some(errno) = self.take_error() {
            return Err(errno);
        }
        if self.own().flags.load(Acquire) & (SND_SHUT | RESET_SEEN) != 0 {
            return Err(Errno::PIPE);
        }
        if state.phase() == Phase::Connecting {
            return Err(Errno::AGAIN);
        }
        Ok(total == 0 || stays || !self.is_answered_by_reset(state))
    }

    /// The peer has closed: all bytes of the next send go out, and are answered with a reset.
    pub fn takes_in_vain(&self) -> bool {
        let (peer, flags) = (self.side().other(), self.own().flags.load(Acquire));
        let has_gone = self.state().is_some_and(|state| state.is_closed(peer) || state.is_refusing(peer));
        has_gone && flags & (SND_SHUT | RESET_SEEN) == 0
    }

    /// How much a call has sent that the peer's reset met behind its first `sent` bytes, while it waited for room that the kernel's
    /// buffers have: there it comes to its end first, and the peer's last answer is read before the reset is seen.
    pub fn taken_in_vain(&self, sent: usize, total: usize) -> usize {
        if self.is_wire() || !self.state().is_some_and(|state| state.is_reset(self.side().other())) {
            return sent;
        }
        let room = (self.tx().limit() as usize).saturating_sub(self.queued_out());
        sent + total.saturating_sub(sent).min(VANISHES).min(room)
    }

    /// Bytes go out now: whether the peer answers them with a reset, which has come then. What was held back is gone. The caller
    /// has the send lock.
    pub(super) fn is_answered_by_reset(&self, state: State) -> bool {
        let peer = self.side().other();
        if state.is_closed(peer) {
            self.own().flags.fetch_or(RESET_SEEN | SND_SHUT, SeqCst);
            self.own().error.store(Errno::PIPE.raw_os_error() as u32, SeqCst);
            self.notify(self.side(), true, true);
        } else if state.is_refusing(peer) {
            // Both sides are reset. This one has had the peer's FIN (CLOSE_WAIT of tcp_reset()).
            self.reset_both(Errno::PIPE);
        } else {
            return false;
        }
        self.own().flags.fetch_and(!HOLDING, SeqCst);
        self.tx().forget_held();
        true
    }

    /// recv(2) without waiting: copies what is there. `Ok(0)`: end of data, or no room in `bufs`.
    ///
    /// # Errors
    /// `EAGAIN`: nothing there, or not connected yet. `ECONNRESET` and what else is in SO_ERROR, once what came before
    /// is read. `EBADF`: closed. `EINTR`: a signal handler interrupted its own thread's receive on this channel.
    #[inline]
    pub fn recv(&self, bufs: &mut [IoSliceMut<'_>], flags: RecvFlags) -> Result<usize, Errno> {
        let held = self.lock_recv()?;
        if let [buf] = bufs
            && flags == RecvFlags::default()
            && let Some(n) = self.recv_short(buf)
        {
            return Ok(n);
        }
        self.recv_any(bufs, flags, held)
    }

    /// Any bytes, from any connection.
    fn recv_any(&self, bufs: &mut [IoSliceMut<'_>], flags: RecvFlags, _held: Held<'a>) -> Result<usize, Errno> {
        let state = self.live()?;
        let rx = self.rx();
        let (mut head, mut unread) = rx.unread().map_err(|broken| self.broken(broken))?;
        if unread == 0 {
            self.empty(state)?;
            // End of data: with FIN seen, the tail is the last one.
            (head, unread) = rx.unread().map_err(|broken| self.broken(broken))?;
            if unread == 0 {
                return Ok(0);
            }
        }
        let total: usize = bufs.iter().map(|buf| buf.len()).fold(0, usize::saturating_add);
        let before = head;
        let mut len = unread.min(total as u64);
        let mark = rx.rare.urgent.load(Relaxed);
        if mark != 0 {
            len = self.stop_at_mark(&rx, mark, &mut head, unread, len, flags)?;
        }
        let n = if flags.discard {
            len as usize
        } else {
            rx.copy_out(head, len, bufs).map_err(|broken| self.broken(broken))?
        };
        let taken = head.wrapping_sub(before) + n as u64;
        if !flags.peek && taken != 0 && rx.consume(before, taken, unread) {
            self.notify(self.side().other(), false, true);
        }
        Ok(n)
    }

    /// [`Channel::recv`] into one buffer.
    ///
    /// # Errors
    /// As [`Channel::recv`].
    #[inline]
    pub fn recv_one(&self, buf: &mut [u8]) -> Result<usize, Errno> {
        self.recv(&mut [IoSliceMut::new(buf)], RecvFlags::default())
    }

    /// Nothing is unread: `Ok` if that is the end of data, else why not.
    #[inline]
    fn empty(&self, state: State) -> Result<(), Errno> {
        // One that could not be made has no end of data before its error: the core has closed its side since.
        if self.rx().rare.fin.load(Acquire) != 0 && state.phase() != Phase::Failed {
            return Ok(());
        }
        self.absorb_reset(state);
        if let Some(errno) = self.take_error() {
            return Err(errno);
        }
        if self.own().flags.load(Acquire) & (RCV_SHUT | RESET_SEEN) != 0 {
            return Ok(());
        }
        Err(Errno::AGAIN)
    }

    /// A read stops before the urgent byte; one that begins there skips it (unless SO_OOBINLINE, where it begins with
    /// it). Returns how much of `len` remains.
    #[cold]
    fn stop_at_mark(
        &self,
        rx: &Ring<'_>,
        mark: u64,
        head: &mut u64,
        unread: u64,
        len: u64,
        flags: RecvFlags,
    ) -> Result<u64, Errno> {
        let into = mark.wrapping_sub(1).wrapping_sub(*head);
        if into >= unread || len == 0 {
            return Ok(len);
        }
        if into != 0 {
            return Ok(len.min(into));
        }
        if self.own().flags.load(Acquire) & OOB_INLINE != 0 {
            return Ok(len);
        }
        *head = head.wrapping_add(1);
        if unread == 1 {
            // Only the urgent byte is there, and an ordinary read does not get it: the next thing is the end, or nothing yet.
            return match self.empty(self.live()?) {
                Ok(()) => Ok(0),
                Err(errno) => {
                    if !flags.peek && rx.consume(head.wrapping_sub(1), 1, unread) {
                        self.notify(self.side().other(), false, true);
                    }
                    Err(errno)
                }
            };
        }
        Ok(len.min(unread - 1))
    }

    /// recv(2) with MSG_OOB: the urgent byte.
    ///
    /// # Errors
    /// `EINVAL`: none came, it was read already or skipped, or SO_OOBINLINE. `ENOTCONN`: reset since. `EBADF`: closed.
    pub fn recv_urgent(&self, peek: bool) -> Result<u8, Errno> {
        let rx = self.rx();
        let _held = self.lock_recv()?;
        self.live()?;
        let (head, unread) = rx.unread().map_err(|broken| self.broken(broken))?;
        let mark = rx.rare.urgent.load(Relaxed);
        let at = mark.wrapping_sub(1);
        let ahead = at.wrapping_sub(head);
        let gone = mark == 0 || rx.inn.urgent_read.load(Relaxed) == mark || ahead.cast_signed() < 0;
        if gone || self.own().flags.load(Acquire) & OOB_INLINE != 0 {
            return Err(Errno::INVAL);
        }
        if self.is_reset() && !self.has_ended() {
            // TCP_CLOSE without SOCK_DONE (tcp_recv_urg() of the kernel).
            return Err(Errno::NOTCONN);
        }
        if ahead >= unread {
            // Not there yet, or refused.
            return Err(Errno::INVAL);
        }
        let mut byte = [0];
        rx.piece(at, 1).map_err(|broken| self.broken(broken))?.copy_to(&mut byte);
        if !peek {
            rx.inn.urgent_read.store(mark, Release);
        }
        Ok(byte[0])
    }

    /// SIOCATMARK: whether the next byte is the urgent one.
    pub fn at_mark(&self) -> bool {
        let rx = self.rx();
        let mark = rx.rare.urgent.load(Acquire);
        mark != 0 && rx.unread().is_ok_and(|(head, _)| mark.wrapping_sub(1) == head)
    }

    /// Reading in place: holds the receive side until dropped. Nothing is copied, and nothing consumed but by
    /// [`Reading::consume`]. For bridges and borrowed-buffer callers; urgent marks are not looked at.
    ///
    /// # Errors
    /// As [`Channel::recv`].
    pub fn reading(&self) -> Result<Reading<'a>, Errno> {
        let held = self.lock_recv()?;
        self.live()?;
        Ok(Reading { channel: *self, ring: self.rx(), space: false, _held: held })
    }

    /// Writing in place: holds the send side until dropped.
    ///
    /// # Errors
    /// As [`Channel::send`]; `EPIPE` also when the peer has closed.
    pub fn writing(&self) -> Result<Writing<'a>, Errno> {
        match self.begin_send(1, self.lock_send()?, || false)? {
            Some(held) => Ok(Writing { channel: *self, ring: self.tx(), committed: false, _held: held }),
            None => Err(Errno::PIPE),
        }
    }
}

/// What the sender has said of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// So many come before the urgent one (MSG_OOB), if that is among those that are unread.
    pub urgent: Option<usize>,
    /// Behind so many, more are about to follow (MSG_MORE).
    pub more: Option<usize>,
}

/// Reading in place. The peer is told of the space made when this is dropped.
pub struct Reading<'a> {
    channel: Channel<'a>,
    ring: Ring<'a>,
    space: bool,
    _held: Held<'a>,
}

impl Reading<'_> {
    /// The next unread bytes in one piece; more may follow once they are consumed. `Ok(&[])`: end of data.
    ///
    /// A hostile peer can change them while they are looked at: copy before checking.
    ///
    /// # Errors
    /// `EAGAIN`: nothing there. As [`Channel::recv`] besides.
    pub fn chunk(&mut self) -> Result<&[u8], Errno> {
        let (mut head, mut unread) = self.unread()?;
        if unread == 0 {
            self.channel.empty(self.channel.live()?)?;
            (head, unread) = self.unread()?;
            if unread == 0 {
                return Ok(&[]);
            }
        }
        Ok(self.ring.piece(head, unread).map_err(|broken| self.channel.broken(broken))?.as_slice())
    }

    /// As [`Reading::chunk`], with what is to be known of the bytes.
    ///
    /// # Errors
    /// As [`Reading::chunk`].
    pub fn marked_chunk(&mut self) -> Result<(&[u8], Marks), Errno> {
        self.chunk()?;
        // After the bytes were seen: their marks were written before them.
        let (head, unread) = self.unread()?;
        let (urgent, more) = (self.ring.rare.urgent.load(Relaxed), self.ring.rare.more.load(Relaxed));
        let before = urgent.wrapping_sub(1).wrapping_sub(head);
        let marks = Marks {
            urgent: (urgent != 0 && before < unread).then_some(before as usize),
            more: (more != 0).then(|| more.wrapping_sub(head) as usize),
        };
        let bytes = match unread {
            0 => &[],
            _ => self.ring.piece(head, unread).map_err(|broken| self.channel.broken(broken))?.as_slice(),
        };
        Ok((bytes, marks))
    }

    /// Gives the first `n` bytes of what is unread back to the peer (at most what is unread).
    pub fn consume(&mut self, n: usize) {
        let Ok((head, unread)) = self.unread() else { return };
        self.space |= self.ring.consume(head, unread.min(n as u64), unread);
    }

    fn unread(&self) -> Result<(u64, u64), Errno> {
        self.ring.unread().map_err(|broken| self.channel.broken(broken))
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        if self.space {
            self.channel.notify(self.channel.side().other(), false, true);
        }
    }
}

/// Writing in place. The peer is woken when this is dropped.
pub struct Writing<'a> {
    channel: Channel<'a>,
    ring: Ring<'a>,
    committed: bool,
    _held: Sending<'a>,
}

impl Writing<'_> {
    /// Free space in one piece, for about `want` bytes (the ring grows for it if it may).
    ///
    /// # Errors
    /// `EAGAIN`: full; the peer will tell when a quarter is free. `ECONNRESET`: the memory makes no sense.
    pub fn chunk(&mut self, want: usize) -> Result<&mut [u8], Errno> {
        self.chunk_within(want, true)
    }

    /// [`Writing::chunk`] that takes no large ring.
    ///
    /// # Errors
    /// As [`Writing::chunk`].
    pub fn chunk_near(&mut self, want: usize) -> Result<&mut [u8], Errno> {
        self.chunk_within(want, false)
    }

    fn chunk_within(&mut self, want: usize, enter: bool) -> Result<&mut [u8], Errno> {
        let reserve = || self.ring.reserve(want, enter).map_err(|broken| self.channel.broken(broken));
        let mut chunk = reserve()?;
        if chunk.len() == 0 {
            self.ring.want_space();
            chunk = reserve()?;
            if chunk.len() == 0 {
                return Err(Errno::AGAIN);
            }
        }
        Ok(chunk.into_mut_slice())
    }

    /// Publishes the first `n` bytes of the last chunk; the chunk's length bounds `n`.
    pub fn commit(&mut self, n: usize) {
        let room = self.ring.reserve(0, false).map_or(0, |chunk| chunk.len());
        self.ring.commit(n.min(room));
        self.committed |= n != 0;
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.ring.end_reserve();
        if self.committed {
            self.channel.announce_deferred_now();
            self.channel.notify(self.channel.side().other(), true, false);
        }
    }
}
