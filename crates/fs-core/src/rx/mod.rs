//! A received packet's way to its connection: parse → steer → demux → SYN cache.

pub(crate) mod cookie;
pub(crate) mod demux;
pub(crate) mod fast_open;
pub(crate) mod handshake;
pub(crate) mod other;
pub mod parse;
pub(crate) mod predict;
pub(crate) mod reset;
pub mod steer;
pub(crate) mod syn;
pub mod table;
pub(crate) mod time_wait;
