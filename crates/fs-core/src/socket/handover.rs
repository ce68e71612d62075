//! A connection on its way from one core to another: established, but not yet accepted, and the core that
//! owns it has nobody left to accept it.

use crate::flow::FlowKey;
use crate::frame::Frame;
use crate::tcb::Tcb;
use crate::tcb::tally::Tally;
use alloc::vec::Vec;

/// Everything of a connection that is not yet accepted: its control block and the frames it holds.
#[derive(Debug)]
pub struct Handover {
    pub(crate) key: FlowKey,
    pub(crate) tcb: Tcb,
    pub(crate) tally: Tally,
    /// Received and not yet read, in order.
    pub(crate) received: Vec<Frame>,
}

impl Handover {
    /// Takes the frames out, for a runtime that cannot deliver the message: they go back to the pool of the
    /// core that sent it, and the peer will find the connection gone.
    pub fn into_frames(self) -> Vec<Frame> {
        self.received
    }
}
