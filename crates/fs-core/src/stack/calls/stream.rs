//! Calls on a connection: send, shut down, close. Receiving calls are in [`super::receive`].

use crate::error::Error;
use crate::frame::{Frame, FramePool, HEADROOM};
use crate::socket::event::{Ready, TcpId};
use crate::socket::options::{Linger, Shutdown};
use crate::stack::Stack;
use crate::tcb::flags::Flags;
use crate::tcb::send::buffer::Cut;
use crate::tcb::send::segment::mark;
use crate::tcb::{Slot, State};

/// The application's intention after a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// Unknown.
    Unsaid,
    /// More data, soon: MSG_MORE.
    More,
    /// A new record: MSG_EOR.
    Record,
}

impl<P: FramePool> Stack<P> {
    /// Returns the slot of a handle that the application may use.
    #[inline]
    pub(crate) fn slot_of(&self, id: TcpId) -> Result<u32, Error> {
        if id.index as usize >= self.slots.len() {
            return Err(Error::BadSocket);
        }
        let slot = self.slots.slot(id.index);
        if slot.generation() != id.generation {
            return Err(Error::BadSocket);
        }
        match slot {
            Slot::Free { .. } => Err(Error::BadSocket),
            Slot::Open(tcb) if tcb.flags.any(Flags::ORPHAN) => Err(Error::BadSocket),
            Slot::SynSent(s) if s.orphan => Err(Error::BadSocket),
            _ => Ok(id.index),
        }
    }

    /// Copies as much as fits into the send queue. Never blocks. An empty `buf` returns `Ok(0)`.
    #[inline]
    pub fn tcp_send(&mut self, id: TcpId, buf: &[u8]) -> Result<usize, Error> {
        self.send_bytes(id, buf, Then::Unsaid).map(|(_, n)| n)
    }

    /// Like `tcp_send`, with more to follow (MSG_MORE): bytes that do not fill a segment wait for
    /// the next write, or at most 200 ms once nothing is in flight.
    pub fn tcp_send_more(&mut self, id: TcpId, buf: &[u8]) -> Result<usize, Error> {
        self.send_bytes(id, buf, Then::More).map(|(_, n)| n)
    }

    /// Like `tcp_send`. If all bytes are taken, a record ends there (MSG_EOR): the next write
    /// begins a new segment.
    pub fn tcp_send_record(&mut self, id: TcpId, buf: &[u8]) -> Result<usize, Error> {
        self.send_bytes(id, buf, Then::Record).map(|(_, n)| n)
    }

    /// Like `tcp_send`, and marks the last byte that is taken as urgent (MSG_OOB). The urgent
    /// pointer names the byte after it, as on Linux.
    pub fn tcp_send_urgent(&mut self, id: TcpId, buf: &[u8]) -> Result<usize, Error> {
        let (index, n) = self.send_bytes(id, buf, Then::Unsaid)?;
        let Self { slots, store, .. } = self;
        if let Some(tcb) = slots.open_mut(index)
            && n > 0
        {
            let end = tcb.tx.write_seq(store, tcb.snd.nxt());
            tcb.mark_urgent(end);
        }
        Ok(n)
    }

    fn send_bytes(&mut self, id: TcpId, buf: &[u8], then: Then) -> Result<(u32, usize), Error> {
        let index = self.slot_of(id)?;
        let room = self.send_room(index, buf.len())?;
        if buf.is_empty() {
            return Ok((index, 0));
        }
        let Self { slots, store, pool, net, frame_waiters, now, .. } = self;
        let Some(tcb) = slots.open_mut(index) else { return Err(Error::NotConnected) };
        tcb.check_app_limited();
        let on_trial = tcb.raise_mss(*now);
        let more = then == Then::More;
        tcb.hold_for_more(more);
        let wanted = buf.len().min(room as usize);
        let fits = wanted.min(frame_waiters.room(store, pool, tcb));
        let summed = !net.path(tcb.path).tx_checksum();
        let cut = Cut { mss: tcb.mss as u32, summed, push_at_end: !more, push_every: tcb.max_snd_wnd() / 2 };
        let n = tcb.tx.write(store, pool, tcb.snd.nxt(), &buf[..fits], cut);
        if on_trial {
            tcb.record_trial(store);
        }
        if then == Then::Record && n == buf.len() {
            store.segments[tcb.tx.tail()].marks |= mark::RECORD_END;
        }
        if n < buf.len() {
            tcb.refused_room();
        } else {
            tcb.has_room_again(*now);
        }
        // The caller of a short write waits for an event, as after `WouldBlock`.
        if n < wanted {
            frame_waiters.wait(index, tcb, *now);
        }
        if n == 0 {
            return Err(Error::WouldBlock);
        }
        self.schedule(index, Ready::default());
        Ok((index, n))
    }

    /// Queues the used bytes of a frame from this stack's pool, without copying what fits one
    /// segment. The frame must keep [`HEADROOM`] bytes in front. Returns the frame with an error.
    pub fn tcp_send_frame(&mut self, id: TcpId, frame: Frame) -> Result<(), (Error, Frame)> {
        let ready = self.slot_of(id).and_then(|index| self.send_room(index, frame.len()).map(|_| index));
        let index = match ready {
            Ok(index) => index,
            Err(error) => return Err((error, frame)),
        };
        if frame.off() < HEADROOM as usize || frame.more() || self.pool.is_shared(&frame) {
            return Err((Error::InvalidInput, frame));
        }
        if frame.is_empty() {
            self.pool.free(frame);
            return Ok(());
        }
        let Self { slots, store, pool, net, frame_waiters, now, .. } = self;
        let Some(tcb) = slots.open_mut(index) else { return Err((Error::NotConnected, frame)) };
        if frame_waiters.room(store, pool, tcb) == 0 {
            // The send share of the core (receiving needs frames, too) or of this connection is
            // spent.
            tcb.refused_room();
            frame_waiters.wait(index, tcb, *now);
            return Err((Error::WouldBlock, frame));
        }
        let summed = !net.path(tcb.path).tx_checksum();
        tcb.tx.push_frame(store, pool, tcb.snd.nxt(), tcb.mss as u32, frame, summed)?;
        self.schedule(index, Ready::default());
        Ok(())
    }

    /// Returns how many of `wanted` bytes the send buffer can take, and grows it for them; or the
    /// reason for none.
    #[inline]
    pub(super) fn send_room(&mut self, index: u32, wanted: usize) -> Result<u32, Error> {
        let max = self.config.tcp.send_buffer;
        match self.slots.slot_mut(index) {
            Slot::Open(tcb) => {
                if !tcb.state.can_send() || tcb.flags.has(Flags::FIN_QUEUED) {
                    return Err(Error::BrokenPipe);
                }
                // Grows the buffer before it stops being writable, not when it is full: an
                // application that checks readiness first never finds it full.
                if tcb.tx.bytes as usize + wanted > tcb.write_mark() as usize {
                    tcb.grow_send_buffer(&self.store, max);
                }
                match tcb.snd_buf().saturating_sub(tcb.tx.bytes).min(tcb.low_water_room()) {
                    room if room > 0 && tcb.below_low_water() => Ok(tcb.room_for_whole_write(room)),
                    _ => {
                        tcb.refused_room();
                        Err(Error::WouldBlock)
                    }
                }
            }
            Slot::SynSent(s) if s.fin_wanted => Err(Error::BrokenPipe),
            Slot::SynSent(_) => Err(Error::WouldBlock),
            Slot::Dead(dead) => Err(dead.error.take().unwrap_or(Error::BrokenPipe)),
            Slot::Free { .. } => Err(Error::BadSocket),
        }
    }

    /// Shuts down as shutdown(2). As on Linux, received data, and data that arrives after SHUT_RD,
    /// can still be read, but reads do not block for it.
    pub fn tcp_shutdown(&mut self, id: TcpId, how: Shutdown) -> Result<(), Error> {
        let index = self.slot_of(id)?;
        match self.slots.slot_mut(index) {
            Slot::Open(tcb) => {
                if how != Shutdown::Write {
                    tcb.flags.set(Flags::READ_SHUT);
                }
                if how != Shutdown::Read {
                    self.queue_fin(index);
                }
                // Calls that wait end by it.
                let ready = match how {
                    Shutdown::Read => Ready::READ,
                    Shutdown::Write => Ready::WRITE,
                    Shutdown::Both => Ready::READ | Ready::WRITE,
                };
                self.schedule(index, ready);
                Ok(())
            }
            Slot::SynSent(s) => {
                s.fin_wanted |= how != Shutdown::Read;
                Err(Error::NotConnected)
            }
            Slot::Dead(_) => Err(Error::NotConnected),
            Slot::Free { .. } => Err(Error::BadSocket),
        }
    }

    /// Queues our FIN, once: RFC 9293 3.10.4.
    pub(crate) fn queue_fin(&mut self, index: u32) {
        let Self { slots, store, .. } = self;
        let Some(tcb) = slots.open_mut(index) else { return };
        tcb.state = match tcb.state {
            State::Established => State::FinWait1,
            State::CloseWait => State::LastAck,
            State::FinWait1 | State::FinWait2 | State::Closing | State::LastAck => return,
        };
        tcb.flags.set(Flags::FIN_QUEUED);
        tcb.tx.push_fin(store, tcb.snd.nxt());
    }

    /// Ends the application's use of the connection, as close(2): queued data is still sent, then
    /// FIN. With unread data, or SO_LINGER with zero, RST is sent instead (RFC 2525 2.17, RFC 1122
    /// 4.2.2.13). The id is stale afterwards.
    pub fn tcp_close(&mut self, id: TcpId) {
        let Ok(index) = self.slot_of(id) else { return };
        let now = self.now;
        match self.slots.slot_mut(index) {
            Slot::Open(tcb) => {
                let linger = tcb.ext.as_ref().map_or(Linger::Background, |e| e.linger);
                let zero = matches!(linger, Linger::Timeout(t) if t.is_zero());
                let unread = !tcb.rx.is_empty();
                tcb.flags.set(Flags::ORPHAN | Flags::READ_SHUT);
                tcb.flags.clear(Flags::UNACCEPTED);
                if zero || unread {
                    let rst = unread || tcb.abort_resets();
                    self.kill(index, None, rst);
                    return;
                }
                if tcb.state == State::FinWait2 {
                    tcb.wait_for_fin(&self.config.tcp, now);
                }
                self.queue_fin(index);
                self.schedule(index, Ready::default());
            }
            // SYN-RECEIVED: RFC 9293 3.10.4.
            Slot::SynSent(s)
                if s.crossed.is_some() && !matches!(s.options.linger, Linger::Timeout(t) if t.is_zero()) =>
            {
                (s.fin_wanted, s.orphan) = (true, true);
            }
            Slot::SynSent(_) => self.delete_opening(index),
            Slot::Dead(dead) => {
                dead.rx.clear(&mut self.nodes, &mut self.pool);
                self.slots.remove(index);
            }
            Slot::Free { .. } => {}
        }
    }

    /// Sends RST now and drops everything. The id is stale afterwards.
    pub fn tcp_abort(&mut self, id: TcpId) {
        let Ok(index) = self.slot_of(id) else { return };
        if let Some(tcb) = self.slots.open_mut(index) {
            tcb.flags.set(Flags::ORPHAN);
            let rst = tcb.abort_resets();
            self.kill(index, None, rst);
        } else if matches!(self.slots.slot(index), Slot::SynSent(_)) {
            self.delete_opening(index);
        } else {
            self.tcp_close(id);
        }
    }

    /// Aborts in SYN-SENT, which the peer has no state of, or in SYN-RECEIVED.
    #[cold]
    fn delete_opening(&mut self, index: u32) {
        self.send_reset_of_crossed(index);
        self.drop_fast(index);
        let Slot::SynSent(s) = self.slots.slot(index) else { return };
        let hash = self.hasher.hash(crate::flow::Protocol::Tcp, &s.key);
        self.table.remove(hash, crate::stack::Owner::Connection(index).value());
        self.slots.remove(index);
    }
}
