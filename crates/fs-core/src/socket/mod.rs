//! Sockets: what applications set, are told and ask for, and the tables of what they listen and wait at.

pub mod event;
pub(crate) mod fast_open;
pub mod info;
pub(crate) mod listener;
pub mod options;
pub mod ports;
pub mod udp;
