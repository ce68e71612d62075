//! A connection on its way from one core to another.

/// Everything of a connection that is not yet accepted: its control block and the frames it holds.
#[derive(Debug)]
pub struct Handover {}
