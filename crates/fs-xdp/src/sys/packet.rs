//! Packet sockets: `packet(7)`, `linux/if_packet.h`.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A raw packet socket that receives nothing yet.
pub(crate) fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: a plain system call without pointers.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and ours.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets an integer option.
pub(crate) fn set(socket: BorrowedFd<'_>, level: i32, option: i32, value: i32) -> io::Result<()> {
    let length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: a live integer of the length that is told.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the number of the fanout group that the socket is in.
pub(crate) fn fanout_group(socket: BorrowedFd<'_>) -> io::Result<u16> {
    let mut value = 0_i32;
    let mut length = size_of::<i32>() as libc::socklen_t;
    let (level, option) = (libc::SOL_PACKET, libc::PACKET_FANOUT);
    // SAFETY: a live integer of the length that is told.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut value).cast(), &raw mut length) };
    // The mode and flags are above the number.
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(value as u16) }
}

/// Binds to all protocols of a device.
pub(crate) fn bind(socket: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    bind_to(socket, index, libc::ETH_P_ALL as u16)
}

/// Binds to a device for sending only.
pub(crate) fn bind_to_send(socket: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    bind_to(socket, index, 0)
}

fn bind_to(socket: BorrowedFd<'_>, index: u32, protocol: u16) -> io::Result<()> {
    // SAFETY: a `sockaddr_ll` is integers.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = index as i32;
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: a live structure of the length that is told.
    let result = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the index of the device that the socket is bound to, or `None` if the device is gone.
pub(crate) fn bound_to(socket: BorrowedFd<'_>) -> Option<u32> {
    // SAFETY: a `sockaddr_ll` is integers.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: a live structure of the length that is told.
    let result = unsafe { libc::getsockname(socket.as_raw_fd(), (&raw mut address).cast(), &raw mut length) };
    (result == 0).then(|| u32::try_from(address.sll_ifindex).ok()).flatten().filter(|&index| index > 0)
}

/// Returns the packets dropped since the last call.
pub(crate) fn take_drops(socket: BorrowedFd<'_>) -> u64 {
    let mut stats = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
    let option = libc::PACKET_STATISTICS;
    // SAFETY: a live structure of the length that is told.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_PACKET, option, (&raw mut stats).cast(), &raw mut length)
    };
    if result < 0 { 0 } else { stats.tp_drops.into() }
}

/// Returns true if the descriptor is readable now (or has an error).
pub(crate) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one live `pollfd`.
    unsafe { libc::poll(&raw mut poll, 1, 0) > 0 }
}
