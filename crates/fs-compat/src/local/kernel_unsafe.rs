//! Operations on kernel sockets for which neither tokio nor rustix has a safe function.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers `fd` with the calling thread's tokio runtime for EPOLLPRI.
pub(super) fn watch_urgent(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: `fd` is an open descriptor that the AsyncFd owns until it is dropped, and OwnedFd
    // always returns the same number.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::PRIORITY) }?)
}

/// Calls ioctl(2) with a request that fills a C `int`.
pub(super) fn int(fd: BorrowedFd<'_>, request: libc::c_ulong) -> io::Result<i32> {
    let mut value: c_int = 0;
    // SAFETY: the requests of this module's callers (SIOCATMARK, FIONREAD, TIOCOUTQ) write one int,
    // which lives during the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw mut value) })?;
    Ok(value)
}

/// The most bytes that Linux moves in one call (`MAX_RW_COUNT`).
const TRANSFER_MAX: usize = 0x7fff_f000;

/// Calls send(2) of the C library, which a preloaded library may replace.
pub(super) fn send(fd: RawFd, buf: &[u8], flags: c_int) -> io::Result<usize> {
    // SAFETY: the buffer is readable for its length.
    check_len(unsafe { libc::send(fd, buf.as_ptr().cast(), buf.len().min(TRANSFER_MAX), flags) })
}

/// Calls recv(2) of the C library, which a preloaded library may replace.
pub(super) fn recv(fd: RawFd, buf: &mut [u8], flags: c_int) -> io::Result<usize> {
    // SAFETY: the buffer is writable for its length.
    check_len(unsafe { libc::recv(fd, buf.as_mut_ptr().cast(), buf.len().min(TRANSFER_MAX), flags) })
}

/// Reads an option and returns how many bytes the kernel wrote.
pub(super) fn option(fd: RawFd, level: c_int, name: c_int, value: &mut [u8]) -> io::Result<usize> {
    let mut len = value.len() as libc::socklen_t;
    // SAFETY: the value is writable for `len` bytes.
    check(unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &mut len) })?;
    Ok(len as usize)
}

/// Sets an option to `value`.
pub(super) fn set_option(fd: RawFd, level: c_int, name: c_int, value: &[u8]) -> io::Result<()> {
    let len = value.len() as libc::socklen_t;
    // SAFETY: the value is readable for `len` bytes.
    check(unsafe { libc::setsockopt(fd, level, name, value.as_ptr().cast(), len) }).map(drop)
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn check_len(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
