//! Resets: RFC 9293 3.5.2 and 3.10.7.1. A reset is never answered with a reset.

use crate::drop_reason::DropReason;
use crate::flow::FlowKey;
use crate::frame::FramePool;
use crate::rx::parse::Segment;
use crate::seq::SeqNum;
use crate::stack::Stack;
use crate::tcb::Slot;
use crate::tx::build::{DEFAULT_TTL, OptionBytes, SegmentSpec};
use crate::wire::options::{Timestamps, emit_timestamps};
use crate::wire::tcp::TcpFlags;

impl<P: FramePool> Stack<P> {
    /// Sends a reset in reply to a segment that belongs to no connection (RFC 9293 3.10.7.1).
    pub(crate) fn send_reset_for(&mut self, segment: &Segment) {
        let (seq, ack, flags) = if segment.flags.ack() {
            (segment.ack, SeqNum(0), TcpFlags::RST)
        } else {
            (SeqNum(0), segment.seq + segment.seq_len(), TcpFlags::RST.with(TcpFlags::ACK))
        };
        self.send_reset(&segment.key, seq, ack, flags, &OptionBytes::NONE);
    }

    /// Resets an established connection's peer.
    pub(crate) fn send_reset_of(&mut self, index: u32) {
        let ts = self.timestamp();
        let Some(tcb) = self.slots.open_mut(index) else { return };
        // RFC 7323 3.2: a RST should carry timestamps like every segment.
        let options = tcb.option_bytes(ts, false);
        let (key, seq, ack) = (tcb.key(), tcb.acceptable_seq(), tcb.rcv.nxt());
        self.send_reset(&key, seq, ack, TcpFlags::RST.with(TcpFlags::ACK), &options);
    }

    /// Resets the peer whose SYN has crossed ours, if any.
    pub(crate) fn send_reset_of_crossed(&mut self, index: u32) {
        let Slot::SynSent(s) = self.slots.slot(index) else { return };
        let Some(peer) = s.crossed else { return };
        let (key, seq, ack) = (s.key, s.iss + 1, peer.irs + 1);
        let mut options = OptionBytes::NONE;
        if let Some(theirs) = peer.options.timestamps.filter(|_| self.config.tcp.timestamps) {
            let pair = Timestamps { val: self.timestamp(), ecr: theirs.val };
            options.len = emit_timestamps(pair, &mut options.bytes) as u8;
        }
        self.send_reset(&key, seq, ack, TcpFlags::RST.with(TcpFlags::ACK), &options);
    }

    fn send_reset(&mut self, key: &FlowKey, seq: SeqNum, ack: SeqNum, flags: TcpFlags, options: &OptionBytes) {
        let Ok(path) = self.net.path_to(key.remote_ip(), self.net.link_of(key)) else {
            return self.stats.drop(DropReason::NoRoute);
        };
        let spec = SegmentSpec {
            key,
            seq,
            ack,
            flags,
            window: 0,
            urgent: 0,
            options,
            ttl: DEFAULT_TTL,
            tos: 0,
            flow_label: self.fast_open.flow_label(key),
            payload_len: 0,
            payload_sum: 0,
        };
        self.stats.resets_sent += 1;
        key.probe(fs_probe::send_reset);
        self.send_bare(path, &spec);
    }
}
