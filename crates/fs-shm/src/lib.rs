//! Shared-memory sockets: arenas, channels, rings, lanes, and the control protocol between a process and the daemon.

pub mod control;
