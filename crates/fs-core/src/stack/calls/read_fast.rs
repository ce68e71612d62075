//! The ordinary read: all of a request that came in one frame. Every other read is [`super::receive`]'s, which would come to
//! the same.

use crate::frame::FramePool;
use crate::socket::event::{Ready, TcpId};
use crate::stack::Stack;
use crate::tcb::extension::FastPath;
use crate::tcb::flags::Flags;
use crate::tcb::recv::autotune::Read;

impl<P: FramePool> Stack<P> {
    /// Reads all that there is, out of one frame; `None`: it is otherwise, and nothing has happened.
    #[inline(always)]
    pub(super) fn read_frame(&mut self, id: TcpId, buf: &mut [u8]) -> Option<usize> {
        #[cfg(any(test, feature = "check"))]
        if self.no_fast_paths {
            return None;
        }
        let Self { slots, nodes, pool, config, receive_frames, turn, .. } = self;
        let (tcb, conn_stats) = slots.open_and_stale_stats(id.index)?;
        if tcb.generation() != id.generation || tcb.flags.any(Flags::ORPHAN) || !tcb.ext.allows(FastPath::READ) {
            return None;
        }
        let frame = tcb.rx.only(nodes, buf.len())?;
        let bytes = pool.bytes(&frame);
        let n = bytes.len();
        buf[..n].copy_from_slice(bytes);
        pool.free(frame);
        let bytes = n as u32;
        if !tcb.deferred.no_measure() || bytes >= u32::from(tcb.mss) {
            tcb.deferred.flush(conn_stats, turn.tick);
            tcb.adjust_receive_buffer(&mut conn_stats.tune, bytes, || {
                let room = nodes.len() < *receive_frames / 2;
                Read { bytes, max: config.tcp.receive_buffer_max, room, now_us: turn.us }
            });
        }
        tcb.drained();
        if tcb.state.can_receive() && tcb.window_update_due() {
            tcb.flags.set(Flags::ACK_NOW);
        }
        let owes = tcb.flags.has(Flags::ACK_NOW);
        #[cfg(any(test, feature = "check"))]
        {
            self.fast_paths += 1;
        }
        if owes {
            self.schedule(id.index, Ready::default());
        }
        Some(n)
    }
}
