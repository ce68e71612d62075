//! The halves of a [`TcpStream`].

use super::tcp_stream::TcpStream;
use bytes::BufMut;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};

/// The reading half of [`TcpStream::split`].
///
/// ```no_run
/// # async fn with_a_runtime(mut stream: fastsock::net::TcpStream) -> std::io::Result<()> {
/// let (mut reader, mut writer) = stream.split();
/// tokio::io::copy(&mut reader, &mut writer).await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct ReadHalf<'a>(&'a TcpStream);

/// The writing half of [`TcpStream::split`].
///
/// ```no_run
/// use tokio::io::AsyncWriteExt;
///
/// # async fn with_a_runtime(mut stream: fastsock::net::TcpStream) -> std::io::Result<()> {
/// let (_reader, mut writer) = stream.split();
/// writer.write_all(b"the last word").await?;
/// writer.shutdown().await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct WriteHalf<'a>(&'a TcpStream);

/// The reading half of [`TcpStream::into_split`].
///
/// ```no_run
/// use tokio::io::AsyncWriteExt;
///
/// # async fn with_a_runtime(stream: fastsock::net::TcpStream) -> std::io::Result<()> {
/// let (mut reader, mut writer) = stream.into_split();
/// tokio::spawn(async move { tokio::io::copy(&mut reader, &mut tokio::io::sink()).await });
/// writer.write_all(b"hello").await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct OwnedReadHalf(Arc<TcpStream>);

/// The writing half of [`TcpStream::into_split`]. Dropping it sends FIN.
///
/// ```no_run
/// use tokio::io::AsyncReadExt;
///
/// # async fn with_a_runtime(stream: fastsock::net::TcpStream) -> std::io::Result<()> {
/// let (mut reader, writer) = stream.into_split();
/// drop(writer);
/// let mut rest = Vec::new();
/// reader.read_to_end(&mut rest).await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct OwnedWriteHalf {
    stream: Arc<TcpStream>,
    shutdown_on_drop: bool,
}

/// The error of `reunite` when the halves belong to different connections.
#[derive(Debug)]
pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

impl std::fmt::Display for ReuniteError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("tried to reunite halves that are not from the same connection")
    }
}

impl std::error::Error for ReuniteError {}

impl TcpStream {
    /// Splits into two halves that borrow the connection.
    pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        (ReadHalf(self), WriteHalf(self))
    }

    /// Splits into two halves that share the connection. Dropping the write half sends FIN.
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        let stream = Arc::new(self);
        (OwnedReadHalf(stream.clone()), OwnedWriteHalf { stream, shutdown_on_drop: true })
    }
}

impl OwnedReadHalf {
    /// Joins the two halves of one connection again.
    pub fn reunite(self, other: OwnedWriteHalf) -> Result<TcpStream, ReuniteError> {
        if !Arc::ptr_eq(&self.0, &other.stream) {
            return Err(ReuniteError(self, other));
        }
        other.forget();
        // Only the two halves ever own it.
        Ok(Arc::into_inner(self.0).expect("a split connection has two owners"))
    }
}

impl OwnedWriteHalf {
    /// See [`OwnedReadHalf::reunite`].
    pub fn reunite(self, other: OwnedReadHalf) -> Result<TcpStream, ReuniteError> {
        other.reunite(self)
    }

    /// Drops the half without sending FIN.
    pub fn forget(mut self) {
        self.shutdown_on_drop = false;
    }
}

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        if self.shutdown_on_drop {
            // An error means that the connection is over already.
            let _ = self.stream.shut();
        }
    }
}

macro_rules! both_halves {
    ($half:ty, $self:ident => $stream:expr) => {
        impl $half {
            /// Returns the local address.
            pub fn local_addr(&$self) -> io::Result<SocketAddr> {
                $stream.local_addr()
            }

            /// Returns the peer's address.
            pub fn peer_addr(&$self) -> io::Result<SocketAddr> {
                $stream.peer_addr()
            }

            /// See [`TcpStream::ready`].
            pub async fn ready(&$self, interest: Interest) -> io::Result<Ready> {
                $stream.ready(interest).await
            }
        }
    };
}

macro_rules! read_half {
    ($half:ty, $self:ident => $stream:expr) => {
        both_halves!($half, $self => $stream);

        impl $half {
            /// See [`TcpStream::readable`].
            pub async fn readable(&$self) -> io::Result<()> {
                $stream.readable().await
            }

            /// See [`TcpStream::try_read`].
            pub fn try_read(&$self, buf: &mut [u8]) -> io::Result<usize> {
                $stream.try_read(buf)
            }

            /// See [`TcpStream::try_read_vectored`].
            pub fn try_read_vectored(&$self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
                $stream.try_read_vectored(bufs)
            }

            /// See [`TcpStream::try_read_buf`].
            pub fn try_read_buf<B: BufMut>(&$self, buf: &mut B) -> io::Result<usize> {
                $stream.try_read_buf(buf)
            }

            /// See [`TcpStream::peek`].
            pub async fn peek(&mut $self, buf: &mut [u8]) -> io::Result<usize> {
                $stream.peek(buf).await
            }

            /// See [`TcpStream::poll_peek`].
            pub fn poll_peek(&mut $self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<usize>> {
                $stream.poll_peek(cx, buf)
            }
        }

        impl AsyncRead for $half {
            fn poll_read($self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
                $stream.poll_recv(cx, buf)
            }
        }
    };
}

macro_rules! write_half {
    ($half:ty, $self:ident => $stream:expr) => {
        both_halves!($half, $self => $stream);

        impl $half {
            /// See [`TcpStream::writable`].
            pub async fn writable(&$self) -> io::Result<()> {
                $stream.writable().await
            }

            /// See [`TcpStream::try_write`].
            pub fn try_write(&$self, buf: &[u8]) -> io::Result<usize> {
                $stream.try_write(buf)
            }

            /// See [`TcpStream::try_write_vectored`].
            pub fn try_write_vectored(&$self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
                $stream.try_write_vectored(bufs)
            }
        }

        impl AsyncWrite for $half {
            fn poll_write($self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
                $stream.poll_send(cx, buf)
            }

            fn poll_write_vectored(
                $self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bufs: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                $stream.poll_send_vectored(cx, bufs)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn poll_shutdown($self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready($stream.shut())
            }
        }
    };
}

read_half!(ReadHalf<'_>, self => self.0);
read_half!(OwnedReadHalf, self => self.0);
write_half!(WriteHalf<'_>, self => self.0);
write_half!(OwnedWriteHalf, self => self.stream);

impl AsRef<TcpStream> for ReadHalf<'_> {
    fn as_ref(&self) -> &TcpStream {
        self.0
    }
}

impl AsRef<TcpStream> for WriteHalf<'_> {
    fn as_ref(&self) -> &TcpStream {
        self.0
    }
}

impl AsRef<TcpStream> for OwnedReadHalf {
    fn as_ref(&self) -> &TcpStream {
        &self.0
    }
}

impl AsRef<TcpStream> for OwnedWriteHalf {
    fn as_ref(&self) -> &TcpStream {
        &self.stream
    }
}
