//! epoll, poll and select over channels and kernel descriptors. The functions below are called by the rest of the crate.

use std::time::Duration;

use crate::{
    socket::Socket,
    types::{Fd, Ours},
};

/// A descriptor of a socket is being closed (or replaced by dup2); `last`: it was the last of this socket in this process.
/// Called before the number can be reused.
pub fn closed(_fd: Fd, _socket: &Socket, _last: bool) {}

/// What has to be watched for this socket has changed (connect made it a channel, listen a listener, a fall back to the kernel).
pub fn changed(_socket: &Socket) {}

/// A kernel descriptor that is no socket of ours is being closed or replaced: only called while any epoll instance is ours.
pub fn kernel_closed(_fd: Fd) {}

/// close_range: kernel descriptors of this range are being closed.
pub fn kernel_range_closed(_first: u32, _last: u32) {}

/// The last descriptor of an epoll instance in this process is gone.
pub fn epoll_closed(_index: u32) {}

/// In a forked child, before anything else.
pub fn forked() {}

/// An entry of poll(2), laid out as `struct pollfd`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct PollFd {
    /// The descriptor; below 0: ignored.
    pub fd: Fd,
    /// What is asked for (`POLL*`).
    pub events: i16,
    /// What is there.
    pub revents: i16,
}

/// An event of epoll(7), laid out as `struct epoll_event` (packed on x86-64).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[cfg_attr(target_arch = "x86_64", repr(packed))]
pub struct EpollEvent {
    /// `EPOLL*`.
    pub events: u32,
    /// The application's.
    pub data: u64,
}

/// `epoll_ctl(2)`. `None`: nothing of ours is concerned, make the kernel's call.
pub fn epoll_ctl(_set: Fd, _operation: i32, _fd: Fd, _event: Option<EpollEvent>) -> Ours<()> {
    None
}

/// `epoll_wait(2)` and its kin. `timeout` `None`: without end. `mask`: the signals blocked meanwhile.
pub fn epoll_wait(_set: Fd, _events: &mut [EpollEvent], _timeout: Option<Duration>, _mask: Option<u64>) -> Ours<usize> {
    None
}

/// `poll(2)`, `ppoll(2)`. `None`: no descriptor is ours.
pub fn poll(_fds: &mut [PollFd], _timeout: Option<Duration>, _mask: Option<u64>) -> Ours<usize> {
    None
}

/// `select(2)`, `pselect(2)`: sets of descriptors below `n` as bits. `None`: no descriptor in them is ours.
/// `left` is the time that is left afterwards.
pub fn select(
    _n: usize,
    _sets: [Option<&mut [u64]>; 3],
    _timeout: Option<Duration>,
    _mask: Option<u64>,
    _left: &mut Option<Duration>,
) -> Ours<usize> {
    None
}
