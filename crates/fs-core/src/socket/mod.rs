//! Sockets: options, events and statistics for applications, and the tables of listeners, ports and
//! UDP sockets.

pub(crate) mod event;
pub(crate) mod fast_open;
pub(crate) mod info;
pub(crate) mod listener;
pub(crate) mod options;
pub(crate) mod ports;
pub(crate) mod udp;
