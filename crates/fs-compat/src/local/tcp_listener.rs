//! [`TcpListener`].

use crate::error::IntoIo;
use crate::local::attempts::each_addr;
use crate::local::kernel_listener::KernelListener;
use crate::local::kernel_stream::{KernelStream, canonical};
use crate::local::tcp_stream::TcpStream;
use crate::on_core_unsafe::OnItsCore;
use fs_core::{Listen, ListenerId, TcpOptions};
use fs_rt::{CoreRef, CoreStack, Interest, PortLease, poll_budget, shut_down, spend_budget};
use socket2::SockRef;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll, ready};
use tokio::net::ToSocketAddrs;

/// The backlog that std and tokio pass to `listen(2)`.
const BACKLOG: u32 = 1024;

/// One accept in this many asks the kernel first. The others ask it only if the core has no
/// connection. Lower: a busy listener makes more useless system calls. Higher: local clients wait
/// longer behind clients of the wire.
const KERNEL_FIRST: u8 = 16;

/// A listener of one core; see `tokio::net::TcpListener`.
///
/// It accepts connections that arrive at this core through the runtime's devices. It also accepts
/// connections that reach the host in another way (from the host itself, or through other devices);
/// the first core that asks gets each of these.
///
/// Other cores may listen at the same address. Connections that wait here when it is dropped go to
/// them.
///
/// ```no_run
/// use fastsock::local::TcpListener;
/// use tokio::io::AsyncWriteExt;
///
/// # async fn on_a_core() -> std::io::Result<()> {
/// let listener = TcpListener::bind("0.0.0.0:7777").await?;
/// loop {
///     let (mut stream, peer) = listener.accept().await?;
///     fastsock::spawn_local(async move { stream.write_all(format!("you are {peer}\n").as_bytes()).await });
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct TcpListener {
    _stays: OnItsCore<TcpListener>,
    pub(super) core: CoreRef,
    id: ListenerId,
    lease: PortLease,
    /// Connections that do not come through the runtime's devices.
    pub(super) kernel: RefCell<Option<KernelListener>>,
    /// Counts accepts: see [`KERNEL_FIRST`].
    turn: Cell<u8>,
    /// Options of connections that arrive.
    pub(super) options: Box<Cell<TcpOptions>>,
}

impl TcpListener {
    /// Binds the first address that is available and listens there. Like tokio's, it can bind a
    /// port that only connections in TIME-WAIT use.
    pub async fn bind<A: ToSocketAddrs>(addr: A) -> io::Result<TcpListener> {
        each_addr(addr, async |at| {
            TcpListener::listen(Listen {
                at,
                backlog: BACKLOG,
                v6_only: false,
                fast_open: 0,
                options: TcpOptions::default(),
            })
        })
        .await
    }

    pub(crate) fn listen(listen: Listen) -> io::Result<TcpListener> {
        let core = CoreRef::require()?;
        let opened = core.listen(listen)?.io()?;
        Self::on(core, listen, opened)
    }

    fn on(core: CoreRef, listen: Listen, (id, lease): (ListenerId, PortLease)) -> io::Result<TcpListener> {
        let options = Box::new(Cell::new(listen.options));
        // From here on an error closes it.
        let (turn, kernel) = (Cell::new(0), RefCell::new(None));
        let listener = TcpListener { _stays: OnItsCore::HERE, core, id, lease, kernel, turn, options };
        *listener.kernel.borrow_mut() = KernelListener::of(&listener.core, &listener.lease, &listen)?;
        Ok(listener)
    }

    /// Takes over a listening socket of the kernel, and also accepts what arrives through the
    /// runtime's devices. The kernel keeps the connections that it has there, and other processes may
    /// have the socket too. Listeners of other cores can have descriptors of the same socket. The
    /// backlog becomes 1,024.
    ///
    /// # Errors
    /// `Unsupported` in standalone addressing; `AddrInUse` if another kernel socket reserves the
    /// address for this runtime. On a shared device: `PermissionDenied` for a listener at a port that
    /// the kernel may have chosen; `AddrInUse` if the kernel has connections at its port.
    pub fn from_std(listener: std::net::TcpListener) -> io::Result<TcpListener> {
        let core = CoreRef::require()?;
        listener.set_nonblocking(true)?;
        let at = listener.local_addr()?;
        let v6_only = at.is_ipv6() && SockRef::from(&listener).only_v6()?;
        let listen = Listen { at, backlog: BACKLOG, v6_only, fast_open: 0, options: TcpOptions::default() };
        let opened = core.listen_by(listen, listener.into())?.io()?;
        Self::on(core, listen, opened)
    }

    /// Returns another descriptor of the kernel's listening socket, with which another process can
    /// listen ([`TcpListener::from_std`]). `None` if the runtime has no kernel sockets.
    pub fn kernel_socket(&self) -> io::Result<Option<std::net::TcpListener>> {
        Ok(self.lease.kernel_socket()?.map(Into::into))
    }

    /// Leaves new connections to the other process that has the kernel's listening socket. This
    /// listener still accepts handshakes that it has begun: keep it for some seconds. The cores'
    /// listeners at one address leave together.
    pub fn leave(&self) {
        self.lease.leave();
        self.kernel.take();
    }

    /// Waits for the next connection and returns it with its peer. Fails with `InvalidInput` once
    /// the runtime shuts down.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// Polls for a connection, as [`TcpListener::accept`] does.
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        if self.core.is_shutting_down() && !self.core.is_listening(self.id) {
            ready!(poll_budget(cx));
            spend_budget(cx);
            return Poll::Ready(Err(shut_down()));
        }
        let turn = self.turn.get();
        self.turn.set((turn + 1) % KERNEL_FIRST);
        if turn == 0
            && let Poll::Ready(accepted) = self.poll_kernel(cx)
        {
            return Poll::Ready(accepted);
        }
        let accepted = self.core.poll_op(cx, Interest::Accept, self.id.index, |stack| stack.tcp_accept(self.id));
        match accepted {
            Poll::Ready(accepted) => {
                let (id, peer) = accepted.io()?;
                self.core.opened_tcp(id);
                Poll::Ready(Ok((TcpStream::new(self.core.clone(), id, Some(self.lease.for_connection())), peer)))
            }
            Poll::Pending => self.poll_kernel(cx),
        }
    }

    fn poll_kernel(&self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let kernel = self.kernel.borrow();
        let Some(kernel) = &*kernel else { return Poll::Pending };
        let (socket, peer) = ready!(kernel.poll_accept(cx))?;
        let stream = KernelStream::accepted(&self.core, socket, peer, self.options.get());
        Poll::Ready(Ok((TcpStream::of_kernel(stream), canonical(peer))))
    }

    pub(super) fn call(
        &self,
        f: impl FnOnce(&mut CoreStack, ListenerId) -> Result<(), fs_core::Error>,
    ) -> io::Result<()> {
        if !self.core.is_listening(self.id) {
            return Err(shut_down());
        }
        self.core.stack(|stack| f(stack, self.id)).io()
    }

    /// Returns IP_TTL or IPV6_UNICAST_HOPS of new connections.
    pub fn ttl(&self) -> io::Result<u32> {
        Ok(self.options.get().ttl.unwrap_or(64).into())
    }

    /// Sets IP_TTL or IPV6_UNICAST_HOPS (1 to 255) of connections that arrive from now on.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        let ttl = super::tcp_stream::ttl_in_range(ttl)?;
        self.set_options(TcpOptions { ttl: Some(ttl), ..self.options.get() })
    }

    /// Returns the local address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        if self.core.is_listening(self.id) {
            self.core.inspect(|stack| stack.tcp_listener_addr(self.id)).io()
        } else {
            Ok(self.lease.addr())
        }
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        self.core.close_listener(self.id);
    }
}
