//! The socket calls under [`crate::blocking`] and [`crate::socket2`], on descriptor numbers. They are the C library's functions, so
//! `fastsock run` accelerates the sockets of a program as it does those of any other.

mod calls_unsafe;

pub(crate) use calls_unsafe::*;

use std::io;
use std::os::fd::RawFd;

/// Calls `f` again until it does not fail with EINTR.
pub(crate) fn again<T>(mut f: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match f() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Returns the value of an option that is a C `int`.
pub(crate) fn int_option(fd: RawFd, level: i32, name: i32) -> io::Result<i32> {
    let mut value = [0; 4];
    // Some options (IP_MULTICAST_LOOP of old kernels) return one byte. On little-endian the value
    // is still correct, because the other bytes stay 0.
    let len = option(fd, level, name, &mut value)?;
    Ok(if len == 1 { i32::from(value[0]) } else { i32::from_ne_bytes(value) })
}

/// Sets an option that is a C `int`.
pub(crate) fn set_int_option(fd: RawFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    set_option(fd, level, name, &value.to_ne_bytes())
}

/// Waits at most `timeout` until `connect` on the non-blocking `fd` has ended.
pub(crate) fn wait_connected(fd: RawFd, timeout: std::time::Duration) -> io::Result<()> {
    let start = std::time::Instant::now();
    loop {
        let left = timeout.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "connection timed out"));
        }
        let millis = i32::try_from(left.as_millis()).unwrap_or(i32::MAX).max(1);
        match poll(fd, libc::POLLOUT, millis) {
            Ok(0) => {}
            Ok(ready) if ready & (libc::POLLERR | libc::POLLHUP) != 0 => {
                return Err(match int_option(fd, libc::SOL_SOCKET, libc::SO_ERROR)? {
                    0 => io::Error::other("the connection ended without an error"),
                    errno => io::Error::from_raw_os_error(errno),
                });
            }
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
