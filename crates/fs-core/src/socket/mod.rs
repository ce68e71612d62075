//! Sockets: what applications set, are told and ask for, and the tables of what they listen and wait at.

pub(crate) mod event;
pub(crate) mod fast_open;
pub(crate) mod info;
pub(crate) mod listener;
pub(crate) mod options;
pub(crate) mod ports;
pub(crate) mod udp;
