//! Sockets: the calls that applications make, and what they are told.

mod accept;
mod connect;
mod datagram;
pub mod datagram_batch;
pub mod event;
pub(crate) mod fast_open;
pub mod handover;
pub mod info;
pub(crate) mod listener;
pub mod options;
pub mod ports;
mod receive;
mod shortcut;
mod stream;
mod stream_options;
pub mod udp;
