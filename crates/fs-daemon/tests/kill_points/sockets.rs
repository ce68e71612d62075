//! Sockets of fs-socket, or the kernel's where it says so, as a preloaded program has them.

use crate::process_unsafe::borrowed;
use fs_socket::sys::call;
use fs_socket::{Errno, IoVec, IoVecMut, flags};
use libc::{AF_INET, SO_RCVTIMEO, SOCK_STREAM, SOL_SOCKET};
use rustix::event::{PollFd, PollFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{IntoRawFd, RawFd};
use std::os::unix::net::UnixStream;

/// Whoever waits longer than this for its peer's end was forgotten. The kernel answers at once; the daemon's own patience is
/// below a second.
pub(crate) const PATIENCE: i64 = 6;

fn address(port: u16) -> [u8; 16] {
    let mut raw = [0; 16];
    raw[..2].copy_from_slice(&(AF_INET as u16).to_ne_bytes());
    raw[2..4].copy_from_slice(&port.to_be_bytes());
    raw[4..8].copy_from_slice(&[127, 0, 0, 1]);
    raw
}

pub(crate) fn listener() -> (RawFd, u16) {
    let fd = fs_socket::socket(AF_INET, SOCK_STREAM, 0).unwrap().unwrap();
    fs_socket::bind(fd, &address(0)).unwrap().unwrap();
    fs_socket::listen(fd, 16).unwrap().unwrap();
    let name = fs_socket::getsockname(fd).unwrap_or_else(|| call::getsockname(fd)).unwrap();
    let raw = name.as_bytes();
    (fd, u16::from_be_bytes([raw[2], raw[3]]))
}

pub(crate) fn connect(port: u16) -> Result<RawFd, Errno> {
    let fd = fs_socket::socket(AF_INET, SOCK_STREAM, 0).unwrap()?;
    let to = address(port);
    fs_socket::connect(fd, &to).unwrap_or_else(|| call::connect(fd, &to))?;
    Ok(fd)
}

pub(crate) fn is_ours(fd: RawFd) -> bool {
    fs_socket::descriptor::table::socket(fd).is_some_and(|socket| socket.watch() == fs_socket::socket::Watch::Channel)
}

pub(crate) fn accept(fd: RawFd) -> Result<RawFd, Errno> {
    fs_socket::accept4(fd, 0).unwrap_or_else(|| call::accept4(fd, 0)).map(|(fd, _)| fd)
}

pub(crate) fn send(fd: RawFd, bytes: &[u8]) -> Result<usize, Errno> {
    let sent = fs_socket::send(fd, &[IoVec::new(bytes)], flags::NOSIGNAL, None, &[]);
    sent.unwrap_or_else(|| call::sendto(fd, bytes, flags::NOSIGNAL))
}

/// What it takes without waiting.
pub(crate) fn send_now(fd: RawFd, bytes: &[u8]) -> Result<usize, Errno> {
    let how = flags::NOSIGNAL | flags::DONTWAIT;
    fs_socket::send(fd, &[IoVec::new(bytes)], how, None, &[]).unwrap_or_else(|| call::sendto(fd, bytes, how))
}

/// SO_RCVTIMEO.
pub(crate) fn wait_at_most(fd: RawFd, seconds: i64, microseconds: i64) {
    let mut time = [0; 16];
    time[..8].copy_from_slice(&seconds.to_ne_bytes());
    time[8..].copy_from_slice(&microseconds.to_ne_bytes());
    let set = fs_socket::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time);
    // It fails for a socket that has been reset: nothing is waited for there.
    let _ = set.unwrap_or_else(|| call::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time));
}

/// `EAGAIN`: nothing within [`PATIENCE`].
pub(crate) fn recv(fd: RawFd, room: &mut [u8]) -> Result<usize, Errno> {
    wait_at_most(fd, PATIENCE, 0);
    match fs_socket::recv(fd, &mut [IoVecMut::new(room)], 0) {
        Some(received) => received.map(|received| received.bytes),
        None => call::recvfrom(fd, room, 0),
    }
}

pub(crate) fn close(fd: RawFd) {
    let _closed = fs_socket::close(fd).unwrap_or_else(|| call::close(fd));
}

pub(crate) fn dup(fd: RawFd) -> Result<RawFd, Errno> {
    fs_socket::dup(fd).unwrap_or_else(|| call::dup(fd))
}

/// Reads to the end: what came, and `Err` if it did not end in time.
pub(crate) fn read_to_end(fd: RawFd) -> Result<Vec<u8>, String> {
    let mut all = Vec::new();
    let mut room = [0; 64];
    loop {
        match recv(fd, &mut room) {
            Ok(0) | Err(Errno::CONNRESET | Errno::PIPE | Errno::NOTCONN) => return Ok(all),
            Ok(len) => all.extend_from_slice(&room[..len]),
            Err(Errno::AGAIN) => return Err(format!("no end after {all:?}")),
            Err(error) => return Err(format!("{error} after {all:?}")),
        }
    }
}

/// Sends a descriptor over a Unix socket, as the library does it.
pub(crate) fn pass(out: &UnixStream, fd: RawFd) {
    fs_socket::descriptor::pass::share(&[fd]);
    let fds = [borrowed(fd)];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(out, &[IoSlice::new(b"f")], &mut control, SendFlags::NOSIGNAL).unwrap();
}

/// Waits for a message and leaves it there.
pub(crate) fn peek(from: &UnixStream) {
    let mut fds = [PollFd::new(from, PollFlags::IN)];
    let _ready = rustix::event::poll(&mut fds, None).unwrap();
}

/// Receives a descriptor from a Unix socket, as the library does it; `None`: the sender is gone.
pub(crate) fn receive(from: &UnixStream) -> Option<RawFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(from, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    })?;
    let fd = fd.into_raw_fd();
    fs_socket::descriptor::pass::claim(&[fd], false);
    Some(fd)
}
