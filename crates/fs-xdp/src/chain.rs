//! Packets in a batch: runs of frames joined by [`fs_core::Frame::more`].

use fs_core::TxFrame;

/// The index behind the last frame of the packet that begins at `start`; `None` when no whole packet is left.
#[inline]
pub(crate) fn end(frames: &[TxFrame], start: usize) -> Option<usize> {
    frames[start..].iter().position(|part| !part.frame.more()).map(|last| start + last + 1)
}
