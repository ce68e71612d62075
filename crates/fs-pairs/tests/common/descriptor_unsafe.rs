//! Descriptors with a number of the test's choice.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Duplicates `file` to the number `number`, and replaces what was there.
pub(crate) fn replace(file: BorrowedFd<'_>, number: i32) -> Result<(), rustix::io::Errno> {
    // SAFETY: never dropped here, so nothing is closed but by the call, which the test is about.
    let mut target = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
    rustix::io::dup2(file, &mut target)
}

/// SO_BINDTODEVICE.
pub(crate) fn bind_to_device(socket: BorrowedFd<'_>, device: &str) -> std::io::Result<()> {
    let (name, len) = (device.as_ptr().cast(), device.len() as libc::socklen_t);
    // SAFETY: `device` has `len` bytes.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_BINDTODEVICE, name, len) };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
