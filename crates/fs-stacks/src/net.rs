//! Sockets of either stack under one name, with tokio's methods.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
#[cfg(feature = "tls")]
use std::task::Waker;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Evaluates the expression with the socket of either stack.
macro_rules! either {
    ($socket:expr, $inner:ident => $do:expr) => {
        match $socket {
            Self::Fast($inner) => $do,
            Self::Kernel($inner) => $do,
        }
    };
}

/// Like [`either`] for a stream. A TLS stream uses the connection below it.
macro_rules! below {
    ($stream:expr, $inner:ident => $do:expr) => {
        match $stream {
            Self::Fast($inner) => $do,
            Self::Kernel($inner) => $do,
            #[cfg(feature = "tls")]
            Self::Tls(tls) => {
                let $inner = &tls.get_ref().0;
                $do
            }
            #[cfg(feature = "tls")]
            Self::TlsClient(tls) => {
                let $inner = &tls.get_ref().0;
                $do
            }
        }
    };
}

/// Like [`either`] for a stream's bytes. A TLS stream uses its plain bytes.
macro_rules! bytes {
    ($stream:expr, $inner:ident => $do:expr) => {
        match $stream {
            Self::Fast($inner) => $do,
            Self::Kernel($inner) => $do,
            #[cfg(feature = "tls")]
            Self::Tls($inner) => $do,
            #[cfg(feature = "tls")]
            Self::TlsClient($inner) => $do,
        }
    };
}

/// A TCP listener of one core.
#[derive(Debug)]
pub enum Listener {
    /// A core's own listener, one of several at the address.
    Fast(fastsock::local::TcpListener),
    /// A kernel listener, one of several with SO_REUSEPORT.
    Kernel(tokio::net::TcpListener),
}

impl Listener {
    /// Waits for the next connection.
    ///
    /// # Errors
    /// The errors of `accept(2)`; see [`accept_error_is_fatal`].
    pub async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        match self {
            Self::Fast(listener) => listener.accept().await.map(|(stream, from)| (Stream::Fast(stream), from)),
            Self::Kernel(listener) => listener.accept().await.map(|(stream, from)| (Stream::Kernel(stream), from)),
        }
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// If the socket is no longer valid.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        either!(self, l => l.local_addr())
    }

    /// Returns another descriptor of the kernel's listening socket, for another process. `None` if
    /// there is none.
    ///
    /// # Errors
    /// If no descriptor is free.
    pub fn kernel_socket(&self) -> io::Result<Option<OwnedFd>> {
        match self {
            Self::Fast(listener) => Ok(listener.kernel_socket()?.map(OwnedFd::from)),
            Self::Kernel(listener) => listener.as_fd().try_clone_to_owned().map(Some),
        }
    }

    /// Leaves new connections to another process that has the kernel's socket. Returns true if
    /// handshakes that have begun are still accepted here.
    pub fn leave(&self) -> bool {
        match self {
            Self::Fast(listener) => {
                listener.leave();
                true
            }
            Self::Kernel(_) => false,
        }
    }
}

/// Returns true if a listener cannot continue after this error of `accept`. A connection that died
/// in the queue, one that a firewall rule forbids (EPERM), or a lack of descriptors or memory, only
/// affects one connection; the caller should continue after a pause.
pub fn accept_error_is_fatal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBADF | libc::EINVAL | libc::ENOTSOCK | libc::EOPNOTSUPP | libc::EFAULT))
}

/// Returns true if a connection failed because this host lacks descriptors, memory or ports. It
/// says nothing about the peer.
pub fn is_own_shortage(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM | libc::EADDRNOTAVAIL)
    )
}

/// A TCP connection.
#[derive(Debug)]
pub enum Stream {
    /// Ours.
    Fast(fastsock::local::TcpStream),
    /// The kernel's.
    Kernel(tokio::net::TcpStream),
    /// A client's TLS stream. Writes may leave records that only a flush sends. In a box, because
    /// it has a kilobyte and would make the other variants as large.
    #[cfg(feature = "tls")]
    Tls(Box<tokio_rustls::server::TlsStream<Stream>>),
    /// A TLS stream to a server, likewise.
    #[cfg(feature = "tls")]
    TlsClient(Box<tokio_rustls::client::TlsStream<Stream>>),
}

impl Stream {
    /// Disables Nagle's algorithm.
    ///
    /// # Errors
    /// The errors of `setsockopt(2)`.
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        below!(self, s => s.set_nodelay(on))
    }

    /// Makes a drop send RST instead of FIN, so that neither side keeps TIME-WAIT.
    ///
    /// # Errors
    ///
    /// Like `setsockopt(2)`.
    pub fn set_zero_linger(&self) -> io::Result<()> {
        below!(self, s => s.set_zero_linger())
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// The errors of `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        below!(self, s => s.local_addr())
    }

    /// Returns the peer's address.
    ///
    /// # Errors
    /// The errors of `getpeername(2)`, if the connection is gone.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        below!(self, s => s.peer_addr())
    }

    /// Returns the name that a TLS client has asked for, or `None` without TLS.
    pub fn server_name(&self) -> Option<Option<&str>> {
        match self {
            Self::Fast(_) | Self::Kernel(_) => None,
            #[cfg(feature = "tls")]
            Self::Tls(tls) => Some(tls.get_ref().1.server_name()),
            #[cfg(feature = "tls")]
            Self::TlsClient(_) => None,
        }
    }

    /// Returns the protocol that the two sides of TLS have agreed on (ALPN), if there is one.
    pub fn protocol(&self) -> Option<&[u8]> {
        match self {
            Self::Fast(_) | Self::Kernel(_) => None,
            #[cfg(feature = "tls")]
            Self::Tls(tls) => tls.get_ref().1.alpn_protocol(),
            #[cfg(feature = "tls")]
            Self::TlsClient(tls) => tls.get_ref().1.alpn_protocol(),
        }
    }

    /// Waits until a read would not block (data, end of stream or an error).
    ///
    /// # Errors
    /// If the runtime is shutting down.
    pub async fn readable(&self) -> io::Result<()> {
        poll_fn(|cx| self.poll_read_ready(cx)).await
    }

    /// Waits for bytes and copies some without consuming them. With TLS these are bytes of the
    /// connection below it. 0 is the end of the stream.
    ///
    /// # Errors
    /// The errors of `recv(2)`.
    pub async fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        let mut buf = ReadBuf::new(buf);
        poll_fn(|cx| self.poll_peek(cx, &mut buf)).await
    }

    /// Like [`Stream::peek`], for hand-written futures. One task at a time can wait.
    pub(crate) fn poll_peek(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<usize>> {
        below!(self, s => s.poll_peek(cx, buf))
    }

    /// Waits until a write would not block.
    ///
    /// # Errors
    /// If the runtime is shutting down.
    pub async fn writable(&self) -> io::Result<()> {
        poll_fn(|cx| self.poll_write_ready(cx)).await
    }

    /// Like [`Stream::readable`], for hand-written futures. One task at a time can wait. With TLS,
    /// only a part of a record may have arrived, and a read then waits for the rest.
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        #[cfg(feature = "tls")]
        if let Self::Tls(tls) = self
            && !tls.get_ref().1.wants_read()
        {
            // TLS has decrypted bytes or seen the end, so nothing more need arrive.
            return Poll::Ready(Ok(()));
        }
        #[cfg(feature = "tls")]
        if let Self::TlsClient(tls) = self
            && !tls.get_ref().1.wants_read()
        {
            return Poll::Ready(Ok(()));
        }
        below!(self, s => s.poll_read_ready(cx))
    }

    /// Like [`Stream::writable`], for hand-written futures. One task at a time can wait.
    pub fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        below!(self, s => s.poll_write_ready(cx))
    }

    /// Moves up to `most` received bytes to `to` without a copy. Returns the number of bytes. 0: nothing
    /// can be moved so; read and write instead. Pending until `to` has room.
    pub fn poll_forward(&self, cx: &mut Context<'_>, to: &Stream, most: usize) -> Poll<usize> {
        match (self, to) {
            (Self::Fast(from), Self::Fast(to)) => from.poll_forward(cx, to, most),
            _ => Poll::Ready(0),
        }
    }

    /// Reads available bytes. `Ok(0)` is the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` if there are none, else as `recv(2)`. `Unsupported` with TLS, whose state a
    /// shared reference cannot change.
    pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Fast(stream) => stream.try_read(buf),
            Self::Kernel(stream) => stream.try_read(buf),
            #[cfg(feature = "tls")]
            Self::Tls(_) | Self::TlsClient(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Waits for bytes and passes them to `take`. An empty slice is the end of the stream. They are
    /// in `scratch` only while `take` runs, so that one buffer serves all connections of a core.
    ///
    /// # Errors
    /// The errors of `recv(2)`.
    pub async fn read_with<R>(
        &mut self,
        scratch: &RefCell<Vec<u8>>,
        mut take: impl FnMut(&[u8]) -> R,
    ) -> io::Result<R> {
        poll_fn(|cx| {
            let mut scratch = scratch.borrow_mut();
            let mut buf = ReadBuf::new(&mut scratch);
            ready!(Pin::new(&mut *self).poll_read(cx, &mut buf))?;
            Poll::Ready(Ok(take(buf.filled())))
        })
        .await
    }

    /// Writes as much as fits.
    ///
    /// # Errors
    /// `WouldBlock` if nothing fits, else as `send(2)`. `Unsupported` with TLS, as
    /// [`Stream::try_read`].
    pub fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Self::Fast(stream) => stream.try_write(buf),
            Self::Kernel(stream) => stream.try_write(buf),
            #[cfg(feature = "tls")]
            Self::Tls(_) | Self::TlsClient(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Returns true if the stream must send a message before its FIN (TLS close_notify): the peer
    /// takes a FIN alone for a truncation.
    pub(crate) fn has_goodbye(&self) -> bool {
        self.is_tls()
    }

    /// Returns true if the stream carries TLS, so that writes may leave records that only a flush
    /// sends.
    #[inline]
    pub fn is_tls(&self) -> bool {
        !matches!(self, Self::Fast(_) | Self::Kernel(_))
    }

    /// Returns true if nothing has arrived that a read would return: no byte, no end, no error.
    pub fn is_quiet(&mut self) -> bool {
        match self {
            Self::Fast(_) | Self::Kernel(_) => {
                self.try_read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
            }
            // Reads messages of TLS itself, such as session tickets. The next reader's waker
            // replaces this one.
            #[cfg(feature = "tls")]
            Self::Tls(_) | Self::TlsClient(_) => {
                let mut byte = [0];
                Pin::new(self)
                    .poll_read(&mut Context::from_waker(Waker::noop()), &mut ReadBuf::new(&mut byte))
                    .is_pending()
            }
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        bytes!(self.get_mut(), s => Pin::new(s).poll_read(cx, buf))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        bytes!(self.get_mut(), s => Pin::new(s).poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        bytes!(self.get_mut(), s => Pin::new(s).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        bytes!(self, s => s.is_write_vectored())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        bytes!(self.get_mut(), s => Pin::new(s).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        bytes!(self.get_mut(), s => Pin::new(s).poll_shutdown(cx))
    }
}

/// A UDP socket.
#[derive(Debug)]
pub enum UdpSocket {
    /// Ours.
    Fast(fastsock::local::UdpSocket),
    /// The kernel's.
    Kernel(tokio::net::UdpSocket),
}

impl UdpSocket {
    /// Receives one datagram. Returns its length (bytes beyond `buf` are lost) and its sender.
    ///
    /// # Errors
    /// The errors of `recvfrom(2)`.
    pub async fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        either!(self, s => s.recv_from(buf).await)
    }

    /// Sends one datagram.
    ///
    /// # Errors
    /// The errors of `sendto(2)`.
    pub async fn send_to(&self, buf: &[u8], to: SocketAddr) -> io::Result<usize> {
        either!(self, s => s.send_to(buf, to).await)
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// The errors of `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        either!(self, s => s.local_addr())
    }
}

/// Runs `work`, but not longer than `limit`.
///
/// # Errors
/// `TimedOut` if the limit is reached, else what `work` returns.
pub async fn within<T>(limit: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    match tokio::time::timeout(limit, work).await {
        Ok(result) => result,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {limit:?}"))),
    }
}
