//! Socket options that say where a socket is bound, and to whom it is connected.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// `SO_NETNS_COOKIE` (Linux 5.14) and `SO_BINDTOIFINDEX` of `asm-generic/socket.h`.
const SO_NETNS_COOKIE: libc::c_int = 71;
const SO_BINDTOIFINDEX: libc::c_int = 62;
/// Of `linux/in.h` (Linux 6.3), for both families.
const IP_LOCAL_PORT_RANGE: libc::c_int = 51;

/// Returns the cookie of a socket's network namespace.
pub(crate) fn namespace_cookie(socket: BorrowedFd<'_>) -> io::Result<u64> {
    read(socket, (libc::SOL_SOCKET, SO_NETNS_COOKIE), 0_u64)
}

/// Returns the index of the device that a socket is bound to; 0: none.
pub(crate) fn bound_device(socket: BorrowedFd<'_>) -> io::Result<u32> {
    read(socket, (libc::SOL_SOCKET, SO_BINDTOIFINDEX), 0_u32)
}

/// Returns the range to which a program has limited the kernel's choice of the socket's port; 0: none.
pub(crate) fn port_range(socket: BorrowedFd<'_>) -> io::Result<u32> {
    read(socket, (libc::SOL_IP, IP_LOCAL_PORT_RANGE), 0_u32)
}

/// Returns true if the process that has connected this Unix socket runs: no other process has its number. False
/// where the kernel does not say (`SO_PEERPIDFD`, Linux 6.5).
pub fn peer_runs(socket: BorrowedFd<'_>) -> bool {
    let Ok(process) = read(socket, (libc::SOL_SOCKET, libc::SO_PEERPIDFD), -1) else { return false };
    // SAFETY: the kernel has opened this descriptor for the call above.
    let process = unsafe { OwnedFd::from_raw_fd(process) };
    // It becomes readable when the process ends, before the number is free.
    let mut events = [PollFd::new(&process, PollFlags::IN)];
    poll(&mut events, Some(&Timespec::default())) == Ok(0)
}

fn read<T: Copy>(socket: BorrowedFd<'_>, (level, option): (libc::c_int, libc::c_int), mut value: T) -> io::Result<T> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is an integer with room for `length` bytes.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut value).cast(), &raw mut length) };
    if result < 0 || length as usize != size_of::<T>() { Err(io::Error::last_os_error()) } else { Ok(value) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn device_that_a_socket_is_bound_to_is_read() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(bound_device(socket.as_fd()).unwrap(), 0);
        // SAFETY: a live string of that length.
        let result = unsafe {
            let (level, option) = (libc::SOL_SOCKET, libc::SO_BINDTODEVICE);
            libc::setsockopt(socket.as_raw_fd(), level, option, c"lo".as_ptr().cast(), 2)
        };
        assert_eq!(result, 0);
        assert_eq!(bound_device(socket.as_fd()).unwrap(), 1);
    }
}
