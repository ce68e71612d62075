//! One header each: parse and emit. Fast path by hand; smoltcp's `wire` where speed does not matter.

pub mod checksum;
pub mod eth;
pub mod icmp;
pub mod ipv4;
pub mod ipv6;
pub mod options;
pub mod tcp;
pub mod udp;
