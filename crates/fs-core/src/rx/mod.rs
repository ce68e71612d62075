//! A received packet's way to its connection: parse → steer → demux → SYN cache.

pub mod parse;
pub mod steer;
pub mod table;
