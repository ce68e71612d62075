//! One header each: parse and emit. Fast path by hand; smoltcp's `wire` where speed does not matter.

pub(crate) mod checksum;
pub(crate) mod eth;
pub(crate) mod icmp;
pub(crate) mod ipv4;
pub(crate) mod ipv6;
pub(crate) mod options;
pub(crate) mod tcp;
pub(crate) mod udp;
