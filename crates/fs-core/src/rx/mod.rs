//! A received packet on its way to its owner: parse, steer, look up; and what handshakes are kept as.

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
