//! [`TcpStream`].

mod options;

use crate::borrowed_unsafe::{BorrowedBytes, SendBuffer};
use crate::error::{IntoIo, to_io_error};
use crate::local::attempts::each_addr;
use crate::local::attempts::when_ready;
use crate::local::core_stream::{CoreStream, recv_vectored, send_vectored};
use crate::local::kernel_stream::KernelStream;
use crate::on_core_unsafe::OnItsCore;
use bytes::BufMut;
use fs_core::{Connect, Error, Protocol, Received, Shutdown, TcpId, TcpOptions};
use fs_rt::{Carrier, CoreRef, CoreStack, Interest as Wait, PortLease, spend_budget};
use std::future::poll_fn;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use tokio::net::ToSocketAddrs;

/// A TCP connection on one core; see `tokio::net::TcpStream`.
///
/// Dropping it closes it as `close(2)` does: queued data is still sent, and unread data resets the
/// connection.
///
/// ```no_run
/// use fastsock::local::TcpStream;
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// # async fn on_a_core() -> std::io::Result<()> {
/// let mut stream = TcpStream::connect("192.0.2.1:80").await?;
/// stream.set_nodelay(true)?;
/// stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
/// let mut answer = Vec::new();
/// stream.read_to_end(&mut answer).await?;
/// println!("{} bytes, round trip {} µs", answer.len(), stream.info()?.rtt_us);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct TcpStream {
    _stays: OnItsCore<TcpStream>,
    by: By,
}

/// The carrier.
#[derive(Debug)]
enum By {
    Core(CoreStream),
    Kernel(Box<KernelStream>),
}

/// Evaluates one of two expressions: for a connection of the core or of the kernel. This is the
/// only branch between them.
macro_rules! by {
    ($stream:expr, $own:ident => $core:expr, $other:ident => $kernel:expr $(,)?) => {
        match &$stream.by {
            By::Core($own) => $core,
            By::Kernel($other) => $kernel,
        }
    };
}

impl TcpStream {
    pub(crate) fn new(core: CoreRef, id: TcpId, lease: Option<PortLease>) -> Self {
        Self { _stays: OnItsCore::HERE, by: By::Core(CoreStream::new(core, id, lease)) }
    }

    pub(super) fn of_kernel(stream: KernelStream) -> Self {
        Self { _stays: OnItsCore::HERE, by: By::Kernel(Box::new(stream)) }
    }

    /// Connects to the first address that answers. The kernel's routes decide: through a device of
    /// the runtime, the core carries the connection; to this host and through other devices, the
    /// kernel does ([`TcpStream::carrier`]).
    pub async fn connect<A: ToSocketAddrs>(addr: A) -> io::Result<TcpStream> {
        each_addr(addr, async |remote| {
            let connect = Connect { remote, local: None, options: TcpOptions::default() };
            TcpStream::connect_with(connect, None).await
        })
        .await
    }

    pub(crate) async fn connect_with(connect: Connect, lease: Option<PortLease>) -> io::Result<TcpStream> {
        TcpStream::connect_with_data(connect, lease, &[]).await.map(|(stream, _)| stream)
    }

    pub(crate) async fn connect_with_data(
        connect: Connect,
        lease: Option<PortLease>,
        data: &[u8],
    ) -> io::Result<(TcpStream, usize)> {
        let core = CoreRef::require()?;
        let carrier = core.carrier(Protocol::Tcp, connect.local, connect.remote, connect.options.device);
        if carrier != Carrier::Core {
            let stream = KernelStream::connect(core, connect, lease, carrier).await?;
            // Only the core sends data with the SYN, so none is taken.
            return Ok((Self::of_kernel(stream), 0));
        }
        if core.is_this_host(connect.remote.ip()) {
            return Err(io::Error::new(
                io::ErrorKind::NetworkUnreachable,
                format!(
                    "{} is this host itself, which packets on its devices do not reach, and in standalone addressing no \
                     socket is the kernel's: connect by tokio::net",
                    connect.remote
                ),
            ));
        }
        let (stream, taken) = CoreStream::connect(core, connect, lease, data).await?;
        Ok((Self { _stays: OnItsCore::HERE, by: By::Core(stream) }, taken))
    }

    /// Wraps a kernel connection, which the kernel continues to carry. Of its options, only
    /// TCP_NODELAY is read from it.
    ///
    /// # Errors
    /// `Unsupported` in standalone addressing.
    pub fn from_std(stream: std::net::TcpStream) -> io::Result<TcpStream> {
        KernelStream::from_std(stream).map(Self::of_kernel)
    }

    /// Returns the kernel's socket, which is non-blocking.
    ///
    /// # Errors
    /// `Unsupported` for a connection that the core carries. It is closed: the kernel has no call
    /// to take over its sequence numbers, windows and data in flight.
    pub fn into_std(self) -> io::Result<std::net::TcpStream> {
        match self.by {
            By::Kernel(other) => other.into_std(),
            By::Core(_) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the connection is a core's own (`TcpStream::carrier`): it has no descriptor",
            )),
        }
    }

    /// Returns what carries the connection, and why: the core itself, or the kernel.
    pub fn carrier(&self) -> Carrier {
        by!(self, _own => Carrier::Core, other => other.carrier())
    }

    pub(super) fn own_or_kernel(&self) -> Result<&CoreStream, &KernelStream> {
        by!(self, own => Ok(own), other => Err(other))
    }

    /// Calls the stack for a core's connection, or the kernel's socket.
    #[inline]
    pub(super) fn call<R>(
        &self,
        core: impl FnOnce(&mut CoreStack, TcpId) -> Result<R, Error>,
        kernel: impl FnOnce(&KernelStream) -> io::Result<R>,
    ) -> io::Result<R> {
        by!(self, own => own.call(core), other => kernel(other))
    }

    /// Like [`TcpStream::call`], without scheduling work for the stack.
    #[inline]
    pub(super) fn inspect<R>(
        &self,
        core: impl FnOnce(&CoreStack, TcpId) -> Result<R, Error>,
        kernel: impl FnOnce(&KernelStream) -> io::Result<R>,
    ) -> io::Result<R> {
        by!(self, own => own.inspect(core), other => kernel(other))
    }

    /// Like [`TcpStream::call`], waiting.
    #[inline]
    pub(super) fn poll_call<R>(
        &self,
        cx: &mut Context<'_>,
        wait: Wait,
        core: impl FnOnce(&mut CoreStack, TcpId) -> Result<R, Error>,
        kernel: impl FnOnce(&KernelStream, &mut Context<'_>) -> Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        by!(self, own => own.poll_op(cx, wait, core).map(IntoIo::io), other => kernel(other, cx))
    }

    // ---- readiness

    /// Completes when the connection is over: both directions have ended, or it was reset
    /// ([`TcpStream::take_error`]). On a kernel connection, only the last task that polled is woken.
    pub fn poll_closed(&self, cx: &mut Context<'_>) -> Poll<()> {
        by!(self, own => own.poll_closed(cx), other => other.poll_closed(cx))
    }

    /// Waits until the connection is ready for some of `interest`.
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        by!(self, own => poll_fn(|cx| own.poll_ready(cx, interest)).await, other => other.ready(interest).await)
    }

    /// Waits until there is something to read.
    pub async fn readable(&self) -> io::Result<()> {
        self.ready(Interest::READABLE).await.map(drop)
    }

    /// Waits until something can be written.
    pub async fn writable(&self) -> io::Result<()> {
        self.ready(Interest::WRITABLE).await.map(drop)
    }

    /// Like [`TcpStream::readable`]. On a kernel connection, only the last task that polled is woken.
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        by!(self, own => own.poll_ready(cx, Interest::READABLE).map_ok(drop), other => other.poll_read_ready(cx))
    }

    /// Like [`TcpStream::writable`]. On a kernel connection, only the last task that polled is woken.
    pub fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        by!(self, own => own.poll_ready(cx, Interest::WRITABLE).map_ok(drop), other => other.poll_write_ready(cx))
    }

    // ---- reading

    /// Reads available bytes. `WouldBlock` if there are none; 0 at the end of the stream.
    pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        by!(self, own => own.call(|stack, id| stack.tcp_recv(id, buf)), other => other.try_read(buf))
    }

    /// Like [`TcpStream::try_read`], into several buffers.
    pub fn try_read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        by!(
            self,
            own => own.call(|stack, id| recv_vectored(stack, id, bufs)),
            other => other.try_read_vectored(bufs),
        )
    }

    /// Like [`TcpStream::try_read`], into the spare capacity of a growing buffer.
    pub fn try_read_buf<B: BufMut>(&self, buf: &mut B) -> io::Result<usize> {
        if !buf.has_remaining_mut() {
            return Ok(0);
        }
        let mut chunk = [0; 16 << 10];
        // Like tokio does: into the spare capacity, or that of one reallocation.
        let most = chunk.len().min(buf.chunk_mut().len());
        let n = self.try_read(&mut chunk[..most])?;
        buf.put_slice(&chunk[..n]);
        Ok(n)
    }

    /// Reads bytes and leaves them in the queue.
    pub async fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        let mut part = ReadBuf::new(buf);
        match &self.by {
            By::Core(_) => poll_fn(|cx| self.poll_peek(cx, &mut part)).await,
            By::Kernel(other) => other.peek(buf).await,
        }
    }

    /// Like [`TcpStream::peek`]. On a kernel connection, only the last task that polled is woken.
    pub fn poll_peek(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<usize>> {
        let own = match &self.by {
            By::Core(own) => own,
            By::Kernel(other) => return other.poll_peek(cx, buf),
        };
        let peeked = own.poll_op(cx, Wait::TcpRead, |stack, id| {
            let n = stack.tcp_peek(id, buf.initialize_unfilled())?;
            buf.advance(n);
            Ok(n)
        });
        if let Poll::Ready(Ok(_)) = peeked {
            spend_budget(cx);
        }
        peeked.map(IntoIo::io)
    }

    pub(crate) fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let own = match &self.by {
            By::Core(own) => own,
            By::Kernel(other) => return other.poll_recv(cx, buf),
        };
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let received = own.poll_op(cx, Wait::TcpRead, |stack, id| {
            // Zeroes only as much as will be overwritten. If nothing is queued, one byte, so that
            // the call reports why.
            let most = (stack.tcp_queued(id)?.0 as usize).clamp(1, buf.remaining());
            let n = stack.tcp_recv(id, buf.initialize_unfilled_to(most))?;
            buf.advance(n);
            Ok(n)
        });
        if let Poll::Ready(Ok(0)) = received {
            spend_budget(cx);
        }
        received.map(|received| received.map(drop).io())
    }

    /// Returns the next received bytes in the frame in which they arrived, without a copy. Bytes
    /// from the kernel are copied once.
    pub async fn recv_borrowed(&self) -> io::Result<BorrowedBytes> {
        by!(self, _own => poll_fn(|cx| self.poll_recv_borrowed(cx)).await, other => other.recv_borrowed().await)
    }

    /// Like [`TcpStream::recv_borrowed`]. On a kernel connection, only the last task that polled is
    /// woken.
    pub fn poll_recv_borrowed(&self, cx: &mut Context<'_>) -> Poll<io::Result<BorrowedBytes>> {
        let own = match &self.by {
            By::Core(own) => own,
            By::Kernel(other) => return other.poll_borrowed(cx),
        };
        let received = own.poll_op(cx, Wait::TcpRead, |stack, id| stack.tcp_recv_frame(id));
        received.map(|received| {
            Ok(match received.io()? {
                Received::Frame(frame) => BorrowedBytes::new(own.core.clone(), frame),
                Received::EndOfStream => {
                    spend_budget(cx);
                    BorrowedBytes::end_of_stream(own.core.clone())
                }
            })
        })
    }

    /// Moves up to `most` received bytes to the send queue of `to`, without a copy where the frames in
    /// which they arrived can be sent. Returns the number of bytes. 0: nothing can be moved so, for
    /// example because the kernel carries one of both, or nothing has arrived; read and write instead.
    /// Pending until `to` has room.
    pub fn poll_forward(&self, cx: &mut Context<'_>, to: &TcpStream, most: usize) -> Poll<usize> {
        let (By::Core(own), By::Core(other)) = (&self.by, &to.by) else { return Poll::Ready(0) };
        let moved = other.poll_op(cx, Wait::TcpWrite, |stack, id| stack.tcp_forward(own.id, id, most));
        moved.map(|moved| moved.unwrap_or(0))
    }

    // ---- writing

    /// Writes as much as fits. `WouldBlock` if nothing fits.
    pub fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
        self.call(|stack, id| stack.tcp_send(id, buf), |kernel| kernel.try_write(buf))
    }

    /// Like [`TcpStream::try_write`], from several buffers.
    pub fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.call(|stack, id| send_vectored(stack, id, bufs), |kernel| kernel.try_write_vectored(bufs))
    }

    /// Calls `f` if the connection is ready for some of `interest`; else `WouldBlock`.
    pub fn try_io<R>(&self, interest: Interest, f: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
        let own = match &self.by {
            By::Core(own) => own,
            By::Kernel(other) => return other.try_io(interest, f),
        };
        if own.ready_now(interest)?.is_empty() { Err(to_io_error(Error::WouldBlock)) } else { f() }
    }

    /// Calls `f` whenever the connection is ready for `interest`, until `f` does not return
    /// `WouldBlock`.
    pub async fn async_io<R>(&self, interest: Interest, f: impl FnMut() -> io::Result<R>) -> io::Result<R> {
        when_ready(async || self.ready(interest).await, f).await
    }

    pub(crate) fn poll_send(&self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let core = |stack: &mut CoreStack, id| stack.tcp_send(id, buf);
        self.poll_call(cx, Wait::TcpWrite, core, |kernel, cx| kernel.poll_send(cx, buf))
    }

    pub(crate) fn poll_send_vectored(&self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let core = |stack: &mut CoreStack, id| send_vectored(stack, id, bufs);
        self.poll_call(cx, Wait::TcpWrite, core, |kernel, cx| kernel.poll_send_vectored(cx, bufs))
    }

    /// Returns an empty frame to write into, for [`TcpStream::send_buffer`]. `ENOBUFS` if the core
    /// has no free frame.
    pub fn alloc_send_buffer(&self) -> io::Result<SendBuffer> {
        SendBuffer::alloc(self.core().clone()).ok_or_else(|| to_io_error(Error::NoBuffers))
    }

    /// Queues a frame without a copy. Waits until the send queue takes it. An empty frame is freed.
    /// On a kernel connection the bytes are copied, and a cancelled call may have sent a part of
    /// them.
    pub async fn send_buffer(&self, buffer: SendBuffer) -> io::Result<()> {
        if buffer.is_empty() {
            return Ok(());
        }
        if buffer.core().index() != self.core().index() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        by!(self, own => own.send_buffer(buffer).await, other => other.send_buffer(buffer).await)
    }

    fn core(&self) -> &CoreRef {
        by!(self, own => &own.core, other => other.core())
    }

    /// Sends FIN after the queued data (`Shutdown::Write`), discards received data (`Read`), or
    /// both.
    pub fn shutdown_now(&self, how: std::net::Shutdown) -> io::Result<()> {
        let core = match how {
            std::net::Shutdown::Read => Shutdown::Read,
            std::net::Shutdown::Write => Shutdown::Write,
            std::net::Shutdown::Both => Shutdown::Both,
        };
        self.call(|stack, id| stack.tcp_shutdown(id, core), |kernel| kernel.shutdown(how))
    }

    /// Sends FIN after the queued data. As in tokio, it does nothing if the connection is over: the
    /// peer may end it at any time, so each caller would have to ignore that error.
    pub(super) fn shut(&self) -> io::Result<()> {
        match self.shutdown_now(std::net::Shutdown::Write) {
            Err(over) if over.kind() == io::ErrorKind::NotConnected => Ok(()),
            done => done,
        }
    }

    // ---- addresses and options

    /// Returns the local address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inspect(|stack, id| stack.tcp_local(id), |kernel| kernel.local_addr())
    }

    /// Returns the peer's address.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.inspect(|stack, id| stack.tcp_remote(id), |kernel| kernel.peer_addr())
    }

    /// SO_ERROR: takes the pending error.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        by!(
            self,
            own => Ok(own.call(|stack, id| stack.tcp_take_error(id))?.map(to_io_error)),
            other => other.take_error(),
        )
    }

    /// Returns the bytes that can be read now, and the bytes written that the peer has not
    /// acknowledged (FIONREAD, SIOCOUTQ).
    pub fn queued(&self) -> io::Result<(u32, u32)> {
        self.inspect(|stack, id| stack.tcp_queued(id), |kernel| kernel.queued())
    }

    /// Returns all options.
    pub fn options(&self) -> io::Result<TcpOptions> {
        self.inspect(|stack, id| stack.tcp_options(id), |kernel| kernel.options())
    }

    /// Sets all options.
    pub fn set_options(&self, options: TcpOptions) -> io::Result<()> {
        self.call(|stack, id| stack.tcp_set_options(id, options), |kernel| kernel.set_options(options))
    }

    pub(super) fn change(&self, f: impl FnOnce(&mut TcpOptions)) -> io::Result<()> {
        let mut options = self.options()?;
        f(&mut options);
        self.set_options(options)
    }
}

pub(crate) fn ttl_in_range(ttl: u32) -> io::Result<u8> {
    u8::try_from(ttl).ok().filter(|&ttl| ttl > 0).ok_or_else(|| to_io_error(Error::InvalidInput))
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

    /// Nothing to flush: written bytes are in the stack.
    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.shut())
    }
}
