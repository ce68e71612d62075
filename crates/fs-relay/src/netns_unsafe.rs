//! The cookie of the network namespace.

#![allow(unsafe_code)]

use rustix::net::{AddressFamily, SocketType};
use std::io;
use std::os::fd::AsRawFd;

/// Returns SO_NETNS_COOKIE of this thread's network namespace (Linux 5.14).
pub(crate) fn cookie() -> io::Result<u64> {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
    let (mut cookie, mut len) = (0_u64, size_of::<u64>() as libc::socklen_t);
    // SAFETY: `cookie` has `len` writable bytes, and both outlive the call.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut len,
        )
    };
    if done == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}
