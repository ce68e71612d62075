//! Netlink sockets as descriptors, to pass them to another process.

use netlink_sys::Socket;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

/// Returns the socket's descriptor.
pub(crate) fn own_netlink(socket: Socket) -> OwnedFd {
    // SAFETY: the socket has given its descriptor up.
    unsafe { OwnedFd::from_raw_fd(socket.into_raw_fd()) }
}

/// Returns a descriptor's socket. Another kind of descriptor causes errors of the calls.
pub(crate) fn netlink_of(fd: OwnedFd) -> Socket {
    // SAFETY: the descriptor is given up.
    unsafe { Socket::from_raw_fd(fd.into_raw_fd()) }
}
