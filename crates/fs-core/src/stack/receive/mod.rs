//! Receiving: from a batch of frames to the effect of each packet.

mod cookie;
mod demux;
mod fast_open;
mod handover;
pub(super) mod handshake;
mod other;
mod predict;
mod reset;
mod time_wait;
mod unowned;
