//! [`Socket`]: creating, binding, connecting; bytes and messages.

use super::message::MsgHdr;
use super::message::MsgHdrMut;
use super::message::RecvFlags;
use super::names::Domain;
use super::names::Protocol;
use super::names::Type;
use super::slice_unsafe::MaybeUninitSlice;
use super::sock_addr_unsafe::SockAddr;
use crate::call;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;
use std::{fmt, slice};

/// A socket, closed when it is dropped; see [the module](super).
///
/// Each method makes the system call of its name and returns its error. Methods with `_raw` do not
/// set close-on-exec.
///
/// ```
/// use fs_compat::socket2::{Domain, Socket, Type};
///
/// let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
/// socket.set_reuse_address(true)?;
/// socket.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into())?;
/// assert!(socket.local_addr()?.as_socket().unwrap().port() > 0);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Socket {
    pub(super) handle: OwnedFd,
}

impl Socket {
    /// socket(2), close-on-exec.
    pub fn new(domain: Domain, ty: Type, protocol: Option<Protocol>) -> io::Result<Socket> {
        Self::new_raw(domain, ty.cloexec(), protocol)
    }

    /// socket(2).
    pub fn new_raw(domain: Domain, ty: Type, protocol: Option<Protocol>) -> io::Result<Socket> {
        let protocol = protocol.map_or(0, Protocol::raw);
        Ok(Socket { handle: call::socket(domain.raw(), ty.raw(), protocol)? })
    }

    /// socketpair(2), close-on-exec.
    pub fn pair(domain: Domain, ty: Type, protocol: Option<Protocol>) -> io::Result<(Socket, Socket)> {
        Self::pair_raw(domain, ty.cloexec(), protocol)
    }

    /// socketpair(2).
    pub fn pair_raw(domain: Domain, ty: Type, protocol: Option<Protocol>) -> io::Result<(Socket, Socket)> {
        let protocol = protocol.map_or(0, Protocol::raw);
        let [a, b] = call::socketpair(domain.raw(), ty.raw(), protocol)?;
        Ok((Socket { handle: a }, Socket { handle: b }))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.handle.as_raw_fd()
    }

    /// bind(2).
    pub fn bind(&self, address: &SockAddr) -> io::Result<()> {
        call::bind(self.fd(), address)
    }

    /// connect(2).
    pub fn connect(&self, address: &SockAddr) -> io::Result<()> {
        call::connect(self.fd(), address)
    }

    /// connect(2) that waits for at most `timeout`. The socket is blocking afterwards.
    ///
    /// # Errors
    ///
    /// `TimedOut` after `timeout` (the attempt continues), else those of connect(2).
    pub fn connect_timeout(&self, addr: &SockAddr, timeout: Duration) -> io::Result<()> {
        self.set_nonblocking(true)?;
        let result = self.connect(addr);
        self.set_nonblocking(false)?;
        match result {
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => call::wait_connected(self.fd(), timeout),
            other => other,
        }
    }

    /// listen(2).
    pub fn listen(&self, backlog: i32) -> io::Result<()> {
        call::listen(self.fd(), backlog)
    }

    /// accept4(2), close-on-exec.
    pub fn accept(&self) -> io::Result<(Socket, SockAddr)> {
        self.accept4(libc::SOCK_CLOEXEC)
    }

    /// accept(2).
    pub fn accept_raw(&self) -> io::Result<(Socket, SockAddr)> {
        self.accept4(0)
    }

    /// accept4(2) with SOCK_CLOEXEC, SOCK_NONBLOCK or neither.
    pub fn accept4(&self, flags: i32) -> io::Result<(Socket, SockAddr)> {
        let (handle, addr) = call::accept(self.fd(), flags)?;
        Ok((Socket { handle }, addr))
    }

    /// getsockname(2).
    pub fn local_addr(&self) -> io::Result<SockAddr> {
        call::local_addr(self.fd())
    }

    /// getpeername(2).
    pub fn peer_addr(&self) -> io::Result<SockAddr> {
        call::peer_addr(self.fd())
    }

    /// Returns another descriptor of the same socket, close-on-exec.
    pub fn try_clone(&self) -> io::Result<Socket> {
        Ok(Socket { handle: call::duplicate(self.fd())? })
    }

    /// Returns true if O_NONBLOCK is set.
    pub fn nonblocking(&self) -> io::Result<bool> {
        Ok(call::flags(self.fd(), libc::F_GETFL)? & libc::O_NONBLOCK != 0)
    }

    /// Sets O_NONBLOCK, which all descriptors of the socket share.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        call::set_flag(self.fd(), libc::F_GETFL, libc::F_SETFL, libc::O_NONBLOCK, nonblocking)
    }

    /// Sets FD_CLOEXEC of this descriptor.
    pub fn set_cloexec(&self, close_on_exec: bool) -> io::Result<()> {
        call::set_flag(self.fd(), libc::F_GETFD, libc::F_SETFD, libc::FD_CLOEXEC, close_on_exec)
    }

    /// shutdown(2).
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        call::shutdown(self.fd(), how)
    }
}

/// Receiving. As many bytes at the start of a buffer are initialized as the call returns.
impl Socket {
    /// recv(2).
    pub fn recv(&self, buf: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
        self.recv_with_flags(buf, 0)
    }

    /// recv(2) of urgent data.
    pub fn recv_out_of_band(&self, buf: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
        self.recv_with_flags(buf, libc::MSG_OOB)
    }

    /// recv(2) with MSG_*.
    pub fn recv_with_flags(&self, buf: &mut [MaybeUninit<u8>], flags: i32) -> io::Result<usize> {
        call::recv(self.fd(), buf, flags)
    }

    /// recvmsg(2) into several buffers.
    pub fn recv_vectored(&self, bufs: &mut [MaybeUninitSlice<'_>]) -> io::Result<(usize, RecvFlags)> {
        self.recv_vectored_with_flags(bufs, 0)
    }

    /// recvmsg(2) into several buffers, with MSG_*.
    pub fn recv_vectored_with_flags(
        &self,
        bufs: &mut [MaybeUninitSlice<'_>],
        flags: i32,
    ) -> io::Result<(usize, RecvFlags)> {
        let mut message = MsgHdrMut::new().with_buffers(bufs);
        let len = self.recvmsg(&mut message, flags)?;
        Ok((len, message.flags()))
    }

    /// recv(2) that leaves the bytes in the queue.
    pub fn peek(&self, buf: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
        self.recv_with_flags(buf, libc::MSG_PEEK)
    }

    /// recvfrom(2).
    pub fn recv_from(&self, buf: &mut [MaybeUninit<u8>]) -> io::Result<(usize, SockAddr)> {
        self.recv_from_with_flags(buf, 0)
    }

    /// recvfrom(2) with MSG_*.
    pub fn recv_from_with_flags(&self, buf: &mut [MaybeUninit<u8>], flags: i32) -> io::Result<(usize, SockAddr)> {
        call::recv_from(self.fd(), buf, flags)
    }

    /// recvmsg(2) into several buffers, with the sender's address.
    pub fn recv_from_vectored(&self, bufs: &mut [MaybeUninitSlice<'_>]) -> io::Result<(usize, RecvFlags, SockAddr)> {
        self.recv_from_vectored_with_flags(bufs, 0)
    }

    /// recvmsg(2) into several buffers, with the sender's address and MSG_*.
    pub fn recv_from_vectored_with_flags(
        &self,
        bufs: &mut [MaybeUninitSlice<'_>],
        flags: i32,
    ) -> io::Result<(usize, RecvFlags, SockAddr)> {
        let mut addr = SockAddr::from_bytes(&[]);
        let mut message = MsgHdrMut::new().with_addr(&mut addr).with_buffers(bufs);
        let len = self.recvmsg(&mut message, flags)?;
        let got = message.flags();
        Ok((len, got, addr))
    }

    /// recvfrom(2) that leaves the message in the queue.
    pub fn peek_from(&self, buf: &mut [MaybeUninit<u8>]) -> io::Result<(usize, SockAddr)> {
        self.recv_from_with_flags(buf, libc::MSG_PEEK)
    }

    /// Returns the sender of the next message, which stays in the queue.
    pub fn peek_sender(&self) -> io::Result<SockAddr> {
        Ok(self.peek_from(slice::from_mut(&mut MaybeUninit::uninit()))?.1)
    }

    /// recvmsg(2).
    pub fn recvmsg(&self, msg: &mut MsgHdrMut<'_, '_, '_>, flags: i32) -> io::Result<usize> {
        msg.receive(self.fd(), flags)
    }
}

/// Sending.
impl Socket {
    /// send(2).
    pub fn send(&self, buf: &[u8]) -> io::Result<usize> {
        self.send_with_flags(buf, 0)
    }

    /// send(2) with MSG_*.
    pub fn send_with_flags(&self, buf: &[u8], flags: i32) -> io::Result<usize> {
        call::send(self.fd(), buf, flags)
    }

    /// sendmsg(2) of several buffers.
    pub fn send_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send_vectored_with_flags(bufs, 0)
    }

    /// sendmsg(2) of several buffers, with MSG_*.
    pub fn send_vectored_with_flags(&self, bufs: &[IoSlice<'_>], flags: i32) -> io::Result<usize> {
        self.sendmsg(&MsgHdr::new().with_buffers(bufs), flags)
    }

    /// send(2) of urgent data.
    pub fn send_out_of_band(&self, buf: &[u8]) -> io::Result<usize> {
        self.send_with_flags(buf, libc::MSG_OOB)
    }

    /// sendto(2).
    pub fn send_to(&self, buf: &[u8], addr: &SockAddr) -> io::Result<usize> {
        self.send_to_with_flags(buf, addr, 0)
    }

    /// sendto(2) with MSG_*.
    pub fn send_to_with_flags(&self, buf: &[u8], addr: &SockAddr, flags: i32) -> io::Result<usize> {
        call::send_to(self.fd(), buf, addr, flags)
    }

    /// sendmsg(2) of several buffers to an address.
    pub fn send_to_vectored(&self, bufs: &[IoSlice<'_>], addr: &SockAddr) -> io::Result<usize> {
        self.send_to_vectored_with_flags(bufs, addr, 0)
    }

    /// sendmsg(2) of several buffers to an address, with MSG_*.
    pub fn send_to_vectored_with_flags(&self, bufs: &[IoSlice<'_>], addr: &SockAddr, flags: i32) -> io::Result<usize> {
        self.sendmsg(&MsgHdr::new().with_addr(addr).with_buffers(bufs), flags)
    }

    /// sendmsg(2).
    pub fn sendmsg(&self, msg: &MsgHdr<'_, '_, '_>, flags: i32) -> io::Result<usize> {
        msg.send(self.fd(), flags)
    }
}

impl Read for &Socket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        call::recv_init(self.fd(), buf, 0)
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        call::recv_vectored_init(self.fd(), bufs, 0)
    }
}

impl Write for &Socket {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.send(buf)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send_vectored(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Socket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buf)
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(bufs)
    }
}

impl Write for Socket {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.send(buf)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send_vectored(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket")
            .field("raw", &self.fd())
            .field("local_addr", &self.local_addr().ok())
            .field("peer_addr", &self.peer_addr().ok())
            .finish()
    }
}
