//! A core's connection that the kernel carries: to this host, through another device, or of a
//! runtime without a device.
//!
//! [`TcpStream`](crate::local::TcpStream) has the same methods and calls these if the connection is
//! not the core's own.

use crate::borrowed_unsafe::{BorrowedBytes, SendBuffer};
use crate::local::kernel_options::{apply, info, receive_flags, send_flags};
use fs_core::{Error, TcpInfo, TcpOptions};
use fs_rt::{Carrier, CoreRef, Counted, PortLease};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use tokio::io::{Interest, ReadBuf, Ready};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::coop::consume_budget;

/// Largest piece that [`KernelStream::poll_borrowed`] reads: the capacity of a frame.
const PIECE: usize = 2048;

pub(super) struct KernelStream {
    core: CoreRef,
    socket: Rc<TcpStream>,
    /// The options as they were set.
    options: Cell<TcpOptions>,
    carrier: Carrier,
    over: RefCell<Over>,
    /// A direction was shut here: readiness may not say so yet.
    shut: Cell<bool>,
    _counted: Counted,
}

/// The registration of a task that waits for the end of the connection.
#[derive(Default)]
struct Over {
    waiting: Option<Pin<Box<dyn Future<Output = ()>>>>,
    waker: Option<Waker>,
}

impl std::fmt::Debug for KernelStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelStream").field("socket", &self.socket).field("carrier", &self.carrier).finish()
    }
}

impl KernelStream {
    pub(super) fn new(core: CoreRef, socket: TcpStream, carrier: Carrier, options: TcpOptions) -> Self {
        let counted = core.count_kernel_stream(socket.local_addr(), socket.peer_addr(), carrier);
        let (options, over) = (Cell::new(options), RefCell::default());
        Self { core, socket: Rc::new(socket), options, carrier, over, shut: Cell::new(false), _counted: counted }
    }

    /// Wraps a connection that a listener with these options accepted.
    pub(super) fn accepted(core: &CoreRef, socket: TcpStream, peer: SocketAddr, options: TcpOptions) -> Self {
        let carrier = core.carrier_of_accepted(socket.local_addr().unwrap_or(peer), peer);
        // The connection inherits all other options from its listener (inet_csk_clone_lock). An
        // error means that the connection is over already, and the next read reports it.
        let inherited = TcpOptions { linger: TcpOptions::default().linger, ..options };
        let _ = apply(core, socket.as_fd(), &inherited, &options);
        Self::new(core.clone(), socket, carrier, options)
    }

    /// Wraps a connection that the program made itself.
    pub(super) fn from_std(stream: std::net::TcpStream) -> io::Result<Self> {
        let core = CoreRef::require()?;
        if !core.has_kernel() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "in standalone addressing no socket is the kernel's",
            ));
        }
        stream.set_nonblocking(true)?;
        let options = TcpOptions { nodelay: stream.nodelay()?, ..TcpOptions::default() };
        let socket = TcpStream::from_std(stream)?;
        let carrier = core.carrier_of_accepted(socket.local_addr()?, socket.peer_addr()?);
        Ok(Self::new(core, socket, carrier, options))
    }

    pub(super) fn into_std(self) -> io::Result<std::net::TcpStream> {
        let Self { socket, over, .. } = self;
        // The registration owns a clone of the socket.
        drop(over);
        match Rc::try_unwrap(socket) {
            Ok(socket) => socket.into_std(),
            Err(_) => Err(io::Error::other("another owner still uses the connection")),
        }
    }

    pub(super) async fn connect(
        core: CoreRef,
        connect: fs_core::Connect,
        lease: Option<PortLease>,
        carrier: Carrier,
    ) -> io::Result<Self> {
        let fs_core::Connect { remote, local, options } = connect;
        let socket = match lease {
            Some(lease) => {
                let at = lease.addr();
                let fd = lease.into_kernel_socket();
                let fd: OwnedFd = fd.ok_or_else(|| {
                    io::Error::new(io::ErrorKind::AddrInUse, format!("another socket of this program uses {at}"))
                })?;
                TcpSocket::from_std_stream(fd.into())
            }
            None => {
                let socket = if remote.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
                if let Some(local) = local {
                    crate::local::kernel_options::bind_without_port(socket.as_fd())?;
                    socket.bind(local)?;
                }
                socket
            }
        };
        apply(&core, socket.as_fd(), &TcpOptions::default(), &options)?;
        let socket = socket.connect(remote).await?;
        Ok(Self::new(core, socket, carrier, options))
    }

    /// Fails in a child of fork(2): the connection is the parent's.
    fn here(&self) -> io::Result<&TcpStream> {
        if self.core.is_here() { Ok(&self.socket) } else { Err(crate::to_io_error(Error::BadSocket)) }
    }

    pub(super) fn core(&self) -> &CoreRef {
        &self.core
    }

    pub(super) fn carrier(&self) -> Carrier {
        self.carrier
    }

    // ---- readiness

    pub(super) async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        // tokio's `ready` spends nothing.
        consume_budget().await;
        self.here()?.ready(interest).await
    }

    pub(super) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.here()?.poll_read_ready(cx)
    }

    pub(super) fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.here()?.poll_write_ready(cx)
    }

    pub(super) fn try_io<R>(&self, interest: Interest, f: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
        self.here()?.try_io(interest, f)
    }

    /// Ready when both directions have ended, or the connection was reset.
    pub(super) fn poll_closed(&self, cx: &mut Context<'_>) -> Poll<()> {
        let Ok(socket) = self.here() else { return Poll::Ready(()) };
        if is_over(socket) || self.shut.get() && crate::local::kernel_options::hangs_up(socket.as_fd()) {
            return Poll::Ready(());
        }
        let mut over = self.over.borrow_mut();
        let Over { waiting, waker } = &mut *over;
        match waker {
            Some(known) => known.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        let waiting = waiting.get_or_insert_with(|| Box::pin(until_over(self.socket.clone())));
        if waiting.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        over.waiting = None;
        Poll::Ready(())
    }

    // ---- reading

    pub(super) fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.here()?.try_read(buf)
    }

    pub(super) fn try_read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.here()?.try_read_vectored(bufs)
    }

    pub(super) fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let socket = self.here()?;
        let room = buf.remaining();
        if room == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            ready!(socket.poll_read_ready(cx))?;
            match socket.try_read_buf(buf) {
                Err(nothing) if nothing.kind() == io::ErrorKind::WouldBlock => {}
                Ok(n) => {
                    if n > 0 && n < room {
                        forget_readiness(socket, Interest::READABLE);
                    }
                    return Poll::Ready(Ok(()));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    pub(super) fn poll_peek(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<usize>> {
        self.here()?.poll_peek(cx, buf)
    }

    /// Any number of tasks may wait here. tokio's poll functions keep only the last waker.
    pub(super) async fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.here()?.peek(buf).await
    }

    pub(super) fn poll_borrowed(&self, cx: &mut Context<'_>) -> Poll<io::Result<BorrowedBytes>> {
        loop {
            ready!(self.here()?.poll_read_ready(cx))?;
            match self.try_borrowed() {
                Err(nothing) if nothing.kind() == io::ErrorKind::WouldBlock => {}
                received => return Poll::Ready(received),
            }
        }
    }

    /// As [`KernelStream::peek`], for any number of tasks.
    pub(super) async fn recv_borrowed(&self) -> io::Result<BorrowedBytes> {
        loop {
            self.ready(Interest::READABLE).await?;
            match self.try_borrowed() {
                Err(nothing) if nothing.kind() == io::ErrorKind::WouldBlock => {}
                received => return received,
            }
        }
    }

    /// Reads into a frame of the core. This copies once, unlike on the core's own connections.
    fn try_borrowed(&self) -> io::Result<BorrowedBytes> {
        let socket = self.here()?;
        let mut room = SendBuffer::alloc(self.core.clone()).ok_or_else(|| crate::to_io_error(Error::NoBuffers))?;
        let spare = room.spare_mut();
        let most = spare.len().min(PIECE);
        let n = socket.try_read(&mut spare[..most])?;
        room.advance(n);
        let frame = if n > 0 { room.into_frame() } else { None };
        Ok(match frame {
            Some(frame) => BorrowedBytes::new(self.core.clone(), frame),
            None => BorrowedBytes::end_of_stream(self.core.clone()),
        })
    }

    // ---- writing

    pub(super) fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
        self.here()?.try_write(buf)
    }

    pub(super) fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.here()?.try_write_vectored(bufs)
    }

    pub(super) fn poll_send(&self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_out(cx, buf.len(), |socket| socket.try_write(buf))
    }

    pub(super) fn poll_send_vectored(&self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let len = bufs.iter().map(|buf| buf.len()).sum();
        self.poll_out(cx, len, |socket| socket.try_write_vectored(bufs))
    }

    fn poll_out(
        &self,
        cx: &mut Context<'_>,
        len: usize,
        mut write: impl FnMut(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let socket = self.here()?;
        if len == 0 {
            return Poll::Ready(Ok(0));
        }
        loop {
            ready!(socket.poll_write_ready(cx))?;
            match write(socket) {
                Err(full) if full.kind() == io::ErrorKind::WouldBlock => {}
                Ok(n) => {
                    if n > 0 && n < len {
                        forget_readiness(socket, Interest::WRITABLE);
                    }
                    return Poll::Ready(Ok(n));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// If this is cancelled, the part that was sent stays sent: the kernel has no frames to give
    /// back. As [`KernelStream::peek`], for any number of tasks.
    pub(super) async fn send_buffer(&self, buffer: SendBuffer) -> io::Result<()> {
        let mut left = &buffer[..];
        while !left.is_empty() {
            self.ready(Interest::WRITABLE).await?;
            match self.try_write(left) {
                Err(full) if full.kind() == io::ErrorKind::WouldBlock => {}
                sent => left = &left[sent?..],
            }
        }
        Ok(())
    }

    pub(super) fn try_send_flags(&self, buf: &[u8], flags: i32) -> io::Result<usize> {
        let socket = self.here()?;
        socket.try_io(Interest::WRITABLE, || send_flags(socket.as_raw_fd(), buf, flags))
    }

    pub(super) fn try_recv_urgent(&self) -> io::Result<u8> {
        let mut byte = [0];
        match receive_flags(self.here()?.as_raw_fd(), &mut byte, libc::MSG_OOB)? {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            _ => Ok(byte[0]),
        }
    }

    /// tokio's registration of a stream does not ask for EPOLLPRI. A duplicate descriptor does,
    /// while a task waits.
    pub(super) async fn recv_urgent(&self) -> io::Result<u8> {
        let socket = self.here()?.as_fd().try_clone_to_owned()?;
        let watched = crate::local::kernel_unsafe::watch_urgent(socket)?;
        loop {
            let mut ready = watched.ready(Interest::PRIORITY).await?;
            match self.try_recv_urgent() {
                Err(none) if matches!(none.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::WouldBlock) => {
                    if ready.ready().is_read_closed() {
                        return Err(none);
                    }
                    ready.clear_ready();
                }
                urgent => return urgent,
            }
        }
    }

    pub(super) fn at_mark(&self) -> io::Result<bool> {
        crate::local::kernel_options::at_mark(self.here()?.as_fd())
    }

    pub(super) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let done = rustix::net::shutdown(
            self.here()?.as_fd(),
            match how {
                Shutdown::Read => rustix::net::Shutdown::Read,
                Shutdown::Write => rustix::net::Shutdown::Write,
                Shutdown::Both => rustix::net::Shutdown::Both,
            },
        );
        // The connection may be over now, so wake the task that waits for that.
        self.shut.set(true);
        if let Some(waker) = self.over.borrow_mut().waker.take() {
            waker.wake();
        }
        Ok(done?)
    }

    // ---- addresses and options

    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.here()?.local_addr().map(canonical)
    }

    pub(super) fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.here()?.peer_addr().map(canonical)
    }

    pub(super) fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.here()?.take_error()
    }

    pub(super) fn queued(&self) -> io::Result<(u32, u32)> {
        crate::local::kernel_options::queued(self.here()?.as_fd())
    }

    pub(super) fn info(&self) -> io::Result<TcpInfo> {
        info(self.here()?.as_raw_fd())
    }

    pub(super) fn options(&self) -> io::Result<TcpOptions> {
        self.here()?;
        Ok(self.options.get())
    }

    pub(super) fn set_options(&self, options: TcpOptions) -> io::Result<()> {
        apply(&self.core, self.here()?.as_fd(), &self.options.get(), &options)?;
        self.options.set(options);
        Ok(())
    }

    pub(super) fn quickack(&self) -> io::Result<bool> {
        Ok(rustix::net::sockopt::tcp_quickack(self.here()?)?)
    }

    pub(super) fn set_quickack(&self, on: bool) -> io::Result<()> {
        Ok(rustix::net::sockopt::set_tcp_quickack(self.here()?, on)?)
    }
}

/// Returns the IPv4 address of an IPv4 peer of a listener at `[::]`, as on the core's own
/// connections.
pub(super) fn canonical(at: SocketAddr) -> SocketAddr {
    match at.ip().to_canonical() {
        std::net::IpAddr::V4(v4) if at.is_ipv6() => SocketAddr::new(v4.into(), at.port()),
        _ => at,
    }
}

/// A call that moved fewer bytes than it could has emptied (or filled) the queue. The next call
/// then waits without a system call.
fn forget_readiness(socket: &TcpStream, interest: Interest) {
    let _ = socket.try_io(interest, || io::Result::<()>::Err(io::ErrorKind::WouldBlock.into()));
}

fn ready_now(socket: &TcpStream) -> Ready {
    let ready = std::pin::pin!(socket.ready(Interest::READABLE | Interest::WRITABLE));
    match ready.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(ready)) => ready,
        _ => Ready::EMPTY,
    }
}

/// EPOLLHUP: the kernel reports it when both directions have ended, or the connection was reset.
fn is_over(socket: &TcpStream) -> bool {
    ready_now(socket).is_write_closed()
}

async fn until_over(socket: Rc<TcpStream>) {
    while !is_over(&socket) {
        // After the peer's FIN, only a reset or our own shutdown can end the connection. The
        // shutdown wakes the task itself, so wait for errors only.
        let interest =
            if ready_now(&socket).is_read_closed() { Interest::ERROR } else { Interest::PRIORITY | Interest::ERROR };
        if socket.ready(interest).await.is_err() {
            return;
        }
    }
}
