//! Sockets: the calls that applications make, and what they are told.

pub mod event;
pub mod handover;
pub mod options;
pub mod ports;
pub mod udp;
