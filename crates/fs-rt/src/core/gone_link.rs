//! A placeholder for a link that is closed, or whose device is gone or not attached to yet.

use fs_core::{Frame, FramePool, IfaceId, RxFrame, TxFrame};
use fs_xdp::{Link, LinkCaps, LinkStats, UmemPool};
use std::os::fd::BorrowedFd;

/// A placeholder for a link that is closed, or whose device is gone or not attached to yet. Only its
/// counters are read.
pub(crate) struct GoneLink {
    caps: LinkCaps,
    stats: LinkStats,
    /// Frames to receive into when the device is back, or that a closed queue's driver may write to.
    spare: Vec<Frame>,
}

impl GoneLink {
    /// `spare`: the frames that the link had.
    pub(crate) fn new(caps: LinkCaps, stats: LinkStats, spare: Vec<Frame>) -> Self {
        Self { caps, stats, spare }
    }
}

impl Link for GoneLink {
    fn caps(&self) -> &LinkCaps {
        &self.caps
    }

    fn rx(&mut self, _: &mut UmemPool, _: IfaceId, _: &mut Vec<RxFrame>, _: usize) -> usize {
        0
    }

    fn tx(&mut self, pool: &mut UmemPool, frames: &mut Vec<TxFrame>) -> std::io::Result<usize> {
        frames.drain(..).for_each(|tx| pool.free(tx.frame));
        Ok(0)
    }

    fn reap(&mut self, pool: &mut UmemPool) -> bool {
        self.spare.drain(..).for_each(|frame| pool.free(frame));
        false
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn prepare_sleep(&mut self, _: &mut UmemPool) -> bool {
        true
    }

    fn stats(&self) -> LinkStats {
        self.stats
    }

    fn close(mut self: Box<Self>, pool: &mut UmemPool) {
        self.reap(pool);
    }
}
