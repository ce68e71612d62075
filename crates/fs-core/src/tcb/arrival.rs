//! A received segment at its connection: the frames that it came in, what the connection borrows from its core to take it
//! in, and what is to be done after that.

use crate::config::TcpConfig;
use crate::drop_reason::DropReason;
use crate::frame::{FramePool, RxFrame};
use crate::frame_queue::{FrameNodes, FrameQueue};
use crate::rx::steer::TsClock;
use crate::stats::Stats;
use crate::tcb::connection_stats::ConnectionStats;
use crate::tcb::send::store::TxStore;
use crate::time::Instant;

/// One part in so many of the receive share comes on top of it, for segments in order of connections with nothing unread:
/// readers that have stalled hold the whole share, all of it promised, and must not stop those that read (Linux:
/// `tcp_rmem[0]`, granted whatever the others hold). Larger: fewer connections go on at a time; smaller: frames that
/// sending and the device's rings miss.
const RESERVE: usize = 16;

/// The frames of one received packet, on their way to an owner. Must be discarded or turned into payload.
#[must_use = "frames must find an owner"]
pub(crate) struct Arrival<'a> {
    frames: &'a mut [RxFrame],
}

impl<'a> Arrival<'a> {
    /// Takes charge of `frames`, whose places in the batch are hollow afterwards.
    pub(crate) fn new(frames: &'a mut [RxFrame]) -> Self {
        Self { frames }
    }

    /// The first frame's bytes: all headers are in it.
    #[inline]
    pub(crate) fn head<'p, P: FramePool>(&self, pool: &'p P) -> &'p [u8] {
        pool.bytes(&self.frames[0].frame)
    }

    /// Gives the frames back.
    pub(crate) fn discard<P: FramePool>(self, pool: &mut P) {
        for rx in self.frames {
            pool.free(rx.frame.take());
        }
    }

    /// Moves the frames out, to keep them elsewhere.
    pub(crate) fn into_frames(self) -> alloc::vec::Vec<RxFrame> {
        self.frames.iter_mut().map(RxFrame::take).collect()
    }

    /// Moves the frames out, to send them to another core: without an allocation for a packet of one.
    pub(crate) fn into_head_and_rest(self) -> (RxFrame, alloc::vec::Vec<RxFrame>) {
        let (head, rest) = self.frames.split_at_mut(1);
        (head[0].take(), rest.iter_mut().map(RxFrame::take).collect())
    }

    /// Keeps `len` bytes of payload from `off` on; frames without payload go back.
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

/// What to do after a segment was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// Taken in.
    Accepted,
    /// Thrown away.
    Discard(DropReason),
    /// Thrown away and answered with an ACK.
    DiscardAndAck(DropReason),
    /// Thrown away and answered with an ACK, unless the connection's last such ACK was a moment ago.
    DiscardAndAckRarely(DropReason),
    /// Thrown away and answered with a challenge ACK (RFC 5961): as `DiscardAndAckRarely`, and at most so many a second.
    Challenge(DropReason),
    /// The SYN of a connection in SYN-RECEIVED, again.
    SynAgain,
    /// In SYN-RECEIVED, an ACK of something else than our SYN: thrown away and answered with a reset.
    NotOurSyn,
    /// The peer reset the connection.
    PeerReset,
    /// Our FIN and the peer's are both done: to TIME-WAIT, with an ACK if one is owed.
    TimeWait,
    /// LAST-ACK is over.
    Closed,
    /// Data for a socket that nobody reads: both ends are reset.
    ResetPeer,
}

/// What the connection borrows from its core.
pub(crate) struct Core<'a, P: FramePool> {
    pub(crate) pool: &'a mut P,
    pub(crate) nodes: &'a mut FrameNodes,
    pub(crate) store: &'a mut TxStore,
    pub(crate) stats: &'a mut Stats,
    pub(crate) config: &'a TcpConfig,
    pub(crate) now: Instant,
    /// Our timestamp clock and its offset.
    pub(crate) clock: (&'a TsClock, u32),
    /// The receive share of the pool is half spent: copy payloads together.
    pub(crate) pressure: bool,
    /// The receive share, in frames.
    pub(crate) share: usize,
    /// The receive share is spent: take no data, but of connections that have none.
    pub(crate) exhausted: bool,
    /// The connection's counts.
    pub(crate) conn_stats: &'a mut ConnectionStats,
}

impl<P: FramePool> Core<'_, P> {
    /// Three quarters of the receive share are spent: nothing more is kept out of order.
    pub(crate) fn scarce(&self) -> bool {
        self.nodes.len() >= self.share / 4 * 3
    }

    /// The share is spent, and of what connections without unread data may have beyond it something is left.
    pub(crate) fn has_reserve(&self) -> bool {
        self.nodes.len() < self.share + self.share.div_ceil(RESERVE)
    }

    pub(crate) fn timestamp(&self) -> u32 {
        self.clock.0.value(self.now, self.clock.1)
    }
}
