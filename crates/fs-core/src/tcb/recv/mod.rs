//! The receiving half: bytes stay in the frames that the link delivered, chained to their connection
//! ([`crate::frame_queue`]), until the application copies or takes them.

pub(crate) mod ack;
pub(crate) mod reassembly;
