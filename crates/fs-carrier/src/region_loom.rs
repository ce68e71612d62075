//! The region of loom's tests: the same names as in `region_unsafe.rs`, in ordinary memory.

use std::sync::Arc;

use crate::layout::{Direction, Side};
use crate::ring_unsafe::Ring;

/// This end of the connection.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// Writes direction 0.
    A,
    /// Writes direction 1.
    B,
}

/// Two directions.
#[derive(Clone, Debug)]
pub struct Region(Arc<[(Direction, crate::ring_unsafe::Cells); 2]>);

impl Region {
    pub(crate) fn new(ring: usize) -> Self {
        Region(Arc::new(std::array::from_fn(|_| (Direction::new(), crate::ring_unsafe::Cells::new(ring)))))
    }

    pub(crate) fn view(self, end: End, side: SideRef) -> View {
        View { region: self, end, side }
    }

    fn direction(&self, i: usize) -> (&Direction, Ring<'_>) {
        let (direction, cells) = &self.0[i];
        (direction, Ring::of(cells))
    }
}

/// One end's view.
#[derive(Debug)]
pub(crate) struct View {
    region: Region,
    end: End,
    side: SideRef,
}

impl View {
    pub(crate) fn outgoing(&self) -> (&Direction, Ring<'_>) {
        self.region.direction(self.end as usize)
    }

    pub(crate) fn incoming(&self) -> (&Direction, Ring<'_>) {
        self.region.direction(1 - self.end as usize)
    }

    pub(crate) fn side(&self) -> &Side {
        &self.side
    }

    pub(crate) fn incoming_word(&self) -> WordRef {
        WordRef(self.region.clone(), self.end)
    }
}

/// A direction's word.
#[derive(Debug)]
pub(crate) struct WordRef(Region, End);

impl core::ops::Deref for WordRef {
    type Target = crate::word::Word;

    fn deref(&self) -> &crate::word::Word {
        &self.0.direction(1 - self.1 as usize).0.line_a.word
    }
}

/// One side's words.
#[derive(Clone, Debug)]
pub struct SideRef(Arc<Side>);

impl SideRef {
    pub(crate) fn new() -> Self {
        SideRef(Arc::new(Side::new()))
    }
}

impl core::ops::Deref for SideRef {
    type Target = Side;

    fn deref(&self) -> &Side {
        &self.0
    }
}
