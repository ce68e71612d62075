//! A connection's headers.

use crate::seq::SeqNum;
use crate::tcb::Tcb;
use crate::tcb::flags::Flags;
use crate::tx::build::{DEFAULT_TTL, OptionBytes, Plain};
use crate::wire::options::{self, Timestamps};
use crate::wire::tcp::TcpFlags;

impl Tcb {
    /// Returns the headers of a segment of a connection without special send state: no urgent data,
    /// the defaults in the IP header.
    #[inline(always)]
    pub(crate) fn plain_headers(&self, seq: SeqNum, flags: TcpFlags, window: u16, ts: u32) -> Plain {
        let (local, remote) = self.ends.v4();
        let (local_port, remote_port) = self.ends.ports();
        Plain {
            local,
            remote,
            local_port,
            remote_port,
            seq,
            ack: self.rcv.nxt(),
            flags,
            window,
            urgent: 0,
            ts: self.flags.has(Flags::TIMESTAMPS).then_some(Timestamps { val: ts, ecr: self.ts_recent.get() }),
            ttl: DEFAULT_TTL,
            tos: 0,
            payload_len: 0,
            payload_sum: 0,
        }
    }

    /// Returns true if a segment of this connection can probably leave now and carry the ACK.
    #[inline]
    pub(crate) fn may_carry_ack(&self) -> bool {
        self.has_unsent() && self.flight() < self.send_window() && self.snd.wnd() > 0
    }

    #[inline]
    pub(crate) fn ttl(&self) -> u8 {
        self.ext.as_ref().and_then(|e| e.ttl).unwrap_or(DEFAULT_TTL)
    }

    /// Returns timestamps (on every segment once negotiated: RFC 7323 3.2) and SACK blocks. After a
    /// segment with blocks was built, they are reported: [`Tcb::blocks_told`].
    #[inline]
    pub(crate) fn option_bytes(&mut self, ts: u32, with_sack: bool) -> OptionBytes {
        let mut options = OptionBytes::NONE;
        if self.flags.has(Flags::TIMESTAMPS) {
            let pair = Timestamps { val: ts, ecr: self.ts_recent.get() };
            options.len = options::emit_timestamps(pair, &mut options.bytes) as u8;
        }
        if with_sack
            && self.flags.has(Flags::SACK)
            && let Some(ext) = self.ext.as_mut()
            && (!ext.out_of_order.is_empty() || ext.dsack.is_some())
        {
            let mut blocks = [(SeqNum(0), SeqNum(0)); 4];
            // With timestamps, 40 bytes of options leave space for three.
            let room = if options.len > 0 { 3 } else { 4 };
            let mut n = 0;
            if let Some(range) = ext.dsack {
                // RFC 2883 section 4: the duplicate range is first,
                blocks[0] = range;
                n = 1;
                // and the block that contains it is second.
                ext.out_of_order.touch(range.0);
            }
            n += ext.out_of_order.sack_blocks(&mut blocks[n..room]);
            let at = options.len as usize;
            options.len += options::emit_sack(&blocks[..n], &mut options.bytes[at..]) as u8;
        }
        options
    }

    /// Records that a segment with the SACK blocks was sent: later ones do not repeat the
    /// duplicate.
    #[inline]
    pub(crate) fn blocks_told(&mut self) {
        if self.flags.has(Flags::SACK)
            && let Some(ext) = self.ext.as_mut()
        {
            ext.dsack = None;
            ext.out_of_order.told();
        }
    }
}
