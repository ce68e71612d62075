//! Receiving calls on a connection.

use crate::error::Error;
use crate::frame::FramePool;
use crate::frame_queue::FrameNodes;
use crate::socket::event::{Ready, Received, TcpId};
use crate::stack::Stack;
use crate::tcb::flags::Flags;
use crate::tcb::recv::ack::{INTERACTIVE, QUICK_MAX};
use crate::tcb::recv::autotune::Read;
use crate::tcb::recv::urgent::Limit;
use crate::tcb::{Slot, Tcb};

impl<P: FramePool> Stack<P> {
    /// Copies received bytes out. Returns `Ok(0)` at the end of the stream, or if `buf` is empty.
    /// An error that ended the connection is reported once, after the bytes that were received
    /// before it, as Linux does. A read ends before an urgent byte, and the next one begins after
    /// it (with SO_OOBINLINE: with it).
    #[inline]
    pub fn tcp_recv(&mut self, id: TcpId, buf: &mut [u8]) -> Result<usize, Error> {
        let index = self.slot_of(id)?;
        let Self { slots, nodes, pool, .. } = self;
        match slots.slot_mut(index) {
            Slot::Open(tcb) => {
                if tcb.rx.is_empty() || buf.is_empty() {
                    return tcb.nothing_to_read(buf.is_empty());
                }
                let n = match tcb.urgent_limit() {
                    None => tcb.rx.read(nodes, pool, buf),
                    Some(limit) => tcb.read_by_mark(nodes, pool, buf, limit)?,
                };
                self.after_read(index, n as u32);
                Ok(n)
            }
            Slot::Dead(dead) => {
                if dead.rx.is_empty() && !buf.is_empty() {
                    return dead.at_end().map(|()| 0);
                }
                Ok(dead.rx.read(nodes, pool, buf))
            }
            Slot::SynSent(_) => Err(Error::NotConnected),
            Slot::Free { .. } => Err(Error::BadSocket),
        }
    }

    /// Like `tcp_recv`, but leaves the bytes in the queue (MSG_PEEK).
    pub fn tcp_peek(&mut self, id: TcpId, buf: &mut [u8]) -> Result<usize, Error> {
        let index = self.slot_of(id)?;
        let Self { slots, nodes, pool, .. } = self;
        match slots.slot_mut(index) {
            Slot::Open(tcb) => {
                if tcb.rx.is_empty() || buf.is_empty() {
                    return tcb.nothing_to_read(buf.is_empty());
                }
                match tcb.urgent_limit() {
                    None | Some(Limit::Mark) => Ok(tcb.rx.peek(nodes, pool, buf)),
                    Some(Limit::Bytes(before)) => {
                        let len = buf.len().min(before as usize);
                        Ok(tcb.rx.peek(nodes, pool, &mut buf[..len]))
                    }
                    Some(Limit::StepOver) if tcb.rx.bytes == 1 => tcb.nothing_to_read(false),
                    Some(Limit::StepOver) => {
                        let len = buf.len().min(tcb.rx.bytes as usize - 1);
                        tcb.rx.copy_at(nodes, pool, 1, &mut buf[..len]);
                        Ok(len)
                    }
                }
            }
            Slot::Dead(dead) => {
                if dead.rx.is_empty() && !buf.is_empty() {
                    return if dead.finished { Ok(0) } else { dead.error.map_or(Ok(0), Err) };
                }
                Ok(dead.rx.peek(nodes, pool, buf))
            }
            Slot::SynSent(_) => Err(Error::NotConnected),
            Slot::Free { .. } => Err(Error::BadSocket),
        }
    }

    /// Takes the next received bytes in their frame, without a copy. Return the frame with
    /// `pool_mut().free`. Stops at an urgent byte as `tcp_recv` does.
    pub fn tcp_recv_frame(&mut self, id: TcpId) -> Result<Received, Error> {
        let index = self.slot_of(id)?;
        let Self { slots, nodes, pool, .. } = self;
        let taken = match slots.slot_mut(index) {
            Slot::Open(tcb) => {
                let most = match tcb.urgent_limit() {
                    None | Some(Limit::Mark) => u32::MAX,
                    Some(Limit::Bytes(before)) => before,
                    Some(Limit::StepOver) => {
                        tcb.rx.trim_front(nodes, pool, 1);
                        u32::MAX
                    }
                };
                let taken = tcb.rx.pop_part(nodes, pool, most);
                tcb.forget_urgent();
                match taken {
                    Some(frame) => frame,
                    None => return tcb.nothing_to_read(false).map(|_| Received::EndOfStream),
                }
            }
            Slot::Dead(dead) => {
                return match dead.rx.pop(nodes) {
                    Some(frame) => Ok(Received::Frame(frame)),
                    None => dead.at_end().map(|()| Received::EndOfStream),
                };
            }
            Slot::SynSent(_) => return Err(Error::NotConnected),
            Slot::Free { .. } => return Err(Error::BadSocket),
        };
        self.after_read(index, taken.len() as u32);
        Ok(Received::Frame(taken))
    }

    /// Takes the urgent byte (MSG_OOB), once.
    ///
    /// # Errors
    /// `InvalidInput` if none is announced, it was taken, or SO_OOBINLINE keeps it in the stream;
    /// `WouldBlock` if it is announced, but has not arrived.
    pub fn tcp_recv_urgent(&mut self, id: TcpId) -> Result<u8, Error> {
        let index = self.slot_of(id)?;
        let Self { slots, nodes, pool, .. } = self;
        let tcb = match slots.slot_mut(index) {
            Slot::Open(tcb) => tcb,
            Slot::SynSent(_) | Slot::Dead(_) => return Err(Error::NotConnected),
            Slot::Free { .. } => return Err(Error::BadSocket),
        };
        let offset = tcb.urgent_offset();
        let recv = tcb.ext.as_mut().map(|e| &mut e.recv).filter(|r| !r.oob_inline).ok_or(Error::InvalidInput)?;
        let urgent = recv.urgent.as_mut().filter(|u| !u.taken).ok_or(Error::InvalidInput)?;
        let offset = offset.ok_or(Error::WouldBlock)?;
        urgent.taken = true;
        let mut byte = [0];
        tcb.rx.copy_at(nodes, pool, offset as usize, &mut byte);
        Ok(byte[0])
    }

    /// Returns true if the next byte to read is the urgent one (SIOCATMARK).
    pub fn tcp_at_mark(&self, id: TcpId) -> Result<bool, Error> {
        let index = self.slot_of(id)?;
        Ok(matches!(self.slots.slot(index), Slot::Open(tcb) if tcb.at_mark()))
    }

    /// Sets TCP_QUICKACK: `true` sends a delayed ACK now and delays none of the next 16 ACKs;
    /// `false` delays them all, to be carried by data. The setting is temporary: afterwards the
    /// connection's behaviour decides again.
    pub fn tcp_set_quickack(&mut self, id: TcpId, on: bool) -> Result<(), Error> {
        let index = self.slot_of(id)?;
        let Some(tcb) = self.slots.open_mut(index) else { return Ok(()) };
        tcb.flags.set_quick(if on { QUICK_MAX } else { INTERACTIVE });
        if on && tcb.flags.has(Flags::ACK_DELAYED) {
            tcb.flags.set(Flags::ACK_NOW);
            self.schedule(index, Ready::default());
        }
        Ok(())
    }

    /// Returns false if ACKs are delayed, to be carried by data.
    pub fn tcp_quickack(&self, id: TcpId) -> Result<bool, Error> {
        let index = self.slot_of(id)?;
        Ok(self.slots.open(index).is_none_or(|tcb| tcb.flags.quick() != INTERACTIVE))
    }

    /// Updates window, ACK and receive buffer after the application has read `n` bytes.
    #[inline]
    pub(super) fn after_read(&mut self, index: u32, n: u32) {
        let room = self.nodes.len() < self.receive_frames / 2;
        let (max, now_us) = (self.config.tcp.receive_buffer_max, self.turn.us);
        let Some((tcb, conn_stats)) = self.slots.open_and_stats(index) else { return };
        tcb.adjust_receive_buffer(&mut conn_stats.tune, n, || Read { bytes: n, max, room, now_us });
        if tcb.rx.is_empty() {
            tcb.drained();
        }
        if tcb.state.can_receive() && tcb.window_update_due() {
            tcb.flags.set(Flags::ACK_NOW);
        }
        if tcb.flags.has(Flags::ACK_NOW) {
            self.schedule(index, Ready::default());
        }
    }
}

impl Tcb {
    /// Returns why there is nothing to read.
    #[inline]
    fn nothing_to_read(&self, asked_for_nothing: bool) -> Result<usize, Error> {
        if asked_for_nothing || self.flags.any(Flags::FIN_RECEIVED | Flags::READ_SHUT) {
            Ok(0)
        } else {
            Err(Error::WouldBlock)
        }
    }

    /// Reads while urgent data is announced.
    #[cold]
    fn read_by_mark<P: FramePool>(
        &mut self,
        nodes: &mut FrameNodes,
        pool: &mut P,
        buf: &mut [u8],
        limit: Limit,
    ) -> Result<usize, Error> {
        let n = match limit {
            Limit::Bytes(before) => {
                let len = buf.len().min(before as usize);
                self.rx.read(nodes, pool, &mut buf[..len])
            }
            Limit::Mark => self.rx.read(nodes, pool, buf),
            Limit::StepOver => {
                self.rx.trim_front(nodes, pool, 1);
                self.rx.read(nodes, pool, buf)
            }
        };
        self.forget_urgent();
        if n == 0 { self.nothing_to_read(false) } else { Ok(n) }
    }
}
