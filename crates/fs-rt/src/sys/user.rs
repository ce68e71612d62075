//! The users of the process and of a socket's other end.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Its effective user.
pub(crate) fn effective_user() -> u32 {
    // SAFETY: no arguments, and it cannot fail (geteuid(2)).
    unsafe { libc::geteuid() }
}

/// Returns true if the process that has executed this program has fewer rights: a set-user-ID program, or one with
/// file capabilities (AT_SECURE of getauxval(3)).
pub(crate) fn is_privileged() -> bool {
    // SAFETY: it reads the vector that the kernel has given the process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Returns the user at the other end of a Unix socket (SO_PEERCRED).
pub(crate) fn peer_user(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: `peer` is a structure of integers with room for `length` bytes.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut peer).cast(), &raw mut length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(peer.uid) }
}
