//! epoll, poll and select over channels and kernel descriptors. The functions below are called by the rest of the crate.

use crate::{socket::Socket, types::Fd};

/// A descriptor of a socket is being closed (or replaced by dup2); `last`: it was the last of this socket in this process.
/// Called before the number can be reused.
pub fn closed(_fd: Fd, _socket: &Socket, _last: bool) {}

/// What has to be watched for this socket has changed (connect made it a channel, listen a listener, a fall back to the kernel).
pub fn changed(_socket: &Socket) {}

/// A kernel descriptor that is no socket of ours is being closed or replaced: only called while any epoll instance is ours.
pub fn kernel_closed(_fd: Fd) {}

/// The last descriptor of an epoll instance in this process is gone.
pub fn epoll_closed(_index: u32) {}

/// In a forked child, before anything else.
pub fn forked() {}
