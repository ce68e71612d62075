//! The sequence variables of RFC 9293 3.3.1, with the rules by which each side's move.

use crate::seq::SeqNum;

/// Send sequence variables. SND.UNA never passes SND.NXT, and neither moves back.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SendSequence {
    una: SeqNum,
    /// Highest sequence number sent, plus one. Retransmission does not move it back.
    nxt: SeqNum,
    wnd: u32,
    wl1: SeqNum,
    /// Largest window field the peer has sent, not scaled.
    max_field: u16,
    /// SO_SNDBUF in units of 4 KiB.
    buffer_4k: u16,
}

impl SendSequence {
    /// Makes the variables after a handshake: our SYN is acknowledged, `irs` is the peer's.
    /// `window` is that of the segment that completed it, `field` its value as later segments would
    /// encode it.
    pub(crate) fn new(iss: SeqNum, irs: SeqNum, window: u16, field: u16, buffer_4k: u16) -> Self {
        // WL1 is before the next segment, so that its window update is accepted.
        Self { una: iss + 1, nxt: iss + 1, wnd: window.into(), wl1: irs, max_field: field, buffer_4k }
    }

    #[inline(always)]
    pub(crate) fn una(&self) -> SeqNum {
        self.una
    }

    #[inline(always)]
    pub(crate) fn nxt(&self) -> SeqNum {
        self.nxt
    }

    /// Returns SND.WND, scaled.
    #[inline(always)]
    pub(crate) fn wnd(&self) -> u32 {
        self.wnd
    }

    /// Returns the number of sequence numbers that are sent and not acknowledged.
    #[inline(always)]
    pub(crate) fn outstanding(&self) -> u32 {
        self.nxt.since(self.una)
    }

    /// Records that everything before `ack` has arrived.
    #[inline(always)]
    pub(crate) fn acknowledge(&mut self, ack: SeqNum) {
        debug_assert!(ack.at_or_after(self.una) && ack.at_or_before(self.nxt));
        self.una = ack;
    }

    /// Records that everything before `end` was sent.
    #[inline(always)]
    pub(crate) fn sent(&mut self, end: SeqNum) {
        debug_assert!(end.at_or_after(self.nxt));
        self.nxt = end;
    }

    /// Begins at `ack`, after data in our SYN (RFC 7413): the peer has accepted the data before it,
    /// and the rest is sent again.
    pub(crate) fn begin_at(&mut self, ack: SeqNum) {
        (self.una, self.nxt) = (ack, ack);
    }

    /// RFC 9293 3.10.7.4: SND.WND comes from the latest segment; WL2 is implied by ack >= SND.UNA.
    /// As Linux (`tcp_may_update_window`): of segments that may have been reordered, the one with
    /// the larger window, or a zero window.
    #[inline(always)]
    pub(crate) fn is_window_newer(&self, seq: SeqNum, window: u32) -> bool {
        self.wl1.before(seq) || self.wl1 == seq && (window > self.wnd || window == 0)
    }

    /// Sets the window from a segment: `field` as received, `window` scaled.
    #[inline(always)]
    pub(crate) fn set_window(&mut self, seq: SeqNum, window: u32, field: u16) {
        self.wnd = window;
        self.wl1 = seq;
        self.max_field = self.max_field.max(field);
    }

    /// Returns the largest window that the peer has offered: Max(SND.WND) of RFC 9293 3.8.6.2.1.
    #[inline(always)]
    pub(crate) fn max_wnd(&self, shift: u8) -> u32 {
        u32::from(self.max_field) << shift
    }

    /// Returns the sequence number of a segment without text: SND.NXT, but not beyond the peer's
    /// window, which may have shrunk (Linux: `tcp_acceptable_seq`). Beyond it the segment would be
    /// dropped.
    #[inline(always)]
    pub(crate) fn acceptable(&self, shift: u8) -> SeqNum {
        let edge = self.una + self.wnd;
        // A difference below the unit of the peer's scale is caused by rounding only.
        if self.nxt.before(edge + (1 << shift)) { self.nxt } else { edge }
    }

    /// Returns SO_SNDBUF.
    #[inline(always)]
    pub(crate) fn buffer(&self) -> u32 {
        u32::from(self.buffer_4k) * 4096
    }

    /// Sets SO_SNDBUF, in units of 4 KiB.
    pub(crate) fn set_buffer_4k(&mut self, units: u16) {
        self.buffer_4k = units;
    }
}

/// Receive sequence variables. The right edge of the offered window never moves left (RFC 9293
/// 3.8.6), and RCV.NXT never passes it except for the peer's FIN.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ReceiveSequence {
    nxt: SeqNum,
    edge: SeqNum,
}

impl ReceiveSequence {
    /// Makes the variables after a handshake: `irs` is the peer's SYN, `offered` the window that
    /// our SYN or SYN-ACK has offered.
    pub(crate) fn new(irs: SeqNum, offered: u32) -> Self {
        Self { nxt: irs + 1, edge: irs + 1 + offered }
    }

    #[inline(always)]
    pub(crate) fn nxt(&self) -> SeqNum {
        self.nxt
    }

    #[inline(always)]
    pub(crate) fn edge(&self) -> SeqNum {
        self.edge
    }

    /// Returns RCV.WND as last offered.
    #[inline(always)]
    pub(crate) fn wnd(&self) -> u32 {
        self.edge.delta(self.nxt).max(0) as u32
    }

    /// Records that `len` bytes of text have arrived in order.
    #[inline(always)]
    pub(crate) fn advance(&mut self, len: u32) {
        self.nxt += len;
    }

    /// Records the peer's FIN, which needs no space.
    #[inline(always)]
    pub(crate) fn take_fin(&mut self) {
        self.nxt += 1;
        self.edge = self.edge.max(self.nxt);
    }

    /// Offers a window of `window` bytes.
    #[inline(always)]
    pub(crate) fn offer(&mut self, window: u32) {
        let edge = self.nxt + window;
        if edge.after(self.edge) {
            self.edge = edge;
        }
    }
}

/// TS.Recent of RFC 7323 4.3.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct TsRecent(u32);

impl TsRecent {
    pub(crate) fn new(val: u32) -> Self {
        Self(val)
    }

    #[inline(always)]
    pub(crate) fn get(self) -> u32 {
        self.0
    }

    /// Returns true if `val` is older: RFC 7323 5.3 (R1).
    #[inline(always)]
    pub(crate) fn is_after(self, val: u32) -> bool {
        (val.wrapping_sub(self.0) as i32) < 0
    }

    #[inline(always)]
    pub(crate) fn set(&mut self, val: u32) {
        self.0 = val;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledged_data_is_not_outstanding() {
        let mut snd = SendSequence::new(SeqNum(u32::MAX), SeqNum(9), 100, 100, 4);
        assert_eq!((snd.una(), snd.nxt(), snd.outstanding(), snd.buffer()), (SeqNum(0), SeqNum(0), 0, 16_384));
        snd.sent(SeqNum(60));
        snd.acknowledge(SeqNum(20));
        assert_eq!((snd.una(), snd.outstanding()), (SeqNum(20), 40));
        snd.begin_at(SeqNum(30));
        assert_eq!((snd.una(), snd.nxt()), (SeqNum(30), SeqNum(30)));
    }

    /// RFC 9293 3.10.7.4 and `tcp_may_update_window`.
    #[test]
    fn window_comes_from_latest_segment() {
        let mut snd = SendSequence::new(SeqNum(0), SeqNum(10), 100, 100, 4);
        assert!(snd.is_window_newer(SeqNum(11), 50), "a later segment's, also when it is less");
        assert!(!snd.is_window_newer(SeqNum(9), 500), "an earlier one's, never");
        assert!(!snd.is_window_newer(SeqNum(10), 99) && !snd.is_window_newer(SeqNum(10), 100));
        assert!(snd.is_window_newer(SeqNum(10), 101) && snd.is_window_newer(SeqNum(10), 0));
        snd.set_window(SeqNum(11), 40, 10);
        assert_eq!((snd.wnd(), snd.max_wnd(2)), (40, 400), "the largest is kept");
    }

    #[test]
    fn empty_segment_stays_in_window() {
        let mut snd = SendSequence::new(SeqNum(0), SeqNum(10), 100, 100, 4);
        snd.sent(SeqNum(81));
        assert_eq!(snd.acceptable(0), SeqNum(81));
        snd.set_window(SeqNum(11), 40, 40);
        assert_eq!(snd.acceptable(0), SeqNum(41), "the window has shrunk");
        assert_eq!(snd.acceptable(6), SeqNum(81), "by rounding only");
    }

    #[test]
    fn right_edge_never_moves_left() {
        let mut rcv = ReceiveSequence::new(SeqNum(u32::MAX), 10);
        assert_eq!((rcv.nxt(), rcv.edge(), rcv.wnd()), (SeqNum(0), SeqNum(10), 10));
        rcv.advance(4);
        rcv.offer(2);
        assert_eq!((rcv.edge(), rcv.wnd()), (SeqNum(10), 6));
        rcv.offer(8);
        assert_eq!((rcv.edge(), rcv.wnd()), (SeqNum(12), 8));
        rcv.advance(8);
        rcv.take_fin();
        assert_eq!((rcv.nxt(), rcv.edge(), rcv.wnd()), (SeqNum(13), SeqNum(13), 0), "a FIN needs no room");
    }

    #[test]
    fn compares_timestamps_modulo_2_32() {
        let mut recent = TsRecent::new(u32::MAX);
        assert!(!recent.is_after(u32::MAX) && !recent.is_after(3) && recent.is_after(u32::MAX - 1));
        recent.set(3);
        assert!(recent.is_after(u32::MAX) && recent.get() == 3);
    }
}
