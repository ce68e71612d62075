//! A segment of the send queue, and its marks, which form the scoreboard.

use crate::frame::{Frame, FramePool};
use crate::frame_queue::{FrameNodes, FrameQueue};
use crate::seq::SeqNum;
use crate::slab::{Hollow, NIL};
use crate::wire::checksum::Sum;
use crate::wire::tcp::TcpFlags;

/// Marks of a segment.
pub(crate) mod mark {
    /// FIN follows the payload.
    pub(crate) const FIN: u8 = 1;
    /// The peer has received it (RFC 2018).
    pub(crate) const SACKED: u8 = 2;
    /// Marked lost.
    pub(crate) const LOST: u8 = 4;
    /// Lost, and retransmitted since.
    pub(crate) const RETRANSMITTED: u8 = 8;
    /// Sent more than once: yields no RTT sample (Karn).
    pub(crate) const EVER_RETRANSMITTED: u8 = 16;
    /// `sum` is valid.
    pub(crate) const SUMMED: u8 = 32;
    /// The application's write ended here: PSH.
    pub(crate) const PUSH: u8 = 64;
    /// The next write begins a new segment (MSG_EOR).
    pub(crate) const RECORD_END: u8 = 128;
}

/// A segment of the send queue. Aligned to a cache line: neighbouring segments belong to different
/// connections, so a segment across two lines would cause two misses.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct TxSegment {
    /// First part of the payload; an empty frame if there is none (a bare FIN).
    pub(crate) head: Frame,
    /// Further parts, for payloads over one frame.
    pub(crate) rest: FrameQueue,
    pub(crate) next: u32,
    pub(crate) seq: SeqNum,
    /// Payload bytes.
    pub(crate) len: u32,
    /// When it was last sent, in microseconds modulo 2^32.
    pub(crate) sent_us: u32,
    /// RFC 1071 sum of the payload, folded.
    pub(crate) sum: u16,
    pub(crate) marks: u8,
}

impl Hollow for TxSegment {
    fn hollow() -> Self {
        Self {
            head: Frame::from_raw(0, 0, 0),
            rest: FrameQueue::new(),
            next: NIL,
            seq: SeqNum(0),
            len: 0,
            sent_us: 0,
            sum: 0,
            marks: 0,
        }
    }

    #[inline]
    fn next_mut(&mut self) -> &mut u32 {
        &mut self.next
    }
}

impl TxSegment {
    #[inline]
    pub(crate) fn has(&self, marks: u8) -> bool {
        self.marks & marks != 0
    }

    /// Returns the control bits of its header, without ECN's.
    #[inline(always)]
    pub(crate) fn flags(&self) -> TcpFlags {
        let mut flags = TcpFlags::ACK;
        if self.has(mark::PUSH) {
            flags = flags.with(TcpFlags::PSH);
        }
        if self.has(mark::FIN) {
            flags = flags.with(TcpFlags::FIN);
        }
        flags
    }

    /// Returns the sequence space that it takes: payload and FIN.
    #[inline]
    pub(crate) fn span(&self) -> u32 {
        self.len + (self.marks & mark::FIN) as u32
    }

    #[inline]
    pub(crate) fn end(&self) -> SeqNum {
        self.seq + self.span()
    }
}

impl TxSegment {
    /// Copies payload bytes, starting at `from`.
    pub(crate) fn read_at<P: FramePool>(&self, rest: &FrameNodes, pool: &P, from: usize, out: &mut [u8]) {
        let head = pool.bytes(&self.head);
        if self.len == 0 {
            return;
        }
        let in_head = head.len().saturating_sub(from).min(out.len());
        if in_head > 0 {
            out[..in_head].copy_from_slice(&head[from..from + in_head]);
        }
        if in_head < out.len() {
            self.rest.copy_at(rest, pool, (from + in_head) - head.len(), &mut out[in_head..]);
        }
    }

    /// Returns the payload's folded sum, computed now if it is unknown.
    pub(crate) fn payload_sum<P: FramePool>(&mut self, rest: &FrameNodes, pool: &P) -> u16 {
        if self.len == 0 {
            return 0;
        }
        if !self.has(mark::SUMMED) {
            let mut sum = Sum::of(pool.bytes(&self.head)).fold();
            let mut at = self.head.len() as u32;
            self.rest.for_each(rest, |frame| {
                sum = add_at(sum, at, Sum::of(pool.bytes(frame)).fold());
                at += frame.len() as u32;
            });
            self.sum = sum;
            self.marks |= mark::SUMMED;
        }
        self.sum
    }
}

/// Returns the sum of two runs of bytes, the second starting at offset `at` of the first (RFC 1071
/// section 2(B): at an odd offset, its bytes are swapped).
#[inline]
pub(super) fn add_at(sum: u16, at: u32, more: u16) -> u16 {
    let more = if at % 2 == 1 { more.swap_bytes() } else { more };
    let total = sum as u32 + more as u32;
    (total as u16).wrapping_add((total >> 16) as u16)
}
