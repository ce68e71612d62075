//! The control protocol between a process and the daemon: everything that is not data.
//!
//! A Unix socket of type SOCK_SEQPACKET; a process asks ([`Request`]), the daemon answers ([`Reply`]), descriptors
//! travel along. The daemon never speaks first (to who captures, on a socket of his own), so a readable connection outside of a
//! request means that it is gone.
//! Both sides take the other's bytes for hostile: decoding answers errors, never panics, never allocates.
//!
//! [`Client`] is what runs inside an application: under preload, in a forked child, in a signal handler. So no
//! allocation, no libc function (each could be one of ours), only system calls.

mod answer;
mod capture;
mod client;
mod encoding;
#[doc(hidden)]
pub mod examples;
mod fd_unsafe;
mod message;
mod object;
mod rows;
pub mod socket;
mod wire;

pub use answer::{Claimed, Error, Listening, Routed, SideMemory, Way, Welcome};
pub use capture::{CAPTURE_HEADER, CaptureRecord};
pub use client::{Client, Due, TIMEOUT, make_requests_within};
pub use encoding::is_reply;
pub use fd_unsafe::Fd;
pub use message::{ADMIN_MAX, ArenaGeometry, FDS_MAX, GROUP_MAX, KernelReason, MESSAGE_MAX, Reply, Request, VERSION};
pub use object::{ArenaPart, Object, PeerSide};
pub use rows::{BUCKETS, CounterRow, Kind, Row, SocketRow};
pub use wire::{Malformed, Text};

/// Environment variable that names the daemon's socket.
pub const PATH_VARIABLE: &str = "FASTSOCK_CONTROL";

/// The socket of the daemon that serves all users.
pub const SYSTEM_PATH: &str = "/run/fastsock/control.sock";

/// The socket of a user's own daemon, below `$XDG_RUNTIME_DIR`.
pub const USER_PATH: &str = "fastsock/control.sock";

#[cfg(test)]
mod tests;
