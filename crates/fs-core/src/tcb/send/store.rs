//! The segments of all send queues of a core, and the frames that they may hold.

use super::segment::TxSegment;
use crate::frame_queue::FrameNodes;
use crate::slab::Slab;

/// All send queues of a core.
#[derive(Debug)]
pub(crate) struct TxStore {
    /// Maximum number of frames: the core's share for sending.
    most: usize,
    /// Number of segments that their queues store themselves: see `TxQueue::store_inline`.
    pub(super) inline: usize,
    pub(crate) segments: Slab<TxSegment>,
    pub(crate) rest: FrameNodes,
    /// Rate samples' stamps, by segment; grows with the first connection that needs them.
    pub(crate) stamps: alloc::vec::Vec<crate::tcb::cc::rate::Stamp>,
}

impl TxStore {
    /// Makes a store for at most `frames` frames; `tell` as in
    /// [`crate::config::StackConfig::large_table`].
    pub(crate) fn new(frames: usize, tell: Option<fn(*const u8, usize)>) -> Self {
        Self {
            most: frames,
            inline: 0,
            segments: Slab::growing_to(frames, tell),
            rest: FrameNodes::new(),
            stamps: alloc::vec::Vec::new(),
        }
    }

    /// Returns the number of frames held (including bare FINs).
    pub(crate) fn frames(&self) -> usize {
        self.segments.len() + self.rest.len() + self.inline
    }

    /// Returns the maximum number of frames.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Returns true if half of the core's frames for sending are held.
    pub(crate) fn is_half_full(&self) -> bool {
        self.frames() >= self.most / 2
    }

    /// Returns the number of frames that may still be taken.
    pub(crate) fn frames_left(&self) -> usize {
        self.most.saturating_sub(self.frames())
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.frames() >= self.most
    }

    /// Returns the number of frames that may be taken until the last eighth is left, which is for
    /// connections that have nothing queued.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        (self.most - self.eighth()).saturating_sub(self.frames())
    }

    /// Returns true if half of the last eighth is in use, too: peers that take no data leave few frames
    /// for others.
    pub(crate) fn is_scarce(&self) -> bool {
        self.frames_left() < self.eighth() / 2
    }

    /// Returns an eighth of the frames.
    pub(crate) fn eighth(&self) -> usize {
        self.most / 8
    }
}
