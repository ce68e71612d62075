//! Parsers and builders of single headers: handwritten on the fast path, smoltcp's `wire`
//! elsewhere.

pub(crate) mod checksum;
pub(crate) mod eth;
pub(crate) mod icmp;
pub(crate) mod ipv4;
pub(crate) mod ipv6;
pub(crate) mod options;
pub(crate) mod tcp;
pub(crate) mod udp;
