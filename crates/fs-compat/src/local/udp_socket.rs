//! [`UdpSocket`].

mod batches;
mod options;
mod receive;

use crate::error::{IntoIo, to_io_error};
use crate::local::attempts::each_addr;
use crate::local::attempts::when_ready;
use crate::local::udp_kernel::{KernelSide, source_in_kernel};
use crate::on_core_unsafe::OnItsCore;
use fs_core::{Error, Protocol, Ready as CoreReady, UdpId, UdpMeta};
use fs_rt::{Carrier, CoreRef, CoreStack, Interest as Wait, PortLease, poll_budget, spend_budget};
use socket2::SockRef;
use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use tokio::io::{Interest, Ready};
use tokio::net::{ToSocketAddrs, lookup_host};

/// Makes a kernel socket a proof for a lease of a shared device: ends its connection to its peer and its
/// binding to a device (`__udp_disconnect`), and binds it to its port by number. Returns its address.
fn prepare_proof(socket: &std::net::UdpSocket) -> io::Result<SocketAddr> {
    /// Another core may have a duplicate, which has no port while this changes it.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let before = socket.local_addr()?;
    rustix::net::connect_unspec(socket)?;
    let mut at = socket.local_addr()?;
    if let (SocketAddr::V6(at), SocketAddr::V6(before)) = (&mut at, before) {
        // The device, and with it the scope of a link-local address, is cleared too.
        at.set_scope_id(before.scope_id());
    }
    if at.port() == 0 {
        // The kernel takes a port back that it has chosen itself (SOCK_BINDPORT_LOCK).
        at.set_port(before.port());
        rustix::net::bind(socket, &at)?;
        // bind(2) to a link-local address binds the socket to the device again, and a proof must not be bound.
        rustix::net::connect_unspec(socket)?;
    }
    Ok(at)
}

/// A UDP socket on one core; see `tokio::net::UdpSocket`. It receives from the queues of its core,
/// so sockets on several cores at one address share the load.
///
/// Datagrams larger than the MTU, broadcasts, multicasts, and those from and to this host use the
/// kernel's socket of the same port, which also joins groups. In standalone addressing they are
/// refused.
///
/// ```no_run
/// use fastsock::local::UdpSocket;
///
/// # async fn on_a_core() -> std::io::Result<()> {
/// let socket = UdpSocket::bind("0.0.0.0:7").await?;
/// let mut buf = [0; 2048];
/// loop {
///     let (n, from) = socket.recv_from(&mut buf).await?;
///     socket.send_to(&buf[..n], from).await?;
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct UdpSocket {
    _stays: OnItsCore<UdpSocket>,
    core: CoreRef,
    id: UdpId,
    pub(super) kernel: Option<KernelSide>,
    /// Only the kernel's side reaches the peer: it is this host, or behind another device.
    elsewhere: Cell<bool>,
    /// Counts receives: see [`receive::KERNEL_FIRST`].
    turn: Cell<u8>,
    lease: PortLease,
}

impl UdpSocket {
    fn new(core: CoreRef, id: UdpId, lease: PortLease) -> Self {
        let (elsewhere, turn) = Default::default();
        Self { _stays: OnItsCore::HERE, core, id, kernel: None, elsewhere, turn, lease }
    }

    /// Binds to the first address that is available.
    pub async fn bind<A: ToSocketAddrs>(addr: A) -> io::Result<UdpSocket> {
        each_addr(addr, async |at| {
            let core = CoreRef::require()?;
            let (id, lease) = core.bind_udp(at)?.io()?;
            // From here on, an error drops the socket, which closes it.
            let mut socket = UdpSocket::new(core, id, lease);
            socket.kernel = KernelSide::of(&socket.lease)?;
            Ok(socket)
        })
        .await
    }

    /// Takes over a kernel socket with its options, its peer and its queued datagrams. From now on
    /// this core receives datagrams of the runtime's devices. All others still arrive at the kernel
    /// socket.
    ///
    /// On a shared device, the kernel's socket has no peer afterwards. So a duplicate of it
    /// (`try_clone`) that is given to another core has none: use [`UdpSocket::connect`] there.
    ///
    /// # Errors
    /// The errors of [`UdpSocket::bind`]; `Unsupported` in standalone addressing, and for IPV6_V6ONLY;
    /// `AddrInUse` if another kernel socket reserves the address for this runtime.
    pub fn from_std(socket: std::net::UdpSocket) -> io::Result<UdpSocket> {
        let core = CoreRef::require()?;
        let peer = socket.peer_addr().ok().map(|peer| match peer.ip().to_canonical() {
            // Includes the scope.
            IpAddr::V6(_) => peer,
            ip => SocketAddr::new(ip, peer.port()),
        });
        let device = SockRef::from(&socket).device()?;
        let at = if core.has_shared_device() { prepare_proof(&socket)? } else { socket.local_addr()? };
        if at.is_ipv6() && at.ip().is_unspecified() && rustix::net::sockopt::ipv6_v6only(&socket)? {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "an IPV6_V6ONLY socket at the wildcard address is not supported: bind to an address",
            ));
        }
        let ttl = socket.ttl()?;
        let of_v6 = || rustix::net::sockopt::ipv6_tclass(&socket).map(|class| class as u8);
        let tos = if at.is_ipv4() { rustix::net::sockopt::ip_tos(&socket)? } else { of_v6()? };
        socket.set_nonblocking(true)?;
        let (id, lease) = core.bind_udp_by(at, socket.into())?.io()?;
        // From here on an error closes the socket.
        let mut socket = UdpSocket::new(core, id, lease);
        socket.kernel = KernelSide::of(&socket.lease)?;
        socket.call(|stack, id| stack.udp_set_tos(id, tos))?;
        match device {
            // `prepare_proof` has removed the binding. The kernel lets a program without
            // CAP_NET_RAW bind only an unbound socket.
            Some(name) if socket.core.has_shared_device() => socket.bind_device(Some(&name))?,
            Some(name) => {
                let device = socket.core.handle().device(&name)?;
                socket.call(|stack, id| stack.udp_set_device(id, Some(device)))?;
            }
            None => {}
        }
        if ttl != socket.ttl()? {
            socket.set_ttl(ttl)?;
        }
        if let Some(peer) = peer {
            socket.set_peer(peer)?;
        }
        Ok(socket)
    }

    /// Returns the kernel's socket of the port, non-blocking, with this socket's options and peer.
    /// Datagrams from the runtime's devices that were not received yet are lost. New ones arrive at
    /// the kernel socket, unless another core has a socket at the same address.
    ///
    /// # Errors
    /// `Unsupported` in standalone addressing.
    pub fn into_std(self) -> io::Result<std::net::UdpSocket> {
        let none =
            || io::Error::new(io::ErrorKind::Unsupported, "standalone addressing has no kernel socket to do this with");
        let socket = self.kernel_socket()?.ok_or_else(none)?;
        if let Ok(peer) = self.peer_addr() {
            socket.connect(peer)?;
        }
        Ok(socket)
    }

    /// Sets the peer: `send` goes there, and only its datagrams are received.
    pub async fn connect<A: ToSocketAddrs>(&self, addr: A) -> io::Result<()> {
        each_addr(addr, async |remote| self.set_peer(remote)).await
    }

    fn set_peer(&self, remote: SocketAddr) -> io::Result<()> {
        let device = self.core.inspect(|stack| stack.udp_device(self.id)).io()?;
        let local = self.local_addr()?;
        let elsewhere = || self.core.carrier(Protocol::Udp, Some(local), remote, device) != Carrier::Core;
        let kernel = self.kernel.as_ref().filter(|_| elsewhere());
        if let Some(kernel) = kernel {
            let broadcast = kernel.options().broadcast()?;
            let source = source_in_kernel(local, remote, |socket| socket.set_broadcast(broadcast))?;
            self.call(|stack, id| stack.udp_connect_from(id, remote, source.ip()))?;
        } else {
            self.call(|stack, id| stack.udp_connect(id, remote))?;
        }
        self.elsewhere.set(kernel.is_some());
        // A kernel socket that was taken over with a peer receives from that peer only.
        let connected =
            self.kernel.as_ref().filter(|kernel| kernel.options().peer_addr().is_ok_and(|former| former != remote));
        connected.map_or(Ok(()), |kernel| SockRef::from(kernel.options()).connect(&remote.into()))
    }

    /// Returns the kernel's side and the peer if only the kernel's side reaches it.
    fn only_kernel(&self, target: Option<SocketAddr>) -> Option<(&KernelSide, SocketAddr)> {
        if target.is_some() || !self.elsewhere.get() {
            return None;
        }
        self.kernel.as_ref().zip(self.peer_addr().ok())
    }

    /// Returns the kernel's side if it can send a datagram that the engine refused.
    fn other_way(&self, refused: &io::Error, target: Option<SocketAddr>) -> Option<(&KernelSide, SocketAddr)> {
        if !matches!(refused.raw_os_error(), Some(libc::EMSGSIZE | libc::EINVAL | libc::ENETUNREACH)) {
            return None;
        }
        self.kernel.as_ref().zip(target.or_else(|| self.peer_addr().ok()))
    }

    /// Returns true if a datagram was refused because no peer is set.
    fn has_no_target(&self, refused: &io::Error, target: Option<SocketAddr>) -> bool {
        let by_engine = matches!(refused.raw_os_error(), Some(libc::ENOTCONN | libc::EINVAL));
        by_engine && target.is_none() && self.peer_addr().is_err()
    }

    fn send_now(&self, buf: &[u8], target: Option<SocketAddr>) -> io::Result<usize> {
        if let Some((kernel, peer)) = self.only_kernel(target) {
            return kernel.try_send(buf, peer);
        }
        let sent = self.call(|stack, id| send(stack, id, buf, target));
        let Err(refused) = &sent else { return sent };
        match self.other_way(refused, target) {
            Some((kernel, target)) => kernel.try_send(buf, target),
            None if self.has_no_target(refused, target) => Err(io::Error::from_raw_os_error(libc::EDESTADDRREQ)),
            None => sent,
        }
    }

    fn poll_send_any(&self, cx: &mut Context<'_>, buf: &[u8], target: Option<SocketAddr>) -> Poll<io::Result<usize>> {
        if let Some((kernel, peer)) = self.only_kernel(target) {
            return kernel.poll_send(cx, buf, peer);
        }
        let sent = self.poll_op(cx, Wait::UdpWrite, |stack, id| send(stack, id, buf, target));
        if let Poll::Ready(Ok(_)) = sent {
            // While the neighbour is unknown, a new datagram takes the place of an older one.
            spend_budget(cx);
        }
        let Poll::Ready(Err(refused)) = &sent else { return sent };
        match self.other_way(refused, target) {
            Some((kernel, target)) => kernel.poll_send(cx, buf, target),
            None if self.has_no_target(refused, target) => {
                Poll::Ready(Err(io::Error::from_raw_os_error(libc::EDESTADDRREQ)))
            }
            None => sent,
        }
    }

    fn call<R>(&self, f: impl FnOnce(&mut CoreStack, UdpId) -> Result<R, Error>) -> io::Result<R> {
        if !self.core.is_here() {
            return Err(to_io_error(Error::BadSocket));
        }
        self.core.stack(|stack| f(stack, self.id)).io()
    }

    fn poll_op<R>(
        &self,
        cx: &mut Context<'_>,
        wait: Wait,
        f: impl FnOnce(&mut CoreStack, UdpId) -> Result<R, Error>,
    ) -> Poll<io::Result<R>> {
        self.core.poll_op(cx, wait, self.id.index, |stack| f(stack, self.id)).map(IntoIo::io)
    }

    // ---- readiness

    /// Waits until the socket is ready for some of `interest`.
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        poll_fn(|cx| self.poll_ready(cx, interest)).await
    }

    /// Returns the readiness of the engine's side.
    fn ready_now(&self, interest: Interest) -> io::Result<Ready> {
        let ready = self.core.inspect(|stack| stack.udp_ready(self.id)).io()?;
        if !interest.is_readable() && !interest.is_writable() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mut answer = Ready::EMPTY;
        if interest.is_readable() && ready.intersects(CoreReady::READ | CoreReady::CLOSED) {
            answer |= Ready::READABLE;
        }
        if interest.is_writable() && ready.intersects(CoreReady::WRITE | CoreReady::CLOSED) {
            answer |= Ready::WRITABLE;
        }
        Ok(answer)
    }

    fn poll_ready(&self, cx: &mut Context<'_>, interest: Interest) -> Poll<io::Result<Ready>> {
        ready!(poll_budget(cx));
        let mut answer = self.ready_now(interest)?;
        // Asked although the engine's side can send: it nearly always can.
        if let Some(kernel) = self.kernel.as_ref().filter(|_| interest.is_readable() && !answer.is_readable())
            && kernel.poll_readable(cx)?.is_ready()
        {
            answer |= Ready::READABLE;
        }
        let is_needed = |kernel: &&KernelSide| self.elsewhere.get() || kernel.is_full();
        if let Some(kernel) = self.kernel.as_ref().filter(is_needed).filter(|_| interest.is_writable())
            && kernel.poll_writable(cx)?.is_pending()
        {
            answer = answer - Ready::WRITABLE;
        }
        if !answer.is_empty() {
            spend_budget(cx);
            return Poll::Ready(Ok(answer));
        }
        if interest.is_readable() {
            self.core.wait(Wait::UdpRead, self.id.index, cx.waker());
        }
        if interest.is_writable() {
            self.core.wait(Wait::UdpWrite, self.id.index, cx.waker());
        }
        Poll::Pending
    }

    /// Waits until there is a datagram (or an error).
    pub async fn readable(&self) -> io::Result<()> {
        self.ready(Interest::READABLE).await.map(drop)
    }

    /// Waits until a datagram can be sent.
    pub async fn writable(&self) -> io::Result<()> {
        self.ready(Interest::WRITABLE).await.map(drop)
    }

    /// Like [`UdpSocket::readable`].
    pub fn poll_recv_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_ready(cx, Interest::READABLE).map_ok(drop)
    }

    /// Like [`UdpSocket::writable`].
    pub fn poll_send_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_ready(cx, Interest::WRITABLE).map_ok(drop)
    }

    // ---- sending

    /// Sends a datagram to the peer that was set.
    pub async fn send(&self, buf: &[u8]) -> io::Result<usize> {
        poll_fn(|cx| self.poll_send(cx, buf)).await
    }

    /// Like [`UdpSocket::send`].
    pub fn poll_send(&self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_send_any(cx, buf, None)
    }

    /// Like [`UdpSocket::send`], or `WouldBlock`.
    pub fn try_send(&self, buf: &[u8]) -> io::Result<usize> {
        self.send_now(buf, None)
    }

    /// Sends a datagram to `target`.
    pub async fn send_to<A: ToSocketAddrs>(&self, buf: &[u8], target: A) -> io::Result<usize> {
        let target = lookup_host(target).await?.next();
        let target =
            target.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no addresses to send data to"))?;
        poll_fn(|cx| self.poll_send_to(cx, buf, target)).await
    }

    /// Like [`UdpSocket::send_to`].
    pub fn poll_send_to(&self, cx: &mut Context<'_>, buf: &[u8], target: SocketAddr) -> Poll<io::Result<usize>> {
        self.poll_send_any(cx, buf, Some(target))
    }

    /// Like [`UdpSocket::send_to`], or `WouldBlock`.
    pub fn try_send_to(&self, buf: &[u8], target: SocketAddr) -> io::Result<usize> {
        self.send_now(buf, Some(target))
    }

    /// Calls `f` if the socket is ready for some of `interest`; else `WouldBlock`.
    pub fn try_io<R>(&self, interest: Interest, f: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
        let mut ready = self.ready_now(interest)?;
        if interest.is_readable() && self.kernel.as_ref().is_some_and(KernelSide::is_readable) {
            ready |= Ready::READABLE;
        }
        if ready.is_empty() { Err(to_io_error(Error::WouldBlock)) } else { f() }
    }

    /// Calls `f` whenever the socket is ready for `interest`, until `f` does not return
    /// `WouldBlock`.
    pub async fn async_io<R>(&self, interest: Interest, f: impl FnMut() -> io::Result<R>) -> io::Result<R> {
        when_ready(async || self.ready(interest).await, f).await
    }

    // ---- addresses and options

    /// Returns the local address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.core.inspect(|stack| stack.udp_local(self.id)).io()
    }

    /// Returns the peer that was set, or `ENOTCONN`.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        let remote = self.core.inspect(|stack| stack.udp_remote(self.id)).io()?;
        remote.ok_or_else(|| to_io_error(Error::NotConnected))
    }

    /// Leaves what arrives at the kernel's socket to another core's socket at this address.
    pub(crate) fn leave_kernel_queue(&mut self) {
        if let Some(kernel) = &mut self.kernel {
            kernel.leave_queue();
        }
    }

    /// Returns the kernel's socket of the same port, to set its options on another thread.
    pub(crate) fn kernel_socket(&self) -> io::Result<Option<std::net::UdpSocket>> {
        Ok(self.lease.kernel_socket()?.map(Into::into))
    }

    /// SO_ERROR: takes the pending error.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.call(|stack, id| stack.udp_take_error(id))?.map(to_io_error))
    }
}

/// Checks IP_TOS's argument.
pub(crate) fn class_in_range(tos: u32) -> io::Result<u8> {
    u8::try_from(tos).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// Fails for a datagram that the engine must not send: it does not leave this host, or its source is another
/// device's address, so that ICMP errors about it go to the kernel. See [`CoreRef::carrier`].
fn check_leaves(stack: &CoreStack, id: UdpId, target: Option<SocketAddr>) -> Result<(), Error> {
    let to = target.or(stack.udp_remote(id)?).map(|to| to.ip().to_canonical());
    let from = stack.udp_local(id)?.ip();
    let is_within_host = to.is_some_and(|to| to.is_loopback() || stack.is_local(to));
    if is_within_host || !from.is_unspecified() && !stack.is_local(from) { Err(Error::InvalidInput) } else { Ok(()) }
}

fn send(stack: &mut CoreStack, id: UdpId, buf: &[u8], target: Option<SocketAddr>) -> Result<usize, Error> {
    check_leaves(stack, id, target)?;
    stack.udp_send(id, buf, target)
}

impl Drop for UdpSocket {
    fn drop(&mut self) {
        self.core.close_udp(self.id);
    }
}
