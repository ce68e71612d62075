//! Packets in a batch: runs of frames joined by [`fs_core::Frame::more`].

use fs_core::TxFrame;

/// Returns the index after the last frame of the packet that starts at `start`, or `None` if no
/// whole packet is left.
#[inline]
pub(crate) fn end(frames: &[TxFrame], start: usize) -> Option<usize> {
    frames[start..].iter().position(|part| !part.frame.more()).map(|last| start + last + 1)
}
