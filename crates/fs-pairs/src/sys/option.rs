//! Socket options.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// SO_BINDTOIFINDEX of asm-generic/socket.h (Linux 5.0).
const SO_BINDTOIFINDEX: i32 = 62;
/// SO_NETNS_COOKIE of asm-generic/socket.h (Linux 5.14).
const SO_NETNS_COOKIE: i32 = 71;

/// The process at the other end of a Unix socket, as the kernel names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Credentials {
    /// 0 for a process that is not visible in this pid namespace.
    pub(crate) pid: u32,
    pub(crate) uid: u32,
}

fn option<T: Copy>(socket: BorrowedFd<'_>, name: i32) -> Result<T, Errno> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as u32;
    // SAFETY: `value` has room for `len` bytes.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, value.as_mut_ptr().cast(), &raw mut len)
    };
    if result != 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    if len as usize != size_of::<T>() {
        return Err(Errno::INVAL);
    }
    // SAFETY: all bytes were written, and `T` is an integer or a structure of integers (private function).
    Ok(unsafe { value.assume_init() })
}

/// Returns the process and user that connected a Unix socket (SO_PEERCRED).
pub(crate) fn credentials(socket: BorrowedFd<'_>) -> Result<Credentials, Errno> {
    let raw = option::<libc::ucred>(socket, libc::SO_PEERCRED)?;
    Ok(Credentials { pid: u32::try_from(raw.pid).unwrap_or(0), uid: raw.uid })
}

/// Returns the cookie of the network namespace that a socket was made in.
pub(crate) fn netns_cookie(socket: BorrowedFd<'_>) -> Result<u64, Errno> {
    option(socket, SO_NETNS_COOKIE)
}

/// Returns the index of the device that a socket is bound to, or 0.
pub(crate) fn bound_device(socket: BorrowedFd<'_>) -> Result<i32, Errno> {
    option(socket, SO_BINDTOIFINDEX)
}
