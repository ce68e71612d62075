//! The packets of a turn.

use crate::drop_reason::DropReason;
use crate::frame::RxFrame;
use crate::rx::parse::Parsed;
use alloc::vec::Vec;

/// Scratch space of a batch, kept from turn to turn.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) frames: Vec<RxFrame>,
    pub(crate) packets: Vec<Item>,
}

/// One packet of a batch: its frames and their classification.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub(crate) first: u32,
    pub(crate) end: u32,
    pub(crate) hash: u64,
    /// The probable flow table entry: see `FlowTable::candidate`; or `NIL`.
    pub(crate) candidate: u32,
    pub(crate) parsed: Result<Parsed, DropReason>,
}
