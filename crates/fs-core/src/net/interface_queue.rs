//! Packets and connections queued for one interface: control packets and datagrams, which are built
//! already, then connections that owe an ACK, then connections that may have data (mTCP section 4.2). A
//! connection's flags record which of the queues it is on.

use crate::frame::TxFrame;
use alloc::collections::VecDeque;

/// Bytes that a connection may send before the next one's turn, unless `Stack::set_send_quota` sets
/// another number. Linux's TSO quantum is 64 KiB; a fourth of it is 50 µs between turns at 2.5 Gb/s.
/// Too low: more list work per byte. Too high: latency of other connections next to a bulk flow.
pub const SEND_QUOTA: u32 = 16 << 10;

/// Frames of datagrams from which on UDP sockets wait. Too low: a batch is not filled by one
/// socket. Too high: datagrams wait longer, and hold frames that others lack.
const CROWDED: usize = 256;

/// The transmit queues of one interface. See the module.
#[derive(Debug)]
pub(crate) struct InterfaceQueue {
    /// Bytes that a connection may send before the next one's turn.
    pub(crate) quota: u32,
    /// SYN, SYN-ACK, RST, ARP, NDISC, ICMP; ACKs and datagrams that waited for a neighbour.
    control: VecDeque<TxFrame>,
    datagrams: VecDeque<TxFrame>,
    acks: VecDeque<u32>,
    data: VecDeque<u32>,
}

impl Default for InterfaceQueue {
    fn default() -> Self {
        let (control, datagrams, acks, data) = Default::default();
        Self { quota: SEND_QUOTA, control, datagrams, acks, data }
    }
}

impl InterfaceQueue {
    /// Returns true if nothing is queued.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        !self.has_packets() && !self.has_connections()
    }

    /// Queues packets. The frames of one packet are consecutive.
    pub(crate) fn push_control(&mut self, packets: impl IntoIterator<Item = TxFrame>) {
        self.control.extend(packets);
    }

    /// Queues datagrams. The frames of one are consecutive.
    pub(crate) fn push_datagrams(&mut self, packets: impl IntoIterator<Item = TxFrame>) {
        self.datagrams.extend(packets);
    }

    /// Returns true if packets are queued that are built already.
    #[inline]
    pub(crate) fn has_packets(&self) -> bool {
        !self.control.is_empty() || !self.datagrams.is_empty()
    }

    /// Returns true if so many datagrams are queued that UDP sockets wait.
    #[inline]
    pub(crate) fn is_crowded(&self) -> bool {
        self.datagrams.len() >= CROWDED
    }

    /// Returns true if connections are queued.
    #[inline]
    pub(crate) fn has_connections(&self) -> bool {
        !self.acks.is_empty() || !self.data.is_empty()
    }

    /// Removes and returns the next frame of the control packets.
    #[inline]
    pub(crate) fn pop_control(&mut self) -> Option<TxFrame> {
        self.control.pop_front()
    }

    /// Removes and returns the next frame of the datagrams.
    #[inline]
    pub(crate) fn pop_datagram(&mut self) -> Option<TxFrame> {
        self.datagrams.pop_front()
    }

    /// Queues the connection in slot `index`, which owes an ACK.
    #[inline]
    pub(crate) fn push_ack(&mut self, index: u32) {
        self.acks.push_back(index);
    }

    /// Returns the number of queued connections that owe an ACK, or did when they were queued.
    #[inline]
    pub(crate) fn acks(&self) -> usize {
        self.acks.len()
    }

    #[inline]
    pub(crate) fn pop_ack(&mut self) -> Option<u32> {
        self.acks.pop_front()
    }

    /// Queues the connection in slot `index`, which may have data to send, behind all others.
    #[inline]
    pub(crate) fn push_data(&mut self, index: u32) {
        self.data.push_back(index);
    }

    /// Queues the connection again at the front: at its turn no frame was free.
    pub(crate) fn push_data_first(&mut self, index: u32) {
        self.data.push_front(index);
    }

    #[inline]
    pub(crate) fn pop_data(&mut self) -> Option<u32> {
        self.data.pop_front()
    }

    /// Removes the connection in slot `index`, which leaves by another interface from now on.
    #[cold]
    pub(crate) fn forget(&mut self, index: u32) {
        self.acks.retain(|i| *i != index);
        self.data.retain(|i| *i != index);
    }

    /// Returns how many frames, and connections by queue, are queued.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn lens(&self) -> [usize; 3] {
        [self.control.len() + self.datagrams.len(), self.acks.len(), self.data.len()]
    }

    #[cfg(any(test, feature = "check"))]
    pub(crate) fn has_ack(&self, index: u32) -> bool {
        self.acks.contains(&index)
    }

    #[cfg(any(test, feature = "check"))]
    pub(crate) fn has_data(&self, index: u32) -> bool {
        self.data.contains(&index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serves_each_list_in_order() {
        let mut queue = InterfaceQueue::default();
        assert!(queue.is_empty());
        for index in [3, 1, 2] {
            queue.push_ack(index);
            queue.push_data(index);
        }
        assert_eq!((queue.acks(), queue.lens()), (3, [0, 3, 3]));
        assert_eq!(queue.pop_data(), Some(3));
        queue.push_data(3);
        assert_eq!(queue.pop_data(), Some(1), "behind all others");
        queue.push_data_first(1);
        assert_eq!(queue.pop_data(), Some(1), "the first again");
        queue.forget(2);
        assert!(!queue.has_ack(2) && !queue.has_data(2) && queue.has_ack(1));
        assert_eq!((queue.pop_ack(), queue.pop_ack(), queue.pop_ack()), (Some(3), Some(1), None));
        assert_eq!((queue.pop_data(), queue.pop_data()), (Some(3), None));
        assert!(queue.is_empty());
    }
}
