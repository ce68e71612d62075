//! The ordinary read and the ordinary write: all of a request that came in one frame, and an answer that fits one segment.
//! Everything else goes the ways of [`super::receive`] and [`super::stream`], which would come to the same.

use crate::frame::FramePool;
use crate::slab::NIL;
use crate::socket::event::{Ready, TcpId};
use crate::stack::Stack;
use crate::tcb::State;
use crate::tcb::flags::Flags;
use crate::tx::neigh::PathState;

impl<P: FramePool> Stack<P> {
    /// Reads all that there is, out of one frame; `None`: it is otherwise, and nothing has happened.
    #[inline(always)]
    pub(super) fn read_frame(&mut self, id: TcpId, buf: &mut [u8]) -> Option<usize> {
        #[cfg(any(test, feature = "check"))]
        if self.no_shortcuts {
            return None;
        }
        let Self { slots, nodes, pool, .. } = self;
        let tcb = slots.open_mut(id.index)?;
        if tcb.generation != id.generation || tcb.flags.any(Flags::ORPHAN) || tcb.ext.is_some() {
            return None;
        }
        // More than a segment may make the buffer grow.
        let most = buf.len().min(usize::from(tcb.mss).saturating_sub(1));
        let frame = tcb.rx.only(nodes, most)?;
        let bytes = pool.bytes(&frame);
        let n = bytes.len();
        buf[..n].copy_from_slice(bytes);
        pool.free(frame);
        tcb.drained();
        if tcb.state.can_receive() && tcb.window_update_due() {
            tcb.flags.set(Flags::ACK_NOW);
        }
        let owes = tcb.flags.has(Flags::ACK_NOW);
        #[cfg(any(test, feature = "check"))]
        {
            self.shortcuts += 1;
        }
        if owes {
            self.settle_plain(id.index, Ready::default());
        }
        Some(n)
    }

    /// Queues a write as a segment of its own, behind nothing that is unsent; `None`: it is otherwise, and nothing has
    /// happened.
    #[inline(always)]
    pub(super) fn write_segment(&mut self, id: TcpId, buf: &[u8]) -> Option<usize> {
        #[cfg(any(test, feature = "check"))]
        if self.no_shortcuts {
            return None;
        }
        let Self { slots, store, pool, net, send_frames, .. } = self;
        let tcb = slots.open_mut(id.index)?;
        let path = net.path(tcb.path);
        let len = buf.len();
        if tcb.generation != id.generation
            || tcb.flags.any(Flags::ORPHAN.with(Flags::FIN_QUEUED).with(Flags::HOLD))
            || tcb.state != State::Established
            || tcb.ext.is_some()
            || tcb.tx.next != NIL
            || len == 0
            || len > usize::from(tcb.mss).min(pool.payload_room())
            || tcb.tx.bytes as usize + len > tcb.write_mark() as usize
            || store.frames() >= *send_frames
            || tcb.route_epoch != net.route_epoch
            || path.state() == PathState::Stale
        {
            return None;
        }
        let summed = !path.tx_checksum();
        tcb.tx.write_one(store, pool, tcb.snd_nxt, buf, summed)?;
        #[cfg(any(test, feature = "check"))]
        {
            self.shortcuts += 1;
        }
        self.settle_plain(id.index, Ready::default());
        Some(len)
    }
}
