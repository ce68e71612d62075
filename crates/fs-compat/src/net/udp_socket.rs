//! [`UdpSocket`].

mod options;
mod peer;

use super::cores;
use super::shared::{lock, runtime_ended};
use super::udp_task::{Outgoing, Part, PartOfHandle, Received, SharedSocket, Task};
use bytes::BufMut;
use fs_rt::Handle;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use tokio::io::{Interest, ReadBuf, Ready};
use tokio::net::{ToSocketAddrs, lookup_host};

/// A peer that was set.
#[derive(Clone, Copy)]
struct Connected {
    peer: SocketAddr,
    local: SocketAddr,
}

/// A UDP socket for any thread, on all cores of a runtime; see `tokio::net::UdpSocket`. In a runtime
/// without a device it is on one of them, as the kernel has one queue for it.
///
/// Up to 1,024 received datagrams, 4 MiB in all, wait here; further ones are lost. Up to 256 sends
/// wait for each core. A send's error is reported by the next send, as the kernel reports ICMP
/// errors.
///
/// ```no_run
/// use fastsock::net::UdpSocket;
///
/// # async fn with_a_runtime() -> std::io::Result<()> {
/// let socket = UdpSocket::bind("0.0.0.0:0").await?;
/// socket.connect("192.0.2.1:53").await?;
/// socket.send(b"question").await?;
/// let mut answer = [0; 512];
/// let n = socket.recv(&mut answer).await?;
/// # let _ = &answer[..n];
/// # Ok(()) }
/// ```
pub struct UdpSocket {
    shared: Arc<SharedSocket>,
    parts: Vec<PartOfHandle>,
    /// Maps a destination to a core: all its datagrams use that core, in order.
    destinations: RandomState,
    /// Datagrams that were received together with one that was returned, and the offset of the next
    /// one.
    rest: Mutex<Option<(Received, usize)>>,
    peer: Mutex<Option<Connected>>,
    /// The address that was bound.
    local: SocketAddr,
    /// The kernel socket that all cores' sockets of this port share. `None` in standalone
    /// addressing.
    pub(super) kernel: Option<std::net::UdpSocket>,
    runtime: Handle,
}

impl std::fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UdpSocket({})", self.local)
    }
}

fn would_block() -> io::Error {
    io::Error::from_raw_os_error(libc::EAGAIN)
}

impl UdpSocket {
    /// Binds to the first address that is available, on every core of the runtime that [`super`]
    /// describes.
    ///
    /// # Errors
    /// Those of [`crate::local::UdpSocket::bind`]; `NotConnected` if there is no runtime, or it has
    /// ended.
    pub async fn bind<A: ToSocketAddrs>(addr: A) -> io::Result<UdpSocket> {
        UdpSocket::bind_on(&super::background::runtime()?, addr).await
    }

    /// Like [`UdpSocket::bind`], on every core of `runtime`. Waits for a runtime that is not running
    /// yet.
    pub async fn bind_on<A: ToSocketAddrs>(runtime: &Handle, addr: A) -> io::Result<UdpSocket> {
        cores::bind(runtime, addr, async |at| {
            let cores = cores::of_datagrams(runtime);
            let shared = Arc::new(SharedSocket::new(cores.len()));
            let mut socket = UdpSocket {
                shared: shared.clone(),
                parts: Vec::new(),
                destinations: RandomState::new(),
                rest: Mutex::default(),
                peer: Mutex::default(),
                local: at,
                kernel: None,
                runtime: runtime.clone(),
            };
            for core in cores {
                // The first core chooses the port if `addr` has none. It alone reads the kernel's
                // socket: several would exchange datagrams of one sender.
                let (shared, local, is_first) = (shared.clone(), socket.local, socket.parts.is_empty());
                let (local, part, kernel) = cores::ask(runtime, core, move |answer| async move {
                    match Task::bind(shared, local, is_first).await {
                        Ok(task) => {
                            let bound = task.bound();
                            if answer.send(bound).is_ok() {
                                task.await;
                            }
                        }
                        Err(error) => drop(answer.send(Err(error))),
                    }
                })
                .await??;
                (socket.local, socket.kernel) = (local, kernel);
                socket.parts.push(part);
            }
            Ok(socket)
        })
        .await
    }

    /// Returns the kernel's socket of the port, non-blocking, with this socket's options and peer.
    /// Datagrams from the runtime's devices that were not received yet are lost, as are those that
    /// arrive before the cores have closed their sockets.
    ///
    /// # Errors
    /// `Unsupported` in standalone addressing.
    pub fn into_std(mut self) -> io::Result<std::net::UdpSocket> {
        let none =
            || io::Error::new(io::ErrorKind::Unsupported, "standalone addressing has no kernel socket to do this with");
        let socket = self.kernel.take().ok_or_else(none)?;
        if let Ok(peer) = self.peer_addr() {
            socket.connect(peer)?;
        }
        Ok(socket)
    }

    /// SO_ERROR: takes the error of the last datagram that was not sent. Unlike on the kernel, a
    /// connected socket is not told that its peer refused one (ICMP): the cores' sockets are not
    /// connected.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        let code = self.shared.error.swap(0, Ordering::Relaxed);
        Ok((code != 0).then(|| io::Error::from_raw_os_error(code)))
    }

    fn is_over(&self) -> bool {
        self.shared.cores.load(Ordering::Acquire) == 0
    }

    // ---- sending

    fn part(&self, to: SocketAddr) -> &Part {
        &self.parts[(self.destinations.hash_one(to) % self.parts.len() as u64) as usize]
    }

    pub(super) fn push(&self, to: SocketAddr, make: impl FnOnce() -> Outgoing) -> Option<io::Result<()>> {
        if self.is_over() {
            return Some(Err(runtime_ended()));
        }
        let part = self.part(to);
        // Checked first, so that a datagram is not copied for a full queue. If two senders pass the
        // check, one push may fail.
        if part.queue.is_full() || part.queue.push(make()).is_err() {
            return None;
        }
        part.call.call();
        Some(Ok(()))
    }

    fn send_now(&self, buf: &[u8], to: SocketAddr) -> Option<io::Result<usize>> {
        match self.take_error() {
            Ok(None) => {}
            Ok(Some(error)) | Err(error) => return Some(Err(error)),
        }
        if buf.len() > usize::from(u16::MAX) {
            return Some(Err(io::Error::from_raw_os_error(libc::EMSGSIZE)));
        }
        let sent =
            self.push(to, || Outgoing { data: buf.to_vec(), to, size: buf.len().max(1), whole: false, ecn: None });
        sent.map(|sent| sent.map(|()| buf.len()))
    }

    /// Sends a datagram to `target`.
    pub async fn send_to<A: ToSocketAddrs>(&self, buf: &[u8], target: A) -> io::Result<usize> {
        let to = first_of(target).await?;
        self.shared.writers.until(|| self.send_now(buf, to)).await
    }

    /// Like [`UdpSocket::send_to`]. Only the last task that polled is woken.
    pub fn poll_send_to(&self, cx: &mut Context<'_>, buf: &[u8], target: SocketAddr) -> Poll<io::Result<usize>> {
        self.shared.writers.poll(cx, || self.send_now(buf, target))
    }

    /// Like [`UdpSocket::send_to`], or `WouldBlock`.
    pub fn try_send_to(&self, buf: &[u8], target: SocketAddr) -> io::Result<usize> {
        self.send_now(buf, target).unwrap_or_else(|| Err(would_block()))
    }

    /// Sends a datagram to the peer that was set.
    pub async fn send(&self, buf: &[u8]) -> io::Result<usize> {
        self.send_to(buf, self.peer()?).await
    }

    /// Like [`UdpSocket::send`]. Only the last task that polled is woken.
    pub fn poll_send(&self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_send_to(cx, buf, self.peer()?)
    }

    /// Like [`UdpSocket::send`], or `WouldBlock`.
    pub fn try_send(&self, buf: &[u8]) -> io::Result<usize> {
        self.try_send_to(buf, self.peer()?)
    }

    /// Waits until a datagram can be sent to any destination.
    pub async fn writable(&self) -> io::Result<()> {
        self.shared.writers.until(|| self.is_writable().then_some(Ok(()))).await
    }

    fn is_writable(&self) -> bool {
        self.is_over() || self.parts.iter().all(|part| !part.queue.is_full())
    }

    // ---- receiving: bytes that do not fit into the buffer are lost, as with recvfrom(2)

    /// Returns the next datagrams, and how far the first ones were taken. Only from the peer, if
    /// one was set.
    fn next(&self, rest: &mut Option<(Received, usize)>) -> Option<io::Result<(Received, usize)>> {
        let only = self.peer_addr().ok();
        // Checked before the queue, so that the queue then contains all datagrams that arrived
        // before the end.
        let over = self.is_over();
        loop {
            let Some(next) = rest.take().or_else(|| self.shared.received.pop().map(|received| (received, 0))) else {
                return over.then(|| Err(runtime_ended()));
            };
            if only.is_none_or(|only| only == next.0.from) {
                return Some(Ok(next));
            }
            self.shared.bytes.fetch_sub(next.0.data.len(), Ordering::Relaxed);
        }
    }

    /// Takes the next datagrams of one sender. `take` gets all that arrived together, with the size
    /// of each, and returns how many bytes it took.
    pub(super) fn pop<R>(&self, take: impl FnOnce(&[u8], &Received) -> (usize, R)) -> Option<io::Result<R>> {
        let mut rest = lock(&self.rest);
        let (received, at) = match self.next(&mut rest)? {
            Ok(next) => next,
            Err(error) => return Some(Err(error)),
        };
        let (n, answer) = take(&received.data[at..], &received);
        if n > 0 && at + n < received.data.len() {
            *rest = Some((received, at + n));
        } else {
            self.shared.bytes.fetch_sub(received.data.len(), Ordering::Relaxed);
        }
        Some(Ok(answer))
    }

    fn receive_now(&self, buf: &mut ReadBuf<'_>) -> Option<io::Result<(usize, SocketAddr)>> {
        self.pop(|data, received| {
            let one = &data[..data.len().min(received.stride)];
            let n = one.len().min(buf.remaining());
            buf.put_slice(&one[..n]);
            (one.len(), (n, received.from))
        })
    }

    /// Receives a datagram and its sender.
    pub async fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let mut buf = ReadBuf::new(buf);
        self.shared.readers.until(|| self.receive_now(&mut buf)).await
    }

    /// Like [`UdpSocket::recv_from`]. Only the last task that polled is woken.
    pub fn poll_recv_from(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<SocketAddr>> {
        self.shared.readers.poll(cx, || self.receive_now(buf)).map_ok(|(_, from)| from)
    }

    /// Like [`UdpSocket::recv_from`], or `WouldBlock`.
    pub fn try_recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receive_now(&mut ReadBuf::new(buf)).unwrap_or_else(|| Err(would_block()))
    }

    /// Receives a datagram.
    pub async fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.recv_from(buf).await.map(|(n, _)| n)
    }

    /// Like [`UdpSocket::recv`]. Only the last task that polled is woken.
    pub fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_recv_from(cx, buf).map_ok(drop)
    }

    /// Like [`UdpSocket::recv`], or `WouldBlock`.
    pub fn try_recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.try_recv_from(buf).map(|(n, _)| n)
    }

    /// Like [`UdpSocket::recv_from`], into the spare capacity of a growing buffer. Bytes that do not
    /// fit are lost.
    pub async fn recv_buf_from<B: BufMut>(&self, buf: &mut B) -> io::Result<(usize, SocketAddr)> {
        self.shared.readers.until(|| self.receive_into(buf)).await
    }

    /// Like [`UdpSocket::recv_buf_from`].
    pub async fn recv_buf<B: BufMut>(&self, buf: &mut B) -> io::Result<usize> {
        self.recv_buf_from(buf).await.map(|(n, _)| n)
    }

    /// Like [`UdpSocket::recv_buf_from`], or `WouldBlock`.
    pub fn try_recv_buf_from<B: BufMut>(&self, buf: &mut B) -> io::Result<(usize, SocketAddr)> {
        self.receive_into(buf).unwrap_or_else(|| Err(would_block()))
    }

    /// Like [`UdpSocket::recv_buf`], or `WouldBlock`.
    pub fn try_recv_buf<B: BufMut>(&self, buf: &mut B) -> io::Result<usize> {
        self.try_recv_buf_from(buf).map(|(n, _)| n)
    }

    fn receive_into<B: BufMut>(&self, buf: &mut B) -> Option<io::Result<(usize, SocketAddr)>> {
        self.pop(|data, received| {
            let one = &data[..data.len().min(received.stride)];
            // Uses a vector's spare capacity without a new allocation, as tokio does.
            let n = one.len().min(buf.chunk_mut().len());
            buf.put_slice(&one[..n]);
            (one.len(), (n, received.from))
        })
    }

    fn peek_now(&self, buf: &mut ReadBuf<'_>) -> Option<io::Result<(usize, SocketAddr)>> {
        let mut rest = lock(&self.rest);
        let (received, at) = match self.next(&mut rest)? {
            Ok(next) => next,
            Err(error) => return Some(Err(error)),
        };
        let one = &received.data[at..];
        let one = &one[..one.len().min(received.stride)];
        let n = one.len().min(buf.remaining());
        buf.put_slice(&one[..n]);
        let from = received.from;
        *rest = Some((received, at));
        Some(Ok((n, from)))
    }

    /// Receives a datagram and its sender, and leaves it in the queue.
    pub async fn peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let mut buf = ReadBuf::new(buf);
        self.shared.readers.until(|| self.peek_now(&mut buf)).await
    }

    /// Like [`UdpSocket::peek_from`]. Only the last task that polled is woken.
    pub fn poll_peek_from(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<SocketAddr>> {
        self.shared.readers.poll(cx, || self.peek_now(buf)).map_ok(|(_, from)| from)
    }

    /// Like [`UdpSocket::peek_from`], or `WouldBlock`.
    pub fn try_peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.peek_now(&mut ReadBuf::new(buf)).unwrap_or_else(|| Err(would_block()))
    }

    /// Receives a datagram and leaves it in the queue.
    pub async fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.peek_from(buf).await.map(|(n, _)| n)
    }

    /// Like [`UdpSocket::peek`]. Only the last task that polled is woken.
    pub fn poll_peek(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_peek_from(cx, buf).map_ok(drop)
    }

    /// Like [`UdpSocket::peek`], or `WouldBlock`.
    pub fn try_peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.try_peek_from(buf).map(|(n, _)| n)
    }

    /// Waits for a datagram and returns its sender.
    pub async fn peek_sender(&self) -> io::Result<SocketAddr> {
        self.peek_from(&mut []).await.map(|(_, from)| from)
    }

    /// Like [`UdpSocket::peek_sender`]. Only the last task that polled is woken.
    pub fn poll_peek_sender(&self, cx: &mut Context<'_>) -> Poll<io::Result<SocketAddr>> {
        self.poll_peek_from(cx, &mut ReadBuf::new(&mut []))
    }

    /// Like [`UdpSocket::peek_sender`], or `WouldBlock`.
    pub fn try_peek_sender(&self) -> io::Result<SocketAddr> {
        self.try_peek_from(&mut []).map(|(_, from)| from)
    }

    fn is_readable(&self) -> bool {
        !self.shared.received.is_empty() || lock(&self.rest).is_some() || self.is_over()
    }

    fn ready_now(&self, interest: Interest) -> Ready {
        let mut ready = Ready::EMPTY;
        if interest.is_readable() && self.is_readable() {
            ready |= Ready::READABLE;
        }
        if interest.is_writable() && self.is_writable() {
            ready |= Ready::WRITABLE;
        }
        ready
    }

    /// Waits until the socket is ready for some of `interest`. `Unsupported` if that is neither reading nor
    /// writing.
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        if !interest.is_readable() && !interest.is_writable() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let look = || Some(self.ready_now(interest)).filter(|ready| !ready.is_empty());
        tokio::select! {
            ready = self.shared.readers.until(look), if !interest.is_writable() || interest.is_readable() => Ok(ready),
            ready = self.shared.writers.until(look), if interest.is_writable() => Ok(ready),
        }
    }

    /// Like [`UdpSocket::readable`]. Only the last task that polled is woken.
    pub fn poll_recv_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.readers.poll(cx, || self.is_readable().then_some(Ok(())))
    }

    /// Like [`UdpSocket::writable`]. Only the last task that polled is woken.
    pub fn poll_send_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.writers.poll(cx, || self.is_writable().then_some(Ok(())))
    }

    /// Calls `f` if the socket is ready for some of `interest`; else `WouldBlock`.
    pub fn try_io<R>(&self, interest: Interest, f: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
        if self.ready_now(interest).is_empty() { Err(would_block()) } else { f() }
    }

    /// Calls `f` whenever the socket is ready for `interest`, until `f` does not return
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

    /// Waits until there is a datagram.
    pub async fn readable(&self) -> io::Result<()> {
        self.shared.readers.until(|| self.is_readable().then_some(Ok(()))).await
    }

    #[cfg(feature = "quinn")]
    pub(super) fn poll_pop<R>(
        &self,
        cx: &mut Context<'_>,
        take: impl FnMut(&[u8], &Received) -> (usize, R),
    ) -> Poll<io::Result<R>> {
        let mut take = take;
        self.shared.readers.poll(cx, || self.pop(&mut take))
    }
}

async fn first_of(addr: impl ToSocketAddrs) -> io::Result<SocketAddr> {
    let none = || io::Error::new(io::ErrorKind::InvalidInput, "no addresses to send data to");
    lookup_host(addr).await?.next().ok_or_else(none)
}
