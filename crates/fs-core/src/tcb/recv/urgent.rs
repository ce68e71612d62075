//! Urgent data with Linux's socket semantics. The byte before each urgent pointer (RFC 6093) is out
//! of band, unless SO_OOBINLINE is set; a newer pointer replaces an older one; reading stops at the
//! mark.
//!
//! The byte is not removed from the stream when it arrives: it stays in the receive queue, marked
//! by its sequence number, and reading steps over it.

use crate::rx::parse::Segment;
use crate::seq::SeqNum;
use crate::socket::event::Ready;
use crate::tcb::Tcb;
use crate::tcb::flags::Flags;
use crate::tcb::recv::Urgent;

impl Tcb {
    /// Returns the sequence number of the next byte to read.
    #[inline]
    pub(crate) fn copied(&self) -> SeqNum {
        self.rcv.nxt() - self.flags.has(Flags::FIN_RECEIVED) as u32 - self.rx.bytes
    }

    /// Sixth step of RFC 9293 3.10.7.4. The pointer names the byte after the urgent one (MUST-62).
    /// Only the last byte of any urgent data is therefore marked as urgent.
    #[cold]
    pub(crate) fn record_urgent(&mut self, segment: &Segment, ready: &mut Ready) {
        if !self.state.can_receive() || self.flags.any(Flags::ORPHAN | Flags::READ_SHUT) {
            return;
        }
        // Linux (tcp_stdurg = 0) takes a pointer of 0 as a pointer to the segment's first byte.
        let at = segment.seq + (segment.urgent.max(1) - 1) as u32;
        let copied = self.copied();
        // Already read, or before the next expected byte: a retransmission. Beyond the window the
        // pointer names a byte that cannot arrive; the largest pointer is 64 KiB away, which a
        // small window may exclude.
        if at.before(copied) || at.before(self.rcv.nxt()) {
            return;
        }
        let recv = &mut self.ext_mut().recv;
        if recv.urgent.is_some_and(|old| !at.after(old.at)) {
            return;
        }
        recv.urgent = Some(Urgent { at, taken: false, told: false });
        // MUST-32: reported when the pointer arrives; the byte may arrive later.
        *ready |= Ready::PRIORITY;
    }

    /// Notifies the application if delivered data contains the urgent byte.
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

    /// Returns the bytes that may be read at once: `None` without urgent data; otherwise up to the
    /// mark, or the byte to step over at the mark.
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

    /// Forgets the urgent byte once it was read past.
    pub(crate) fn forget_urgent(&mut self) {
        let copied = self.copied();
        if let Some(ext) = self.ext.as_mut()
            && ext.recv.urgent.is_some_and(|u| u.at.before(copied))
        {
            ext.recv.urgent = None;
        }
    }

    /// Returns the offset of the urgent byte in the receive queue, if it is there and was not
    /// taken.
    pub(crate) fn urgent_offset(&self) -> Option<u32> {
        let urgent = self.ext.as_ref()?.recv.urgent.filter(|u| !u.taken)?;
        let offset = urgent.at.delta(self.copied());
        (offset >= 0 && (offset as u32) < self.rx.bytes).then_some(offset as u32)
    }

    /// Returns true if the next byte to read is at the mark: SIOCATMARK.
    pub(crate) fn at_mark(&self) -> bool {
        self.ext.as_ref().and_then(|e| e.recv.urgent).is_some_and(|u| u.at == self.copied())
    }
}

/// Effect of urgent data on a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Read at most this many bytes.
    Bytes(u32),
    /// The next byte is urgent and out of band: step over it.
    StepOver,
    /// The next byte is urgent and in the stream: it may be read.
    Mark,
}
