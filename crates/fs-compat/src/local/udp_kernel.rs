//! The kernel's side of a UDP socket: the datagrams that the XDP program and the engine leave to
//! the kernel.
//!
//! A kernel socket reserves the port and takes part. It receives fragments, broadcasts, multicasts
//! and datagrams over loopback. It sends those, and datagrams larger than the MTU. In standalone
//! addressing there is none, and such datagrams fail with `EMSGSIZE` and `EINVAL`.

use super::kernel_options::{int_option, set_int_option};
use super::kernel_unsafe::recv_datagram;
use super::waiting::Waiting;
use fs_rt::PortLease;
use socket2::SockRef;
use std::cell::Cell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::Interest;
use tokio::net::UdpSocket;

#[derive(Debug)]
pub(super) struct KernelSide {
    socket: UdpSocket,
    /// False: another core receives.
    reads: bool,
    /// The last send was EWOULDBLOCK, and no task has waited for space since.
    full: Cell<bool>,
    /// One for IPv4, one for IPv6.
    fragments: [Fragments; 2],
    readers: Arc<Waiting>,
    writers: Arc<Waiting>,
}

/// Whether the kernel fragments a socket's datagrams of one IP version.
#[derive(Debug)]
struct Fragments {
    level: i32,
    name: i32,
    /// The option's value that the program has set, and the value for datagrams that must not be fragmented.
    values: [i32; 2],
    allowed: Cell<bool>,
}

impl Fragments {
    fn of(socket: &UdpSocket, (level, name, never): (i32, i32, i32)) -> io::Result<Self> {
        let values = [int_option(socket.as_raw_fd(), level, name)?, never];
        Ok(Self { level, name, values, allowed: Cell::new(true) })
    }

    /// Without the change, the kernel would fragment a datagram larger than the MTU that an ICMP message
    /// has reported.
    fn allow(&self, socket: &UdpSocket, allow: bool) -> io::Result<()> {
        if self.allowed.get() == allow {
            return Ok(());
        }
        let [set, never] = self.values;
        set_int_option(socket.as_raw_fd(), self.level, self.name, if allow { set } else { never })?;
        self.allowed.set(allow);
        Ok(())
    }
}

impl KernelSide {
    pub(super) fn of(lease: &PortLease) -> io::Result<Option<Self>> {
        let Some(fd) = lease.kernel_socket()? else { return Ok(None) };
        let socket = UdpSocket::from_std(fd.into())?;
        let options = SockRef::from(&socket);
        // With an IPv6 socket for IPv4's datagrams too.
        options.set_recv_tos_v4(true)?;
        let is_v6 = options.domain()? == socket2::Domain::IPV6;
        if is_v6 {
            options.set_recv_tclass_v6(true)?;
        }
        let v4 = (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE);
        let v6 = (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE);
        let fragments = [Fragments::of(&socket, v4)?, Fragments::of(&socket, if is_v6 { v6 } else { v4 })?];
        let (readers, writers) = Default::default();
        Ok(Some(Self { socket, reads: true, full: Cell::new(false), fragments, readers, writers }))
    }

    /// From now on nothing can be received. Another core's side has the same queue.
    pub(super) fn leave_queue(&mut self) {
        self.reads = false;
    }

    /// Returns the socket, to set its options.
    pub(super) fn options(&self) -> &UdpSocket {
        &self.socket
    }

    pub(super) fn try_send(&self, buf: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.fragments(to).allow(&self.socket, true)?;
        self.try_send_as_set(buf, to)
    }

    /// Like [`KernelSide::try_send`], but the datagram is never fragmented: one larger than the device's
    /// MTU is refused, and one larger than the path's MTU is lost.
    pub(super) fn try_send_whole(&self, buf: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.fragments(to).allow(&self.socket, false)?;
        self.try_send_as_set(buf, to)
    }

    fn fragments(&self, to: SocketAddr) -> &Fragments {
        &self.fragments[usize::from(to.ip().to_canonical().is_ipv6())]
    }

    fn try_send_as_set(&self, buf: &[u8], to: SocketAddr) -> io::Result<usize> {
        let sent = self.socket.try_send_to(buf, to);
        self.full.set(sent.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock));
        sent
    }

    /// Returns true if the last datagram found no room. tokio then knows of none until the task waits,
    /// so a task that tried again without waiting would block its core forever.
    pub(super) fn is_full(&self) -> bool {
        self.full.get()
    }

    pub(super) fn poll_send(&self, cx: &mut Context<'_>, buf: &[u8], to: SocketAddr) -> Poll<io::Result<usize>> {
        self.fragments(to).allow(&self.socket, true)?;
        self.writers.poll(cx, |cx| self.socket.poll_send_to(cx, buf, to))
    }

    /// Returns the next datagram's length, sender and type of service or traffic class, from `only` if
    /// that is given. Makes no system call while none has arrived. Returns `WouldBlock` for a datagram of
    /// another sender: others can send as fast as a loop here would discard. The socket stays readable.
    pub(super) fn try_recv(
        &self,
        buf: &mut [u8],
        peek: bool,
        only: Option<SocketAddr>,
    ) -> io::Result<(usize, SocketAddr, Option<u8>)> {
        if !self.reads {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let flags = if peek { libc::MSG_PEEK } else { 0 };
        let (len, from, tos) = self.socket.try_io(Interest::READABLE, || recv_datagram(&self.socket, buf, flags))?;
        let from = match from.ip().to_canonical() {
            // Includes the scope.
            IpAddr::V6(_) => from,
            ip => SocketAddr::new(ip, from.port()),
        };
        if only.is_none_or(|only| only == from) {
            return Ok((len, from, tos));
        }
        if peek {
            // Discards a datagram from another sender, which would otherwise block the queue forever.
            self.socket.try_recv_from(&mut [0])?;
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Returns true if a datagram may be queued.
    pub(super) fn is_readable(&self) -> bool {
        self.reads && self.socket.try_io(Interest::READABLE, || Ok(())).is_ok()
    }

    /// Ready if a datagram may be sent.
    pub(super) fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let writable = self.writers.poll(cx, |cx| self.socket.poll_send_ready(cx));
        self.full.set(self.full.get() && writable.is_pending());
        writable
    }

    /// Ready if a datagram may be queued.
    pub(super) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.reads {
            return Poll::Pending;
        }
        self.readers.poll(cx, |cx| self.socket.poll_recv_ready(cx))
    }
}

/// Returns the address from which the kernel would send to `remote`, if a socket at `local` with the
/// options of `set` were connected to it, or connect(2)'s error. Sends nothing.
pub(crate) fn source_in_kernel(
    local: SocketAddr,
    remote: SocketAddr,
    set: impl FnOnce(SockRef<'_>) -> io::Result<()>,
) -> io::Result<SocketAddr> {
    let (mut from, remote) = match remote.ip().to_canonical() {
        // A wildcard socket of IPv6 reaches IPv4 too.
        ip @ IpAddr::V4(_) if local.ip().is_unspecified() => {
            ((Ipv4Addr::UNSPECIFIED, 0).into(), SocketAddr::new(ip, remote.port()))
        }
        ip @ IpAddr::V4(_) => (local, SocketAddr::new(ip, remote.port())),
        // Includes the scope.
        IpAddr::V6(_) => (local, remote),
    };
    from.set_port(0);
    let socket = std::net::UdpSocket::bind(from)?;
    set(SockRef::from(&socket))?;
    socket.connect(remote)?;
    let mut source = socket.local_addr()?;
    source.set_port(local.port());
    Ok(source)
}
