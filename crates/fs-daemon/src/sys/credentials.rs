//! Who is at the other end, and which network namespace a socket is in: the kernel's words, not the process's.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

/// A process, as the kernel names it to us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Credentials {
    /// 0 for a process that our pid namespace does not show.
    pub(crate) pid: u32,
    pub(crate) uid: u32,
}

impl From<libc::ucred> for Credentials {
    fn from(raw: libc::ucred) -> Self {
        Self { pid: u32::try_from(raw.pid).unwrap_or(0), uid: raw.uid }
    }
}

fn option<T: Copy>(socket: BorrowedFd<'_>, name: i32) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as u32;
    // SAFETY: `value` has room for `len` bytes.
    let answer = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, value.as_mut_ptr().cast(), &raw mut len)
    };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    if len as usize != size_of::<T>() {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    }
    // SAFETY: all of it was written; `T` is a plain integer or a structure of some (private function).
    Ok(unsafe { value.assume_init() })
}

/// An option's value as getsockopt(2) gives it; answers its length.
pub(crate) fn raw_option(socket: BorrowedFd<'_>, level: i32, name: i32, value: &mut [u8]) -> io::Result<usize> {
    let mut len = value.len() as u32;
    // SAFETY: `value` has room for `len` bytes.
    let answer = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, value.as_mut_ptr().cast(), &raw mut len) };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(value.len().min(len as usize))
}

/// Who made the other end of a Unix socket (SO_PEERCRED).
pub(crate) fn peer(socket: BorrowedFd<'_>) -> io::Result<Credentials> {
    option::<libc::ucred>(socket, libc::SO_PEERCRED).map(Credentials::from)
}

/// The cookie of the network namespace that a socket was made in (SO_NETNS_COOKIE, Linux 5.14).
pub(crate) fn netns_cookie(socket: BorrowedFd<'_>) -> io::Result<u64> {
    // asm-generic/socket.h; not in the libc crate for all targets.
    use libc::SO_NETNS_COOKIE;
    option(socket, SO_NETNS_COOKIE).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOPROTOOPT) => io::Error::new(
            io::ErrorKind::Unsupported,
            "this kernel has no SO_NETNS_COOKIE, by which network namespaces are told apart: Linux 5.14 and later have it",
        ),
        _ => error,
    })
}
