//! [`TcpSocket`]: a socket that is not yet connected or listening.

use crate::local::tcp_listener::TcpListener;
use crate::local::tcp_stream::TcpStream;
use fs_core::{Connect, Keepalive, Linger, Listen, Protocol, TcpOptions};
use fs_rt::{CoreRef, PortLease};
use std::cell::{Cell, RefCell};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// A TCP socket that is not connected yet, for setting options and the local address; see
/// `tokio::net::TcpSocket`.
///
/// Ports behave as with SO_REUSEADDR: connections in TIME-WAIT do not keep them in use.
///
/// ```no_run
/// use fastsock::local::TcpSocket;
///
/// # async fn on_a_core() -> std::io::Result<()> {
/// let socket = TcpSocket::new_v4()?;
/// socket.set_nodelay(true)?;
/// socket.set_recv_buffer_size(4 << 20)?;
/// socket.bind("192.0.2.10:0".parse().unwrap())?;
/// let stream = socket.connect("192.0.2.1:80".parse().unwrap()).await?;
/// # drop(stream);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct TcpSocket {
    v6: bool,
    options: RefCell<TcpOptions>,
    v6_only: RefCell<bool>,
    local: RefCell<Local>,
    /// SO_REUSEADDR and SO_REUSEPORT as set.
    reuse: Cell<(bool, bool)>,
}

#[derive(Debug, Default)]
enum Local {
    #[default]
    Unbound,
    /// An address without a port. `connect` or `listen` chooses the port.
    Address(SocketAddr),
    Port(PortLease),
}

impl TcpSocket {
    /// Creates a socket for IPv4.
    pub fn new_v4() -> io::Result<TcpSocket> {
        Self::new(false)
    }

    /// Creates a socket for IPv6.
    pub fn new_v6() -> io::Result<TcpSocket> {
        Self::new(true)
    }

    fn new(v6: bool) -> io::Result<TcpSocket> {
        CoreRef::require()?;
        Ok(Self {
            v6,
            options: RefCell::default(),
            v6_only: RefCell::new(false),
            local: RefCell::default(),
            reuse: Cell::default(),
        })
    }

    /// Binds the local address. The port is reserved at once, unless it is 0.
    pub fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        if addr.is_ipv6() != self.v6 {
            return Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT));
        }
        let mut local = self.local.borrow_mut();
        if !matches!(*local, Local::Unbound) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        *local = if addr.port() == 0 {
            Local::Address(addr)
        } else {
            Local::Port(CoreRef::require()?.lease(Protocol::Tcp, addr, *self.v6_only.borrow())?)
        };
        Ok(())
    }

    /// Like [`TcpSocket::bind`], to a port that another process holds in the kernel while this
    /// program (the daemon) serves it on the devices.
    pub fn bind_held(&self, addr: SocketAddr) -> io::Result<()> {
        if addr.is_ipv6() != self.v6 {
            return Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT));
        }
        let mut local = self.local.borrow_mut();
        if !matches!(*local, Local::Unbound) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        *local = Local::Port(CoreRef::require()?.lease_held(Protocol::Tcp, addr, *self.v6_only.borrow())?);
        Ok(())
    }

    /// Connects.
    pub async fn connect(self, remote: SocketAddr) -> io::Result<TcpStream> {
        let (connect, lease) = self.into_connect(remote)?;
        TcpStream::connect_with(connect, lease).await
    }

    pub(super) fn into_connect(self, remote: SocketAddr) -> io::Result<(Connect, Option<PortLease>)> {
        if remote.is_ipv6() != self.v6 {
            return Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT));
        }
        let (local, lease) = match self.local.into_inner() {
            Local::Unbound => (None, None),
            Local::Address(addr) => (Some(addr), None),
            Local::Port(lease) => (Some(lease.addr()), Some(lease)),
        };
        Ok((Connect { remote, local, options: self.options.into_inner() }, lease))
    }

    /// Listens; at most `backlog` connections wait to be accepted.
    pub fn listen(self, backlog: u32) -> io::Result<TcpListener> {
        self.listen_fast_open(backlog, 0)
    }

    /// Returns where and how to listen, and the lease that keeps the port until the listener has
    /// it.
    pub(super) fn into_listen(self, backlog: u32) -> (Listen, Option<PortLease>) {
        let unspecified: std::net::IpAddr =
            if self.v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        let (at, lease) = match self.local.into_inner() {
            Local::Unbound => (SocketAddr::new(unspecified, 0), None),
            Local::Address(addr) => (addr, None),
            Local::Port(lease) => (lease.addr(), Some(lease)),
        };
        let (v6_only, options) = (self.v6_only.into_inner(), self.options.into_inner());
        (Listen { at, backlog, v6_only, fast_open: 0, options }, lease)
    }

    pub(super) fn change(&self, f: impl FnOnce(&mut TcpOptions)) {
        f(&mut self.options.borrow_mut());
    }

    /// Returns the bound address (port 0 if none is chosen yet).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(match &*self.local.borrow() {
            Local::Unbound if self.v6 => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0),
            Local::Unbound => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
            Local::Address(addr) => *addr,
            Local::Port(lease) => lease.addr(),
        })
    }

    /// Returns the options that the connection, or the listener's connections, start with.
    pub fn options(&self) -> TcpOptions {
        *self.options.borrow()
    }

    /// TCP_NODELAY.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.options.borrow_mut().nodelay = nodelay;
        Ok(())
    }

    /// See [`TcpSocket::set_nodelay`].
    pub fn nodelay(&self) -> io::Result<bool> {
        Ok(self.options.borrow().nodelay)
    }

    /// SO_KEEPALIVE with the default times.
    pub fn set_keepalive(&self, on: bool) -> io::Result<()> {
        self.options.borrow_mut().keepalive = on.then(Keepalive::default);
        Ok(())
    }

    /// SO_KEEPALIVE.
    pub fn keepalive(&self) -> io::Result<bool> {
        Ok(self.options.borrow().keepalive.is_some())
    }

    /// SO_KEEPALIVE with its times.
    pub fn set_tcp_keepalive(&self, keepalive: Keepalive) -> io::Result<()> {
        self.options.borrow_mut().keepalive = Some(keepalive);
        Ok(())
    }

    /// SO_LINGER.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.options.borrow_mut().linger = linger.map_or(Linger::Background, Linger::Timeout);
        Ok(())
    }

    /// SO_LINGER with 0: dropping the connection resets it.
    pub fn set_zero_linger(&self) -> io::Result<()> {
        self.set_linger(Some(Duration::ZERO))
    }

    /// SO_LINGER.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        Ok(match self.options.borrow().linger {
            Linger::Background => None,
            Linger::Timeout(timeout) => Some(timeout),
        })
    }

    /// IP_TTL or IPV6_UNICAST_HOPS; 1 to 255.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.options.borrow_mut().ttl = Some(super::tcp_stream::ttl_in_range(ttl)?);
        Ok(())
    }

    /// SO_SNDBUF.
    pub fn set_send_buffer_size(&self, bytes: u32) -> io::Result<()> {
        self.options.borrow_mut().send_buffer = Some(bytes);
        Ok(())
    }

    /// SO_SNDBUF: as set, else the runtime's configuration.
    pub fn send_buffer_size(&self) -> io::Result<u32> {
        Ok(match self.options.borrow().send_buffer {
            Some(bytes) => bytes,
            None => CoreRef::require()?.inspect(|stack| stack.config().tcp.send_buffer),
        })
    }

    /// SO_RCVBUF.
    pub fn set_recv_buffer_size(&self, bytes: u32) -> io::Result<()> {
        self.options.borrow_mut().receive_buffer = Some(bytes);
        Ok(())
    }

    /// SO_RCVBUF: as set, else the initial size before tuning.
    pub fn recv_buffer_size(&self) -> io::Result<u32> {
        Ok(match self.options.borrow().receive_buffer {
            Some(bytes) => bytes,
            None => CoreRef::require()?.inspect(|stack| stack.config().tcp.receive_buffer_initial),
        })
    }

    /// SO_REUSEADDR: as set. Ports always behave as if it were on.
    pub fn reuseaddr(&self) -> io::Result<bool> {
        Ok(self.reuse.get().0)
    }

    /// SO_REUSEADDR: stored only. Ports always behave as if it were on.
    pub fn set_reuseaddr(&self, on: bool) -> io::Result<()> {
        self.reuse.set((on, self.reuse.get().1));
        Ok(())
    }

    /// SO_REUSEPORT: as set.
    pub fn reuseport(&self) -> io::Result<bool> {
        Ok(self.reuse.get().1)
    }

    /// SO_REUSEPORT: stored only. The cores of a runtime always share their listening ports. They
    /// share none with other processes.
    pub fn set_reuseport(&self, on: bool) -> io::Result<()> {
        self.reuse.set((self.reuse.get().0, on));
        Ok(())
    }

    /// SO_BINDTODEVICE: connects through that device of the runtime, and accepts only connections
    /// that arrive through it. `None` removes the binding.
    ///
    /// # Errors
    /// `NotFound` if it is not a device of the runtime. Use the crate `socket2` for other devices.
    pub fn bind_device(&self, interface: Option<&[u8]>) -> io::Result<()> {
        let runtime = CoreRef::require()?.handle();
        self.options.borrow_mut().device = interface.map(|name| runtime.device(name)).transpose()?;
        Ok(())
    }

    /// Returns the device that [`TcpSocket::bind_device`] set.
    pub fn device(&self) -> io::Result<Option<Vec<u8>>> {
        let runtime = CoreRef::require()?.handle();
        let name = self.options.borrow().device.and_then(|device| runtime.device_name(device));
        Ok(name.map(Into::into))
    }

    /// SO_ERROR: a socket that is not connected yet has none.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(None)
    }

    /// IPV6_V6ONLY, before `bind`.
    pub fn set_only_v6(&self, only_v6: bool) -> io::Result<()> {
        if !self.v6 || !matches!(*self.local.borrow(), Local::Unbound) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        *self.v6_only.borrow_mut() = only_v6;
        Ok(())
    }
}
