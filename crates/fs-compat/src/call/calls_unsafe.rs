//! The socket calls.
#![allow(unsafe_code)]

use crate::socket2::slice_unsafe::MaybeUninitSlice;
use crate::socket2::sock_addr_unsafe::SockAddr;
use crate::socket2::sock_addr_unsafe::SockAddrStorage;
use std::ffi::c_int;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// The most bytes that Linux moves in one call (`MAX_RW_COUNT`).
const TRANSFER_MAX: usize = 0x7fff_f000;

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn check_len(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Takes ownership of a descriptor that a call of this module has made.
fn owned(fd: RawFd) -> OwnedFd {
    // SAFETY: a call that succeeded returned it, and nothing else closes it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

pub(crate) fn socket(domain: c_int, ty: c_int, protocol: c_int) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    check(unsafe { libc::socket(domain, ty, protocol) }).map(owned)
}

pub(crate) fn socketpair(domain: c_int, ty: c_int, protocol: c_int) -> io::Result<[OwnedFd; 2]> {
    let mut fds = [-1; 2];
    // SAFETY: `fds` is an array of two ints, as socketpair(2) asks.
    check(unsafe { libc::socketpair(domain, ty, protocol, fds.as_mut_ptr()) })?;
    Ok(fds.map(owned))
}

/// Returns another descriptor of the same socket, with FD_CLOEXEC.
pub(crate) fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers. 3: std never returns descriptors 0, 1 and 2 either.
    check(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) }).map(owned)
}

pub(crate) fn bind(fd: RawFd, addr: &SockAddr) -> io::Result<()> {
    // SAFETY: the address is `len` bytes of initialised storage.
    check(unsafe { libc::bind(fd, addr.as_ptr().cast(), addr.len()) }).map(drop)
}

pub(crate) fn connect(fd: RawFd, addr: &SockAddr) -> io::Result<()> {
    // SAFETY: the address is `len` bytes of initialised storage.
    check(unsafe { libc::connect(fd, addr.as_ptr().cast(), addr.len()) }).map(drop)
}

pub(crate) fn listen(fd: RawFd, backlog: c_int) -> io::Result<()> {
    // SAFETY: takes no pointers.
    check(unsafe { libc::listen(fd, backlog) }).map(drop)
}

pub(crate) fn accept(fd: RawFd, flags: c_int) -> io::Result<(OwnedFd, SockAddr)> {
    // SAFETY: storage and length are those of a whole `sockaddr_storage`.
    let (accepted, addr) = with_addr(|storage, len| check(unsafe { libc::accept4(fd, storage.cast(), len, flags) }))?;
    Ok((owned(accepted), addr))
}

pub(crate) fn local_addr(fd: RawFd) -> io::Result<SockAddr> {
    // SAFETY: storage and length are those of a whole `sockaddr_storage`.
    Ok(with_addr(|storage, len| check(unsafe { libc::getsockname(fd, storage.cast(), len) }))?.1)
}

pub(crate) fn peer_addr(fd: RawFd) -> io::Result<SockAddr> {
    // SAFETY: storage and length are those of a whole `sockaddr_storage`.
    Ok(with_addr(|storage, len| check(unsafe { libc::getpeername(fd, storage.cast(), len) }))?.1)
}

pub(crate) fn shutdown(fd: RawFd, how: std::net::Shutdown) -> io::Result<()> {
    let how = match how {
        std::net::Shutdown::Read => libc::SHUT_RD,
        std::net::Shutdown::Write => libc::SHUT_WR,
        std::net::Shutdown::Both => libc::SHUT_RDWR,
    };
    // SAFETY: takes no pointers.
    check(unsafe { libc::shutdown(fd, how) }).map(drop)
}

pub(crate) fn recv(fd: RawFd, buf: &mut [MaybeUninit<u8>], flags: c_int) -> io::Result<usize> {
    // SAFETY: the buffer is writable for its length; nothing is read from it.
    check_len(unsafe { libc::recv(fd, buf.as_mut_ptr().cast(), buf.len().min(TRANSFER_MAX), flags) })
}

/// Calls [`recv`] with initialized memory.
pub(crate) fn recv_init(fd: RawFd, buf: &mut [u8], flags: c_int) -> io::Result<usize> {
    recv(fd, uninit(buf), flags)
}

pub(crate) fn recv_from(fd: RawFd, buf: &mut [MaybeUninit<u8>], flags: c_int) -> io::Result<(usize, SockAddr)> {
    let (start, len) = (buf.as_mut_ptr(), buf.len().min(TRANSFER_MAX));
    with_addr(|storage, addr_len| {
        // SAFETY: the buffer is writable for its length; storage and length are those of a whole
        // `sockaddr_storage`.
        check_len(unsafe { libc::recvfrom(fd, start.cast(), len, flags, storage.cast(), addr_len) })
    })
}

/// Calls [`recv_from`] with initialized memory.
pub(crate) fn recv_from_init(fd: RawFd, buf: &mut [u8], flags: c_int) -> io::Result<(usize, SockAddr)> {
    recv_from(fd, uninit(buf), flags)
}

pub(crate) fn send(fd: RawFd, buf: &[u8], flags: c_int) -> io::Result<usize> {
    // SAFETY: the buffer is readable for its length.
    check_len(unsafe { libc::send(fd, buf.as_ptr().cast(), buf.len().min(TRANSFER_MAX), flags) })
}

pub(crate) fn send_to(fd: RawFd, buf: &[u8], addr: &SockAddr, flags: c_int) -> io::Result<usize> {
    let len = buf.len().min(TRANSFER_MAX);
    // SAFETY: the buffer is readable for its length; the address is `len` bytes of initialised
    // storage.
    check_len(unsafe { libc::sendto(fd, buf.as_ptr().cast(), len, flags, addr.as_ptr().cast(), addr.len()) })
}

/// The arguments of sendmsg(2).
pub(crate) struct Outgoing<'a> {
    pub(crate) addr: Option<&'a SockAddr>,
    pub(crate) bufs: &'a [IoSlice<'a>],
    pub(crate) control: &'a [u8],
}

pub(crate) fn sendmsg(fd: RawFd, message: &Outgoing<'_>, flags: c_int) -> io::Result<usize> {
    let mut header = header();
    if let Some(addr) = message.addr {
        header.msg_name = addr.as_ptr().cast_mut().cast();
        header.msg_namelen = addr.len();
    }
    header.msg_iov = message.bufs.as_ptr().cast_mut().cast();
    header.msg_iovlen = message.bufs.len();
    if !message.control.is_empty() {
        header.msg_control = message.control.as_ptr().cast_mut().cast();
        header.msg_controllen = message.control.len();
    }
    // SAFETY: every part of the header is borrowed for this call, with its length, and only read by
    // it; `IoSlice` has the layout of `iovec`.
    check_len(unsafe { libc::sendmsg(fd, &header, flags) })
}

/// The arguments and results of recvmsg(2).
pub(crate) struct Incoming<'a, 'b> {
    pub(crate) addr: Option<&'a mut SockAddr>,
    pub(crate) bufs: &'a mut [MaybeUninitSlice<'b>],
    pub(crate) control: &'a mut [MaybeUninit<u8>],
}

/// Everything that recvmsg(2) returns except the bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Received {
    pub(crate) len: usize,
    pub(crate) flags: c_int,
    pub(crate) control_len: usize,
}

pub(crate) fn recvmsg(fd: RawFd, message: &mut Incoming<'_, '_>, flags: c_int) -> io::Result<Received> {
    let mut storage = SockAddrStorage::zeroed();
    let mut header = header();
    if message.addr.is_some() {
        header.msg_name = (&raw mut storage).cast();
        header.msg_namelen = storage.size_of();
    }
    header.msg_iov = message.bufs.as_mut_ptr().cast();
    header.msg_iovlen = message.bufs.len();
    if !message.control.is_empty() {
        header.msg_control = message.control.as_mut_ptr().cast();
        header.msg_controllen = message.control.len();
    }
    // SAFETY: every part of the header is borrowed for this call, with its length;
    // `MaybeUninitSlice` has the layout of `iovec`; recvmsg(2) only writes to the buffers.
    let len = check_len(unsafe { libc::recvmsg(fd, &mut header, flags) })?;
    if let Some(addr) = message.addr.as_deref_mut() {
        *addr = SockAddr::from_parts(storage, header.msg_namelen);
    }
    Ok(Received { len, flags: header.msg_flags, control_len: header.msg_controllen })
}

/// Calls [`recvmsg`] with initialized buffers, without address and control data.
pub(crate) fn recv_vectored_init(fd: RawFd, bufs: &mut [io::IoSliceMut<'_>], flags: c_int) -> io::Result<usize> {
    // SAFETY: both types have the layout of `iovec`, and recvmsg(2) never makes initialised memory
    // uninitialised.
    let bufs = unsafe { &mut *(std::ptr::from_mut(bufs) as *mut [MaybeUninitSlice<'_>]) };
    Ok(recvmsg(fd, &mut Incoming { addr: None, bufs, control: &mut [] }, flags)?.len)
}

/// Reads an option and returns how many bytes the kernel wrote.
pub(crate) fn option(fd: RawFd, level: c_int, name: c_int, value: &mut [u8]) -> io::Result<usize> {
    let mut len = value.len() as libc::socklen_t;
    // SAFETY: the value is writable for `len` bytes.
    check(unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &mut len) })?;
    Ok(len as usize)
}

pub(crate) fn set_option(fd: RawFd, level: c_int, name: c_int, value: &[u8]) -> io::Result<()> {
    let len = value.len() as libc::socklen_t;
    // SAFETY: the value is readable for `len` bytes.
    check(unsafe { libc::setsockopt(fd, level, name, value.as_ptr().cast(), len) }).map(drop)
}

/// SO_ATTACH_FILTER, whose value points to the program.
pub(crate) fn attach_filter(fd: RawFd, filters: &[libc::sock_filter]) -> io::Result<()> {
    let len = u16::try_from(filters.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let program = libc::sock_fprog { len, filter: filters.as_ptr().cast_mut() };
    let size = size_of::<libc::sock_fprog>() as libc::socklen_t;
    // SAFETY: the program is borrowed for the call, which copies it.
    check(unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, (&raw const program).cast(), size) })
        .map(drop)
}

/// Reads an option whose value is an address.
pub(crate) fn addr_option(fd: RawFd, level: c_int, name: c_int) -> io::Result<SockAddr> {
    // SAFETY: storage and length are those of a whole `sockaddr_storage`.
    Ok(with_addr(|storage, len| check(unsafe { libc::getsockopt(fd, level, name, storage.cast(), len) }))?.1)
}

/// Returns the status flags (`F_GETFL`) or the descriptor flags (`F_GETFD`).
pub(crate) fn flags(fd: RawFd, command: c_int) -> io::Result<c_int> {
    // SAFETY: F_GETFL and F_GETFD take no argument.
    check(unsafe { libc::fcntl(fd, command) })
}

/// Sets or clears one flag, which `get` reads and `set` writes.
pub(crate) fn set_flag(fd: RawFd, get: c_int, set: c_int, flag: c_int, on: bool) -> io::Result<()> {
    let old = flags(fd, get)?;
    let new = if on { old | flag } else { old & !flag };
    if new == old {
        return Ok(());
    }
    // SAFETY: F_SETFL and F_SETFD take an int.
    check(unsafe { libc::fcntl(fd, set, new) }).map(drop)
}

pub(crate) fn set_nonblocking(fd: RawFd, on: bool) -> io::Result<()> {
    let mut value = c_int::from(on);
    // SAFETY: FIONBIO reads an int.
    check(unsafe { libc::ioctl(fd, libc::FIONBIO, &raw mut value) }).map(drop)
}

/// Waits up to `timeout` ms (-1: for ever) and returns the ready part of `events`, or 0 after the
/// time-out.
pub(crate) fn poll(fd: RawFd, events: i16, timeout: c_int) -> io::Result<i16> {
    let mut one = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: one `pollfd`.
    check(unsafe { libc::poll(&mut one, 1, timeout) })?;
    Ok(one.revents)
}

/// Sends `count` bytes of `file` that start at `offset`.
pub(crate) fn sendfile(fd: RawFd, file: RawFd, offset: usize, count: Option<usize>) -> io::Result<usize> {
    let mut offset = libc::off_t::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: the offset is read and written by the call only.
    check_len(unsafe { libc::sendfile(fd, file, &mut offset, count.unwrap_or(TRANSFER_MAX)) })
}

/// Calls `f` with an empty address to fill.
fn with_addr<T>(
    f: impl FnOnce(*mut SockAddrStorage, &mut libc::socklen_t) -> io::Result<T>,
) -> io::Result<(T, SockAddr)> {
    let mut storage = SockAddrStorage::zeroed();
    let mut len = storage.size_of();
    let value = f(&raw mut storage, &mut len)?;
    Ok((value, SockAddr::from_parts(storage, len)))
}

fn uninit(buf: &mut [u8]) -> &mut [MaybeUninit<u8>] {
    // SAFETY: same layout. The functions that get this slice (recv and its variants) never write
    // uninitialized bytes.
    unsafe { &mut *(std::ptr::from_mut(buf) as *mut [MaybeUninit<u8>]) }
}

fn header() -> libc::msghdr {
    // SAFETY: all zero is a message without name, buffers and control data.
    unsafe { std::mem::zeroed() }
}
