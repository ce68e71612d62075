//! Urgent data as Linux gives it to sockets: of each urgent pointer the one byte before it (RFC 6093) is out of
//! band, unless SO_OOBINLINE; a newer pointer replaces an older one; reading stops at the mark.
//!
//! The byte is not taken out of the stream when it arrives: it stays in the receive queue, marked by its sequence
//! number, and reading steps over it.

use crate::rx::parse::Segment;
use crate::seq::SeqNum;
use crate::socket::event::Ready;
use crate::tcb::Tcb;
use crate::tcb::flags::Flags;
use crate::tcb::recv::Urgent;

impl Tcb {
    /// Sequence number of the next byte to be read.
    #[inline]
    pub(crate) fn copied(&self) -> SeqNum {
        self.rcv.nxt() - self.flags.has(Flags::FIN_RECEIVED) as u32 - self.rx.bytes
    }

    /// Sixth step of RFC 9293 3.10.7.4. The pointer names the byte after the urgent one (MUST-62), so that one
    /// byte, of however much urgent data, is known as urgent: the last.
    #[cold]
    pub(crate) fn record_urgent(&mut self, segment: &Segment, ready: &mut Ready) {
        if !self.state.can_receive() || self.flags.any(Flags::ORPHAN | Flags::READ_SHUT) {
            return;
        }
        // Linux (tcp_stdurg = 0) takes a pointer of 0 for one to the segment's first byte.
        let at = segment.seq + (segment.urgent.max(1) - 1) as u32;
        let copied = self.copied();
        // Read already, or before what is expected: a retransmission. Beyond the window it points at nothing that
        // could come; the largest pointer is 64 KiB away, which a small window may forbid.
        if at.before(copied) || at.before(self.rcv.nxt()) {
            return;
        }
        let recv = &mut self.ext_mut().recv;
        if recv.urgent.is_some_and(|old| !at.after(old.at)) {
            return;
        }
        recv.urgent = Some(Urgent { at, taken: false, told: false });
        // MUST-32: told when the pointer comes; the byte may come later.
        *ready |= Ready::PRIORITY;
    }

    /// Data has been delivered: if the urgent byte is in it, the application is told.
    pub(crate) fn urgent_delivered(&mut self, ready: &mut Ready) {
        let rcv_nxt = self.rcv.nxt();
        if let Some(ext) = self.ext.as_mut()
            && let Some(urgent) = &mut ext.recv.urgent
            && !urgent.told
            && urgent.at.before(rcv_nxt)
        {
            urgent.told = true;
            *ready |= Ready::PRIORITY;
        }
    }

    /// Bytes that may be read in one go: `None` without urgent data; else up to the mark, at it the byte to step
    /// over first.
    #[inline]
    pub(crate) fn urgent_limit(&self) -> Option<Limit> {
        let recv = &self.ext.as_ref()?.recv;
        let urgent = recv.urgent?;
        let copied = self.copied();
        match urgent.at.delta(copied) {
            0 if recv.oob_inline => Some(Limit::Mark),
            0 => Some(Limit::StepOver),
            before if before > 0 => Some(Limit::Bytes(before as u32)),
            _ => None,
        }
    }

    /// The urgent byte has been read past.
    pub(crate) fn forget_urgent(&mut self) {
        let copied = self.copied();
        if let Some(ext) = self.ext.as_mut()
            && ext.recv.urgent.is_some_and(|u| u.at.before(copied))
        {
            ext.recv.urgent = None;
        }
    }

    /// Offset of the urgent byte in the receive queue, if it is there and was not given out.
    pub(crate) fn urgent_offset(&self) -> Option<u32> {
        let urgent = self.ext.as_ref()?.recv.urgent.filter(|u| !u.taken)?;
        let offset = urgent.at.delta(self.copied());
        (offset >= 0 && (offset as u32) < self.rx.bytes).then_some(offset as u32)
    }

    /// Reading stands at the mark: SIOCATMARK.
    pub(crate) fn at_mark(&self) -> bool {
        self.ext.as_ref().and_then(|e| e.recv.urgent).is_some_and(|u| u.at == self.copied())
    }
}

/// What urgent data does to a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Read at most this many.
    Bytes(u32),
    /// The next byte is urgent and out of band: step over it.
    StepOver,
    /// The next byte is urgent and in the stream: it may be read.
    Mark,
}
