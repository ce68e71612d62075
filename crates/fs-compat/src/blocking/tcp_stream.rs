//! [`TcpStream`].

use super::addresses::each_addr;
use super::addresses::std_addr;
use super::options::{delegate, set_timeout};
use crate::call;
use crate::socket2::{Domain, Socket, Type};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::time::Duration;
use std::{fmt, io::ErrorKind};

/// A TCP connection for any thread; see `std::net::TcpStream`. It is closed when the last clone is
/// dropped.
///
/// ```
/// use fs_compat::blocking::TcpStream;
/// use std::io::Write;
///
/// let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
/// let mut stream = TcpStream::connect(listener.local_addr()?)?;
/// stream.set_nodelay(true)?;
/// stream.write_all(b"hello")?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct TcpStream {
    pub(super) socket: Socket,
}

impl TcpStream {
    /// Connects to the first of the addresses that accepts the connection.
    pub fn connect<A: ToSocketAddrs>(addr: A) -> io::Result<TcpStream> {
        each_addr(addr, |addr| {
            let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
            loop {
                match socket.connect(&addr.into()) {
                    // A signal interrupted connect(2). The attempt continues, and the next
                    // connect(2) waits for it.
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) if error.raw_os_error() == Some(libc::EISCONN) => return Ok(TcpStream { socket }),
                    other => return other.map(|()| TcpStream { socket }),
                }
            }
        })
    }

    /// Connects within `timeout`.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a zero time-out, `TimedOut` after it.
    pub fn connect_timeout(addr: &SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
        let socket = Socket::new(Domain::for_address(*addr), Type::STREAM, None)?;
        if timeout.is_zero() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "cannot set a 0 duration timeout"));
        }
        socket.connect_timeout(&(*addr).into(), timeout)?;
        Ok(TcpStream { socket })
    }

    /// Returns the peer's address.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        std_addr(&self.socket.peer_addr()?)
    }

    /// Returns the local address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        std_addr(&self.socket.local_addr()?)
    }

    /// Returns another handle of the same connection.
    pub fn try_clone(&self) -> io::Result<TcpStream> {
        Ok(TcpStream { socket: self.socket.try_clone()? })
    }

    /// Sets how long a read waits before it fails with `WouldBlock`. `None` waits for ever.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        set_timeout(&self.socket, timeout, Socket::set_read_timeout)
    }

    /// Sets how long a write waits before it fails with `WouldBlock`. `None` waits for ever.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for zero.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        set_timeout(&self.socket, timeout, Socket::set_write_timeout)
    }

    /// Reads bytes and leaves them in the queue.
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        call::recv_init(self.socket.fd(), buf, libc::MSG_PEEK)
    }

    /// Sets O_NONBLOCK, which all clones share.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        call::set_nonblocking(self.socket.fd(), nonblocking)
    }
}

delegate! { TcpStream {
    /// Ends one direction or both.
    fn shutdown(how: Shutdown) -> () = shutdown;
    /// How long a read waits.
    fn read_timeout() -> Option<Duration> = read_timeout;
    /// How long a write waits.
    fn write_timeout() -> Option<Duration> = write_timeout;
    /// SO_LINGER: what closing does with unsent bytes.
    fn set_linger(linger: Option<Duration>) -> () = set_linger;
    /// SO_LINGER.
    fn linger() -> Option<Duration> = linger;
    /// TCP_NODELAY.
    fn set_nodelay(nodelay: bool) -> () = set_tcp_nodelay;
    /// TCP_NODELAY.
    fn nodelay() -> bool = tcp_nodelay;
    /// TCP_QUICKACK (`std::os::linux::net::TcpStreamExt`).
    fn set_quickack(quickack: bool) -> () = set_tcp_quickack;
    /// TCP_QUICKACK.
    fn quickack() -> bool = tcp_quickack;
    /// IP_TTL.
    fn set_ttl(ttl: u32) -> () = set_ttl_v4;
    /// IP_TTL.
    fn ttl() -> u32 = ttl_v4;
    /// SO_ERROR: takes the pending error.
    fn take_error() -> Option<io::Error> = take_error;
}}

impl Read for &TcpStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        call::recv_init(self.socket.fd(), buf, 0)
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        call::recv_vectored_init(self.socket.fd(), bufs, 0)
    }
}

impl Write for &TcpStream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        call::send(self.socket.fd(), buf, libc::MSG_NOSIGNAL)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.socket.send_vectored_with_flags(bufs, libc::MSG_NOSIGNAL)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for TcpStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buf)
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(bufs)
    }
}

impl Write for TcpStream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        (&*self).write(buf)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("TcpStream");
        if let Ok(addr) = self.local_addr() {
            out.field("addr", &addr);
        }
        if let Ok(peer) = self.peer_addr() {
            out.field("peer", &peer);
        }
        out.field("fd", &self.socket.fd()).finish()
    }
}
