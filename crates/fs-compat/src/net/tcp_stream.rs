//! [`TcpStream`].

use super::shared::{GONE, OPTIONS, OUT_OVER, QUICKACK, SHUT, SharedStream, lock};
use super::{cores, task};
use crate::local;
use crate::local::attempts::each_addr;
use crate::local::tcp_stream::ttl_in_range;
use bytes::BufMut;
use fs_core::{Keepalive, Linger, TcpOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use tokio::net::ToSocketAddrs;

/// A TCP connection for any thread; see `tokio::net::TcpStream`. A task on the connection's core
/// does the I/O.
///
/// Dropping it closes it as `close(2)` does: written data is still sent, and unread data resets the
/// connection. When the runtime ends, the connection ends with an error of kind `NotConnected`.
///
/// A new option takes effect at the core's next turn. Reading an option returns the value that was
/// set.
///
/// ```no_run
/// use fastsock::net::TcpStream;
/// use tokio::io::AsyncWriteExt;
///
/// # async fn with_a_runtime() -> std::io::Result<()> {
/// let mut stream = TcpStream::connect("192.0.2.1:7777").await?;
/// tokio::spawn(async move { stream.write_all(b"from any thread").await });
/// # Ok(()) }
/// ```
pub struct TcpStream {
    shared: Arc<SharedStream>,
}

impl std::fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TcpStream({} to {})", self.shared.local, self.shared.peer)
    }
}

fn would_block() -> io::Error {
    io::Error::from_raw_os_error(libc::EAGAIN)
}

impl TcpStream {
    pub(super) fn new(shared: Arc<SharedStream>) -> Self {
        Self { shared }
    }

    /// Connects to the first address that accepts the connection, on a core of the runtime that
    /// [`super`] describes.
    ///
    /// # Errors
    /// Those of [`local::TcpStream::connect`]; `NotConnected` if there is no runtime, or it has
    /// ended.
    pub async fn connect<A: ToSocketAddrs>(addr: A) -> io::Result<TcpStream> {
        TcpStream::connect_on(&super::background::runtime()?, addr).await
    }

    /// Like [`TcpStream::connect`], on the cores of `runtime` in turn.
    pub async fn connect_on<A: ToSocketAddrs>(runtime: &fs_rt::Handle, addr: A) -> io::Result<TcpStream> {
        each_addr(addr, async |remote| {
            let core = cores::next(runtime);
            cores::ask(runtime, core, move |mut answer| async move {
                let connected = tokio::select! {
                    connected = local::TcpStream::connect(remote) => connected,
                    // The caller does not wait any more.
                    () = answer.closed() => return,
                };
                match connected.and_then(task::serve) {
                    Ok((shared, task)) => {
                        // If this fails, the stream is dropped, and the task finds that.
                        let _ = answer.send(Ok(TcpStream::new(shared)));
                        task.await;
                    }
                    Err(error) => drop(answer.send(Err(error))),
                }
            })
            .await?
        })
        .await
    }

    // ---- readiness

    /// Waits until the connection is ready for some of `interest`. `Unsupported` if that is neither reading nor
    /// writing.
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        if !interest.is_readable() && !interest.is_writable() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let look = || {
            let mut ready = Ready::EMPTY;
            if interest.is_readable() && self.shared.is_readable() {
                ready |= Ready::READABLE;
            }
            if interest.is_readable() && self.shared.has_read_end() {
                ready |= Ready::READ_CLOSED;
            }
            if interest.is_writable() && self.shared.is_writable() {
                ready |= Ready::WRITABLE;
            }
            if interest.is_writable() && self.shared.has_write_end() {
                ready |= Ready::WRITE_CLOSED;
            }
            (!ready.is_empty()).then_some(ready)
        };
        tokio::select! {
            ready = self.shared.readers.until(look), if !interest.is_writable() || interest.is_readable() => Ok(ready),
            ready = self.shared.writers.until(look), if interest.is_writable() => Ok(ready),
        }
    }

    /// Waits until there is something to read.
    pub async fn readable(&self) -> io::Result<()> {
        self.ready(Interest::READABLE).await.map(drop)
    }

    /// Waits until something can be written.
    pub async fn writable(&self) -> io::Result<()> {
        self.ready(Interest::WRITABLE).await.map(drop)
    }

    /// Like [`TcpStream::readable`]. Only the last task that polled is woken.
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.readers.poll(cx, || self.shared.is_readable().then_some(Ok(())))
    }

    /// Like [`TcpStream::writable`]. Only the last task that polled is woken.
    pub fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.writers.poll(cx, || self.shared.is_writable().then_some(Ok(())))
    }

    /// Calls `f` if the connection is ready for some of `interest`; else `WouldBlock`.
    pub fn try_io<R>(&self, interest: Interest, f: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
        let readable = interest.is_readable() && self.shared.is_readable();
        let writable = interest.is_writable() && self.shared.is_writable();
        if readable || writable { f() } else { Err(would_block()) }
    }

    /// Calls `f` whenever the connection is ready for `interest`, until `f` does not return
    /// `WouldBlock`.
    pub async fn async_io<R>(&self, interest: Interest, mut f: impl FnMut() -> io::Result<R>) -> io::Result<R> {
        loop {
            self.ready(interest).await?;
            match f() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => tokio::task::yield_now().await,
                answer => return answer,
            }
        }
    }

    // ---- reading

    /// Reads available bytes. `WouldBlock` if there are none; 0 at the end of the stream.
    pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.try_read_vectored(&mut [IoSliceMut::new(buf)])
    }

    /// Like [`TcpStream::try_read`], into several buffers.
    pub fn try_read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let read = self.shared.read(|first, second| {
            let mut data = (first, second);
            let mut total = 0;
            for buf in bufs {
                let mut buf = &mut **buf;
                while !buf.is_empty() && !data.0.is_empty() {
                    let n = buf.len().min(data.0.len());
                    buf[..n].copy_from_slice(&data.0[..n]);
                    buf = &mut buf[n..];
                    data.0 = &data.0[n..];
                    total += n;
                    if data.0.is_empty() {
                        data = (data.1, &[]);
                    }
                }
            }
            (total, total)
        });
        read.unwrap_or_else(|| Err(would_block()))
    }

    /// Like [`TcpStream::try_read`], into the spare capacity of a growing buffer.
    pub fn try_read_buf<B: BufMut>(&self, buf: &mut B) -> io::Result<usize> {
        if !buf.has_remaining_mut() {
            return Ok(0);
        }
        let read = self.shared.read(|first, second| {
            let mut total = 0;
            // Like tokio does: into the spare capacity, or that of one reallocation.
            let mut most = buf.chunk_mut().len();
            for data in [first, second] {
                let n = most.min(data.len());
                buf.put_slice(&data[..n]);
                most -= n;
                total += n;
            }
            (total, total)
        });
        read.unwrap_or_else(|| Err(would_block()))
    }

    fn peek_now(&self, buf: &mut ReadBuf<'_>) -> Option<io::Result<usize>> {
        self.shared.read(|first, second| {
            let before = buf.filled().len();
            for data in [first, second] {
                buf.put_slice(&data[..data.len().min(buf.remaining())]);
            }
            (0, buf.filled().len() - before)
        })
    }

    /// Reads bytes and leaves them in the queue.
    pub async fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        let mut buf = ReadBuf::new(buf);
        self.shared.readers.until(|| self.peek_now(&mut buf)).await
    }

    /// Like [`TcpStream::peek`]. Only the last task that polled is woken.
    pub fn poll_peek(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<usize>> {
        std::task::ready!(self.poll_read_ready(cx))?;
        // Another task may have read the bytes in between. Then poll again.
        match self.peek_now(buf) {
            Some(answer) => Poll::Ready(answer),
            None => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }

    pub(super) fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let look = || {
            self.shared.read(|first, second| {
                let before = buf.filled().len();
                for data in [first, second] {
                    let n = data.len().min(buf.remaining());
                    buf.put_slice(&data[..n]);
                }
                (buf.filled().len() - before, ())
            })
        };
        self.shared.readers.poll(cx, look)
    }

    // ---- writing

    /// Writes as much as fits. `WouldBlock` if nothing fits.
    pub fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
        self.shared.write([buf].into_iter()).unwrap_or_else(|| Err(would_block()))
    }

    /// Like [`TcpStream::try_write`], from several buffers.
    pub fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.shared.write(bufs.iter().map(|buf| &**buf)).unwrap_or_else(|| Err(would_block()))
    }

    pub(super) fn poll_send(&self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.shared.writers.poll(cx, || self.shared.write([buf].into_iter()))
    }

    pub(super) fn poll_send_vectored(&self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.shared.writers.poll(cx, || self.shared.write(bufs.iter().map(|buf| &**buf)))
    }

    /// Sends FIN after the written bytes. Does nothing if the connection is over, as tokio does.
    ///
    /// # Errors
    /// `NotConnected` if the runtime has ended.
    pub(super) fn shut(&self) -> io::Result<()> {
        if self.shared.has(OUT_OVER) {
            return self.shared.check_runs();
        }
        if !self.shared.has(SHUT) {
            self.shared.ask(SHUT);
        }
        Ok(())
    }

    // ---- addresses and options

    /// Returns the local address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.shared.local)
    }

    /// Returns the peer's address.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.shared.peer)
    }

    /// Returns what carries the connection, and why: its core itself, or the kernel.
    pub fn carrier(&self) -> fs_rt::Carrier {
        self.shared.carrier
    }

    /// SO_ERROR: takes the error that ended the connection.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.shared.take_error())
    }

    /// Returns all options, as last set.
    pub fn options(&self) -> io::Result<TcpOptions> {
        Ok(*lock(&self.shared.options))
    }

    /// Sets all options.
    pub fn set_options(&self, options: TcpOptions) -> io::Result<()> {
        self.change(|all| *all = options)
    }

    fn change(&self, f: impl FnOnce(&mut TcpOptions)) -> io::Result<()> {
        f(&mut lock(&self.shared.options));
        self.shared.ask(OPTIONS);
        Ok(())
    }

    /// TCP_NODELAY.
    pub fn nodelay(&self) -> io::Result<bool> {
        Ok(self.options()?.nodelay)
    }

    /// TCP_NODELAY.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.change(|options| options.nodelay = nodelay)
    }

    /// TCP_QUICKACK as last set, else true.
    pub fn quickack(&self) -> io::Result<bool> {
        Ok(self.shared.quickack.load(Ordering::Relaxed))
    }

    /// TCP_QUICKACK: `true` sends a delayed ACK at the core's next turn and delays none of the next
    /// 16. It is not permanent.
    pub fn set_quickack(&self, quickack: bool) -> io::Result<()> {
        self.shared.quickack.store(quickack, Ordering::Relaxed);
        self.shared.ask(QUICKACK);
        Ok(())
    }

    /// SO_LINGER.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        Ok(match self.options()?.linger {
            Linger::Background => None,
            Linger::Timeout(timeout) => Some(timeout),
        })
    }

    /// SO_LINGER. Unlike on the kernel, a drop never blocks: the connection always closes in the
    /// background.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.change(|options| options.linger = linger.map_or(Linger::Background, Linger::Timeout))
    }

    /// SO_LINGER with 0: dropping the connection resets it.
    pub fn set_zero_linger(&self) -> io::Result<()> {
        self.set_linger(Some(Duration::ZERO))
    }

    /// IP_TTL or IPV6_UNICAST_HOPS.
    pub fn ttl(&self) -> io::Result<u32> {
        Ok(self.options()?.ttl.unwrap_or(64).into())
    }

    /// IP_TTL or IPV6_UNICAST_HOPS; 1 to 255.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        let ttl = ttl_in_range(ttl)?;
        self.change(|options| options.ttl = Some(ttl))
    }

    /// SO_KEEPALIVE with its times; `None` when off.
    pub fn keepalive(&self) -> io::Result<Option<Keepalive>> {
        Ok(self.options()?.keepalive)
    }

    /// SO_KEEPALIVE with its times.
    pub fn set_keepalive(&self, keepalive: Option<Keepalive>) -> io::Result<()> {
        self.change(|options| options.keepalive = keepalive)
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_recv(cx, buf)
    }
}

impl AsyncWrite for TcpStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_send(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_send_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Nothing to flush: written bytes are on their way to the stack.
    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.shut())
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        self.shared.ask(GONE);
    }
}
