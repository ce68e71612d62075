//! Receive path of a packet to its owner: parse, steer, look up; and the state of handshakes.

pub(crate) mod batch;
pub(crate) mod cookie;
pub(crate) mod fast_open;
pub(crate) mod isn;
pub(crate) mod limits;
pub(crate) mod owner;
pub(crate) mod parse;
pub(crate) mod steer;
pub(crate) mod syn;
pub(crate) mod table;
