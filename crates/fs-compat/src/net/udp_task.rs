//! The cores' side of a [`super::UdpSocket`]: a task with its own socket on each core, and the
//! state that it shares with the handle.

use super::doorbell::{self, Call};
use super::shared::Waiting;
use crate::local;
use crossbeam::queue::ArrayQueue;
use fs_core::IfaceId;
use fs_rt::CoreRef;
use socket2::{Domain, Socket, Type};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU16, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

/// Received batches that wait for the handle. Datagrams of one sender and size that arrived
/// together are one batch. More are dropped, as when the kernel's receive buffer is full.
const RECEIVED: usize = 1024;

/// Total bytes of these batches.
const RECEIVED_BYTES: usize = 4 << 20;

/// Sends that wait for each core. Further senders wait.
const TO_SEND: usize = 256;

/// The ECN field (RFC 3168) of IP_TOS or IPV6_TCLASS.
const ECN: u8 = 3;

/// Datagrams that one poll moves per direction before other tasks of the core run.
const AT_ONCE: usize = 64;

/// Datagrams of one sender, each of `stride` bytes. The last one may be shorter.
pub(super) struct Received {
    pub(super) data: Vec<u8>,
    pub(super) stride: usize,
    pub(super) from: SocketAddr,
    #[cfg_attr(not(feature = "quinn"), expect(dead_code, reason = "quinn asks for it"))]
    pub(super) to: SocketAddr,
    /// ECN field, if known.
    #[cfg_attr(not(feature = "quinn"), expect(dead_code, reason = "quinn asks for it"))]
    pub(super) ecn: Option<u8>,
}

/// Datagrams of `size` bytes. The last one may be shorter.
pub(super) struct Outgoing {
    pub(super) data: Vec<u8>,
    pub(super) to: SocketAddr,
    pub(super) size: usize,
    /// Do not fragment: drop it instead.
    pub(super) whole: bool,
    /// ECN field that replaces the socket's.
    pub(super) ecn: Option<u8>,
}

/// State that the handle and the cores share.
pub(super) struct SharedSocket {
    pub(super) received: ArrayQueue<Received>,
    pub(super) bytes: AtomicUsize,
    pub(super) readers: Waiting,
    pub(super) writers: Waiting,
    /// The number of cores that serve it.
    pub(super) cores: AtomicUsize,
    pub(super) gone: AtomicBool,
    /// The errno of the last datagram that was not sent. The next send returns it.
    pub(super) error: AtomicI32,
    /// IP_TTL as set; 0: not set.
    pub(super) ttl: AtomicU8,
    /// IP_TOS.
    pub(super) tos: AtomicU8,
    /// SO_BINDTODEVICE: the interface's number plus 1; 0: none.
    pub(super) device: AtomicU16,
}

impl SharedSocket {
    /// For a socket that `cores` cores serve.
    pub(super) fn new(cores: usize) -> SharedSocket {
        SharedSocket {
            received: ArrayQueue::new(RECEIVED),
            bytes: AtomicUsize::new(0),
            readers: Waiting::default(),
            writers: Waiting::default(),
            cores: AtomicUsize::new(cores),
            gone: AtomicBool::new(false),
            error: AtomicI32::new(0),
            ttl: AtomicU8::new(0),
            tos: AtomicU8::new(0),
            device: AtomicU16::new(0),
        }
    }
}

/// The part of one core.
pub(super) struct Part {
    pub(super) call: Arc<Call>,
    pub(super) queue: ArrayQueue<Outgoing>,
}

/// The handle's end of a [`Part`]. Dropping it ends the socket on all its cores: the handle was
/// dropped, or the call that binds it was cancelled.
pub(super) struct PartOfHandle {
    part: Arc<Part>,
    shared: Arc<SharedSocket>,
}

impl Deref for PartOfHandle {
    type Target = Part;

    fn deref(&self) -> &Part {
        &self.part
    }
}

impl Drop for PartOfHandle {
    fn drop(&mut self) {
        self.shared.gone.store(true, Ordering::Release);
        self.part.call.call();
    }
}

/// A core's side.
pub(super) struct Task {
    socket: local::UdpSocket,
    shared: Arc<SharedSocket>,
    part: Arc<Part>,
    unsent: Option<Outgoing>,
    buf: Vec<u8>,
    /// The values of `SharedSocket::ttl`, `SharedSocket::tos` and `SharedSocket::device` that were
    /// applied last.
    ttl: u8,
    tos: u8,
    device: u16,
}

impl Drop for Task {
    fn drop(&mut self) {
        // The runtime ends. Datagrams whose sends have succeeded are still sent, as those in the
        // kernel's queue at the end of a process. The bound is for senders that go on.
        for _ in 0..TO_SEND / AT_ONCE {
            self.give_out(&mut Context::from_waker(Waker::noop()));
        }
        self.part.call.end();
        if self.shared.cores.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.readers.wake();
        }
        self.shared.writers.wake();
    }
}

impl Task {
    /// Binds on this core, at `at`. `reads_kernel`: this core receives what arrives at the kernel's
    /// socket of the port.
    pub(super) async fn bind(shared: Arc<SharedSocket>, at: SocketAddr, reads_kernel: bool) -> io::Result<Task> {
        let core = CoreRef::require()?;
        // Of a runtime with devices, the first core's own sockets say whether the port is in use.
        let mut socket = match core.handle().is_kernel_only() {
            true => local::UdpSocket::from_std(kernel_socket(at)?)?,
            false => local::UdpSocket::bind(at).await?,
        };
        if !reads_kernel {
            socket.leave_kernel_queue();
        }
        let call = Call::new(doorbell::of_this_core(&core)?);
        let part = Arc::new(Part { call, queue: ArrayQueue::new(TO_SEND) });
        // Room for the largest UDP payload, and for all datagrams received together.
        Ok(Task { socket, shared, part, unsent: None, buf: vec![0; 1 << 16], ttl: 0, tos: 0, device: 0 })
    }

    /// Returns the bound address, the queue of datagrams to send, and the kernel's socket of the
    /// port.
    pub(super) fn bound(&self) -> io::Result<(SocketAddr, PartOfHandle, Option<std::net::UdpSocket>)> {
        let part = PartOfHandle { part: self.part.clone(), shared: self.shared.clone() };
        Ok((self.socket.local_addr()?, part, self.socket.kernel_socket()?))
    }

    fn send(&self, cx: &mut Context<'_>, out: &Outgoing) -> Poll<io::Result<usize>> {
        if out.whole || out.data.len() > out.size {
            // Only through the engine, which does not fragment.
            let tos = out.ecn.map(|ecn| self.tos & !ECN | ecn);
            match self.socket.try_send_segments_marked(&out.data, out.size, Some(out.to), tos) {
                Err(full) if full.kind() == io::ErrorKind::WouldBlock => {
                    std::task::ready!(self.socket.poll_send_ready(cx))?;
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                // The kernel delivers these: to this host's own addresses, broadcasts, multicasts.
                Err(not_ours) if not_ours.raw_os_error() == Some(libc::EINVAL) && out.data.len() <= out.size => {}
                answer => return Poll::Ready(answer),
            }
        }
        self.socket.poll_send_to(cx, &out.data, out.to)
    }

    fn give_out(&mut self, cx: &mut Context<'_>) -> bool {
        let mut sent = 0;
        while let Some(out) = self.unsent.take().or_else(|| self.part.queue.pop()) {
            if sent == AT_ONCE {
                self.unsent = Some(out);
                break;
            }
            match self.send(cx, &out) {
                Poll::Pending => {
                    self.unsent = Some(out);
                    break;
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => {
                    self.shared.error.store(error.raw_os_error().unwrap_or(libc::EIO), Ordering::Relaxed);
                }
            }
            sent += 1;
        }
        if sent > 0 {
            self.shared.writers.wake();
        }
        sent == AT_ONCE
    }

    /// Applies options that the handle has set since the last call.
    fn set_options(&mut self) {
        let (ttl, tos) = (self.shared.ttl.load(Ordering::Relaxed), self.shared.tos.load(Ordering::Relaxed));
        let new_ttl = std::mem::replace(&mut self.ttl, ttl) != ttl;
        let new_tos = std::mem::replace(&mut self.tos, tos) != tos;
        let ttl_set = if new_ttl { self.socket.set_ttl(ttl.into()) } else { Ok(()) };
        let tos_set = if new_tos { self.socket.set_tos(tos.into()) } else { Ok(()) };
        let device = self.shared.device.load(Ordering::Relaxed);
        let new_device = std::mem::replace(&mut self.device, device) != device;
        let device_set = if new_device { self.bind_device(interface(device)) } else { Ok(()) };
        if let Err(error) = ttl_set.and(tos_set).and(device_set) {
            self.shared.error.store(error.raw_os_error().unwrap_or(libc::EIO), Ordering::Relaxed);
        }
    }

    fn bind_device(&self, device: Option<IfaceId>) -> io::Result<()> {
        let runtime = CoreRef::require()?.handle();
        let name = device.and_then(|device| runtime.device_name(device));
        self.socket.bind_device(name.map(str::as_bytes))
    }

    fn take_in(&mut self, cx: &mut Context<'_>) -> bool {
        let mut tries = 0;
        let mut any = false;
        while tries < AT_ONCE {
            tries += 1;
            match self.socket.try_recv_segments(&mut self.buf) {
                Ok((meta, stride)) => {
                    let data = self.buf[..meta.len].to_vec();
                    let stride = stride.max(1);
                    let waiting = self.shared.bytes.fetch_add(data.len(), Ordering::Relaxed) + data.len();
                    let ecn = meta.tos.map(|tos| tos & ECN);
                    let received = Received { data, stride, from: meta.from, to: meta.to, ecn };
                    let len = received.data.len();
                    if waiting > RECEIVED_BYTES || self.shared.received.push(received).is_err() {
                        self.shared.bytes.fetch_sub(len, Ordering::Relaxed);
                    }
                    any = true;
                }
                Err(nothing) if nothing.kind() == io::ErrorKind::WouldBlock => {
                    // The readiness may be stale. The next receive corrects it.
                    if self.socket.poll_recv_ready(cx).is_pending() {
                        break;
                    }
                }
                Err(error) => {
                    self.shared.error.store(error.raw_os_error().unwrap_or(libc::EIO), Ordering::Relaxed);
                }
            }
        }
        if any {
            self.shared.readers.wake();
        }
        tries == AT_ONCE
    }
}

impl Future for Task {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.part.call.answer(cx);
        self.set_options();
        let gone = self.shared.gone.load(Ordering::Acquire);
        let more_out = self.give_out(cx);
        if gone {
            // Datagrams that were sent before the drop are still sent.
            if !more_out && self.unsent.is_none() {
                return Poll::Ready(());
            }
        } else if self.take_in(cx) {
            cx.waker().wake_by_ref();
        }
        if more_out {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

/// Binds a kernel socket. Unlike [`local::UdpSocket::bind`], it fails if another core has the port: the
/// two sockets would take each other's datagrams.
fn kernel_socket(at: SocketAddr) -> io::Result<std::net::UdpSocket> {
    let socket = Socket::new(Domain::for_address(at), Type::DGRAM, None)?;
    if at.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&at.into())?;
    Ok(socket.into())
}

/// Decodes `SharedSocket::device`.
pub(super) fn interface(device: u16) -> Option<IfaceId> {
    device.checked_sub(1).map(|n| IfaceId(n as u8))
}
