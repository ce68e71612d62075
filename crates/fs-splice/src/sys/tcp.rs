//! State of TCP sockets: `tcp(7)`, and TCP_REPAIR of `linux/tcp.h`, by which a socket is made and
//! closed without a packet.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

const TCP_REPAIR: libc::c_int = 19;
const TCP_REPAIR_QUEUE: libc::c_int = 20;
const TCP_QUEUE_SEQ: libc::c_int = 21;
const TCP_TIMESTAMP: libc::c_int = 24;

/// The mode in which a socket's state can be read and set.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Repair {
    On,
    /// `TCP_REPAIR_OFF_NO_WP`: without a window probe.
    Off,
}

/// One of a socket's queues.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Queue {
    /// `TCP_RECV_QUEUE`.
    Receive,
    /// `TCP_SEND_QUEUE`.
    Send,
}

/// Enters or leaves the mode. Needs CAP_NET_ADMIN.
pub(crate) fn repair(socket: BorrowedFd<'_>, mode: Repair) -> io::Result<()> {
    set(socket, TCP_REPAIR, if matches!(mode, Repair::On) { 1 } else { -1 })
}

fn choose(socket: BorrowedFd<'_>, queue: Queue) -> io::Result<()> {
    set(socket, TCP_REPAIR_QUEUE, if matches!(queue, Queue::Receive) { 1 } else { 2 })
}

/// Returns the sequence number behind the last byte of a queue: `rcv_nxt` or `write_seq`.
pub(crate) fn queue_end(socket: BorrowedFd<'_>, queue: Queue) -> io::Result<u32> {
    choose(socket, queue)?;
    get(socket, TCP_QUEUE_SEQ)
}

/// Sets the number of a socket that is not connected.
pub(crate) fn set_queue_end(socket: BorrowedFd<'_>, queue: Queue, end: u32) -> io::Result<()> {
    choose(socket, queue)?;
    set(socket, TCP_QUEUE_SEQ, end.cast_signed())
}

/// Returns the TSval that the socket would send now, in milliseconds; `None`: in microseconds.
pub(crate) fn stamp(socket: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    let stamp = get(socket, TCP_TIMESTAMP)?;
    // Since Linux 6.7 the lowest bit says which.
    Ok((stamp & 1 == 0 || !has_microseconds()).then_some(stamp))
}

fn has_microseconds() -> bool {
    static SINCE: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *SINCE.get_or_init(|| {
        aya::util::KernelVersion::current().is_ok_and(|now| now >= aya::util::KernelVersion::new(6, 7, 0))
    })
}

const TCP_NOTSENT_LOWAT: libc::c_int = 25;

/// Limits what a socket holds in either direction, so that a busy flow has a quiet moment: the window
/// that the peer gets, and bytes to be sent. `None` removes the limits.
pub(crate) fn throttle(socket: BorrowedFd<'_>, bytes: Option<u32>) -> io::Result<()> {
    const TCP_WINDOW_CLAMP: libc::c_int = 10;
    set(socket, TCP_WINDOW_CLAMP, bytes.map_or(i32::MAX, u32::cast_signed))?;
    // 0: as `net.ipv4.tcp_notsent_lowat`.
    set(socket, TCP_NOTSENT_LOWAT, bytes.map_or(0, u32::cast_signed))
}

/// Returns the limit of bytes to be sent. 0: none of its own.
#[cfg(test)]
pub(crate) fn unsent_limit(socket: BorrowedFd<'_>) -> io::Result<u32> {
    get(socket, TCP_NOTSENT_LOWAT)
}

/// Makes connect(2) choose this port, if the socket is bound to port 0 (`ip(7)`: IP_BIND_ADDRESS_NO_PORT and
/// IP_LOCAL_PORT_RANGE, Linux 6.3). A port outside of the host's range has no effect.
pub(crate) fn choose_port(socket: BorrowedFd<'_>, port: u16) -> io::Result<()> {
    const IP_LOCAL_PORT_RANGE: libc::c_int = 51;
    set_at(socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)?;
    set_at(socket, libc::IPPROTO_IP, IP_LOCAL_PORT_RANGE, (u32::from(port) << 16 | u32::from(port)).cast_signed())
}

fn set(socket: BorrowedFd<'_>, option: libc::c_int, value: i32) -> io::Result<()> {
    set_at(socket, libc::IPPROTO_TCP, option, value)
}

fn set_at(socket: BorrowedFd<'_>, level: libc::c_int, option: libc::c_int, value: i32) -> io::Result<()> {
    // SAFETY: the descriptor is open while borrowed, and the kernel reads an int.
    let result = unsafe {
        let length = size_of::<i32>() as libc::socklen_t;
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), length)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn get(socket: BorrowedFd<'_>, option: libc::c_int) -> io::Result<u32> {
    let (mut value, mut length) = (0_u32, size_of::<u32>() as libc::socklen_t);
    // SAFETY: the descriptor is open while borrowed, and `value` has room for `length` bytes.
    let result = unsafe {
        let to = (&raw mut value).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, option, to, &raw mut length)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

/// Returns the number of received bytes that were not read (SIOCINQ).
pub(crate) fn unread(socket: BorrowedFd<'_>) -> io::Result<u32> {
    count(socket, libc::FIONREAD)
}

/// Returns the number of bytes that the peer has not acknowledged (SIOCOUTQ).
pub(crate) fn outgoing(socket: BorrowedFd<'_>) -> io::Result<u32> {
    count(socket, libc::TIOCOUTQ)
}

fn count(socket: BorrowedFd<'_>, request: libc::c_ulong) -> io::Result<u32> {
    let mut number: libc::c_int = 0;
    // SAFETY: the descriptor is open while borrowed, and the kernel writes an int.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut number) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(number.cast_unsigned()) }
}

/// Returns true if an urgent byte has arrived that was not passed: it is not counted as unread.
pub(crate) fn has_urgent(socket: BorrowedFd<'_>) -> bool {
    let mut byte = 0_u8;
    let flags = libc::MSG_OOB | libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: the descriptor is open while borrowed, and there is room for one byte.
    let result = unsafe { libc::recv(socket.as_raw_fd(), (&raw mut byte).cast(), 1, flags) };
    // EINVAL: there is none.
    result >= 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EINVAL)
}

/// A part of `struct tcp_info`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Info {
    pub(crate) is_established: bool,
    /// The peer has ended its stream, and we have not (CLOSE-WAIT).
    pub(crate) is_ended: bool,
    pub(crate) stamps: bool,
    pub(crate) sack: bool,
    pub(crate) ecn: bool,
    /// The peer's window scale.
    pub(crate) scale_in: u8,
    /// Our window scale.
    pub(crate) scale_out: u8,
    /// Longest segment to the peer, without options.
    pub(crate) mss: u32,
    /// Longest segment that the peer may send, with options.
    pub(crate) advertised_mss: u32,
    /// Shortest round trip, in microseconds.
    pub(crate) min_rtt: u32,
    /// Bytes per second that the peer has acknowledged lately.
    pub(crate) rate: u64,
    /// The peer's window, in bytes.
    pub(crate) window_in: u32,
    /// Our window, in bytes (Linux 6.2).
    pub(crate) window_out: u32,
}

pub(crate) fn info(socket: BorrowedFd<'_>) -> io::Result<Info> {
    let (mut bytes, mut length) = ([0_u8; 240], 240);
    // SAFETY: the descriptor is open while borrowed, and the kernel writes at most `length` bytes.
    let result = unsafe {
        let to = bytes.as_mut_ptr().cast();
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, to, &raw mut length)
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    // Bit fields begin at the low end on little-endian processors.
    let [first, second] = [bytes[6] & 15, bytes[6] >> 4];
    let (scale_in, scale_out) = if cfg!(target_endian = "little") { (first, second) } else { (second, first) };
    let options = bytes[5];
    Ok(Info {
        is_established: bytes[0] == 1,
        is_ended: bytes[0] == 8,
        stamps: options & 1 != 0,
        sack: options & 2 != 0,
        ecn: options & 8 != 0,
        scale_in,
        scale_out,
        mss: word(16),
        advertised_mss: word(84),
        min_rtt: word(148),
        rate: u64::from_ne_bytes(std::array::from_fn(|at| bytes[160 + at])),
        window_in: word(228),
        window_out: word(232),
    })
}
