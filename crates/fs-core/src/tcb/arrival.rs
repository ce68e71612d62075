//! A received segment at its connection: its frames, what the connection borrows from its core to
//! process it, and the result.

use crate::config::TcpConfig;
use crate::drop_reason::DropReason;
use crate::frame::{FramePool, RxFrame};
use crate::frame_queue::{FrameNodes, FrameQueue};
use crate::rx::steer::TsClock;
use crate::stats::Stats;
use crate::tcb::connection_stats::ConnectionStats;
use crate::tcb::send::store::TxStore;
use crate::time::Instant;

/// Reserve on top of the receive share, as a divisor of it: for in-order segments of connections
/// with nothing unread. Readers that have stalled can hold the whole share, which must not stop
/// other readers (Linux: `tcp_rmem[0]`, granted whatever others hold). Too high: fewer connections
/// make progress at a time. Too low: fewer frames for sending and for the device's rings.
const RESERVE: usize = 16;

/// The frames of one received packet. Must be discarded or turned into payload.
#[must_use = "frames must find an owner"]
pub(crate) struct Arrival<'a> {
    frames: &'a mut [RxFrame],
}

impl<'a> Arrival<'a> {
    /// Takes ownership of `frames`; their slots in the batch are empty afterwards.
    pub(crate) fn new(frames: &'a mut [RxFrame]) -> Self {
        Self { frames }
    }

    /// Returns the first frame's bytes, which contain all headers.
    #[inline]
    pub(crate) fn head<'p, P: FramePool>(&self, pool: &'p P) -> &'p [u8] {
        pool.bytes(&self.frames[0].frame)
    }

    /// Frees the frames.
    pub(crate) fn discard<P: FramePool>(self, pool: &mut P) {
        for rx in self.frames {
            pool.free(rx.frame.take());
        }
    }

    /// Moves the frames out, to keep them elsewhere.
    pub(crate) fn into_frames(self) -> alloc::vec::Vec<RxFrame> {
        self.frames.iter_mut().map(RxFrame::take).collect()
    }

    /// Moves the frames out, to send them to another core. A packet of one frame needs no
    /// allocation.
    pub(crate) fn into_head_and_rest(self) -> (RxFrame, alloc::vec::Vec<RxFrame>) {
        let (head, rest) = self.frames.split_at_mut(1);
        (head[0].take(), rest.iter_mut().map(RxFrame::take).collect())
    }

    /// Keeps `len` bytes of payload from `off` on, and frees frames without payload.
    #[inline(always)]
    pub(crate) fn into_payload<P: FramePool>(
        self,
        nodes: &mut FrameNodes,
        pool: &mut P,
        off: usize,
        len: usize,
    ) -> FrameQueue {
        let mut queue = FrameQueue::new();
        let (mut skip, mut left) = (off, len);
        for rx in self.frames {
            let mut frame = rx.frame.take();
            let cut = skip.min(frame.len());
            frame.trim_front(cut);
            skip -= cut;
            let keep = left.min(frame.len());
            if keep == 0 {
                pool.free(frame);
                continue;
            }
            frame.truncate(keep);
            frame.set_more(false);
            left -= keep;
            queue.push(nodes, frame);
        }
        queue
    }
}

/// Result of processing a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// Accepted.
    Accepted,
    /// Dropped.
    Discard(DropReason),
    /// Dropped and answered with an ACK.
    DiscardAndAck(DropReason),
    /// Dropped and answered with an ACK, within the connection's rate limit for such ACKs.
    DiscardAndAckRarely(DropReason),
    /// Dropped and answered with a challenge ACK (RFC 5961): as `DiscardAndAckRarely`, and within a
    /// limit per second.
    Challenge(DropReason),
    /// A retransmission of the SYN of a connection in SYN-RECEIVED.
    SynAgain,
    /// In SYN-RECEIVED, an ACK of something other than our SYN: dropped and answered with a reset.
    NotOurSyn,
    /// The peer reset the connection.
    PeerReset,
    /// Both FINs are acknowledged: enter TIME-WAIT, with an ACK if one is owed.
    TimeWait,
    /// LAST-ACK has ended.
    Closed,
    /// Data for a socket that no application reads: both ends are reset.
    ResetPeer,
}

/// Parts of the core that a connection borrows while it processes a segment.
pub(crate) struct Core<'a, P: FramePool> {
    pub(crate) pool: &'a mut P,
    pub(crate) nodes: &'a mut FrameNodes,
    pub(crate) store: &'a mut TxStore,
    pub(crate) stats: &'a mut Stats,
    pub(crate) config: &'a TcpConfig,
    pub(crate) now: Instant,
    /// Our timestamp clock and its offset.
    pub(crate) clock: (&'a TsClock, u32),
    /// Half of the pool's receive share is in use: merge payloads by copying.
    pub(crate) pressure: bool,
    /// The receive share, in frames.
    pub(crate) share: usize,
    /// The receive share is spent: accept data only for connections that hold none.
    pub(crate) exhausted: bool,
    /// The connection's counters.
    pub(crate) conn_stats: &'a mut ConnectionStats,
}

impl<P: FramePool> Core<'_, P> {
    /// Returns true if three quarters of the receive share are in use: out-of-order data is then
    /// dropped.
    pub(crate) fn scarce(&self) -> bool {
        self.nodes.len() >= self.share / 4 * 3
    }

    /// Returns true if the reserve for connections without unread data is not spent.
    pub(crate) fn has_reserve(&self) -> bool {
        self.nodes.len() < self.share + self.share.div_ceil(RESERVE)
    }

    pub(crate) fn timestamp(&self) -> u32 {
        self.clock.0.value(self.now, self.clock.1)
    }
}
