//! [`TcpListener`].

use super::addresses::each_addr;
use super::addresses::std_addr;
use super::options::delegate;
use super::tcp_stream::TcpStream;
use crate::call;
use crate::socket2::{Domain, Socket, Type};
use std::fmt;
use std::io;
use std::iter::FusedIterator;
use std::net::{SocketAddr, ToSocketAddrs};

/// The accept queue's length, as std asks for.
const BACKLOG: i32 = 128;

/// A TCP listener for any thread; see `std::net::TcpListener`.
///
/// ```
/// use fs_compat::blocking::TcpListener;
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let client = std::net::TcpStream::connect(listener.local_addr()?)?;
/// let (stream, peer) = listener.accept()?;
/// assert_eq!(peer, client.local_addr()?);
/// # drop(stream);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct TcpListener {
    pub(super) socket: Socket,
}

impl TcpListener {
    /// Binds the first of the addresses that is available, with SO_REUSEADDR, and listens there.
    pub fn bind<A: ToSocketAddrs>(addr: A) -> io::Result<TcpListener> {
        each_addr(addr, |addr| {
            let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
            socket.set_reuse_address(true)?;
            socket.bind(&addr.into())?;
            socket.listen(BACKLOG)?;
            Ok(TcpListener { socket })
        })
    }

    /// Returns the local address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        std_addr(&self.socket.local_addr()?)
    }

    /// Returns another handle of the same listener.
    pub fn try_clone(&self) -> io::Result<TcpListener> {
        Ok(TcpListener { socket: self.socket.try_clone()? })
    }

    /// Waits for a connection and returns it with the peer's address.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (socket, addr) = call::again(|| self.socket.accept())?;
        Ok((TcpStream { socket }, std_addr(&addr)?))
    }

    /// Returns an endless iterator over connections.
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming { listener: self }
    }

    /// Returns an endless iterator over connections.
    pub fn into_incoming(self) -> IntoIncoming {
        IntoIncoming { listener: self }
    }

    /// Sets O_NONBLOCK, which all clones share.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        call::set_nonblocking(self.socket.fd(), nonblocking)
    }
}

delegate! { TcpListener {
    /// IP_TTL.
    fn set_ttl(ttl: u32) -> () = set_ttl_v4;
    /// IP_TTL.
    fn ttl() -> u32 = ttl_v4;
    /// IPV6_V6ONLY. A bound socket cannot change it, and std has it as deprecated.
    fn set_only_v6(only_v6: bool) -> () = set_only_v6;
    /// IPV6_V6ONLY.
    fn only_v6() -> bool = only_v6;
    /// SO_ERROR: takes the pending error.
    fn take_error() -> Option<io::Error> = take_error;
}}

/// An endless iterator over the connections of a [`TcpListener`].
#[derive(Debug)]
pub struct Incoming<'a> {
    listener: &'a TcpListener,
}

impl Iterator for Incoming<'_> {
    type Item = io::Result<TcpStream>;

    fn next(&mut self) -> Option<io::Result<TcpStream>> {
        Some(self.listener.accept().map(|(stream, _)| stream))
    }
}

impl FusedIterator for Incoming<'_> {}

/// An endless iterator that owns a [`TcpListener`] and yields its connections.
#[derive(Debug)]
pub struct IntoIncoming {
    listener: TcpListener,
}

impl Iterator for IntoIncoming {
    type Item = io::Result<TcpStream>;

    fn next(&mut self) -> Option<io::Result<TcpStream>> {
        Some(self.listener.accept().map(|(stream, _)| stream))
    }
}

impl FusedIterator for IntoIncoming {}

impl fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("TcpListener");
        if let Ok(addr) = self.local_addr() {
            out.field("addr", &addr);
        }
        out.field("fd", &self.socket.fd()).finish()
    }
}
