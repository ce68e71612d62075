//! [`CoreRef`]: a core as its sockets see it, and their access to its stack.

use super::io::CoreStack;
use super::lease::PortLease;
use super::state::CoreShared;
use crate::carrier::{Carrier, Carriers, Why};
use crate::handle::Handle;
use crate::kernel::ConnectRoute;
use crate::source::Source;
use crate::sys::watch_readable;
use crate::wakers::{Displaced, Interest};
use fs_core::{Error, IfaceId, ListenerId, Protocol, TcpId, UdpId};
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use tokio::task::coop::{has_budget_remaining, poll_proceed};

thread_local! {
    static CURRENT: RefCell<Option<CoreRef>> = const { RefCell::new(None) };
}

/// A handle to the calling thread's core, through which sockets reach their stack. Cheap to clone.
///
/// ```no_run
/// let runtime = fastsock::Runtime::builder().device("eth0").cores([0]).build()?;
/// runtime.run(|_core| async {
///     let core = fastsock::CoreRef::require().expect("a core's thread");
///     println!("on core {}", core.index());
/// })?;
/// assert!(fastsock::CoreRef::current().is_none(), "this thread is none");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct CoreRef(pub(crate) Rc<CoreShared>);

impl std::fmt::Debug for CoreRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CoreRef({})", self.0.index)
    }
}

/// One of a core's connections that the kernel carries.
#[derive(Debug)]
pub struct Counted(CoreRef);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.kernel_streams.update(|streams| streams - 1);
    }
}

/// Runs in a child of fork(2), on its only thread.
fn in_child() {
    // Borrowed or gone: a signal handler forked within a call, or the fork was outside a run.
    let _ = CURRENT.try_with(|current| {
        if let Ok(Some(core)) = current.try_borrow().as_deref() {
            core.0.in_child.set(true);
        }
    });
}

/// Clears the thread's core when the thread's run ends.
pub(crate) struct Entered;

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.with_borrow_mut(Option::take);
    }
}

impl CoreRef {
    /// Returns the calling thread's core, or `None` on threads that are not a runtime's.
    pub fn current() -> Option<CoreRef> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// Like [`CoreRef::current`], with the error that socket calls return on other threads.
    pub fn require() -> io::Result<CoreRef> {
        Self::current().ok_or_else(|| {
            io::Error::other(
                "this thread is not a core: sockets of fastsock::local work in tasks of Runtime::run and spawn_on, and \
                 those of fastsock::net on any thread",
            )
        })
    }

    pub(crate) fn enter(&self) -> Entered {
        crate::sys::after_fork_in_child(in_child);
        CURRENT.with_borrow_mut(|current| *current = Some(self.clone()));
        Entered
    }

    /// The runtime's handle.
    pub fn handle(&self) -> Handle {
        Handle { shared: self.0.shared.clone() }
    }

    /// Returns this core's number in its runtime, from 0.
    pub fn index(&self) -> usize {
        self.0.index
    }

    /// Calls the stack. `f` must not call back into this core.
    #[inline]
    pub fn stack<R>(&self, f: impl FnOnce(&mut CoreStack) -> R) -> R {
        let answer = f(&mut self.0.stack.borrow_mut());
        self.kick();
        answer
    }

    /// Reads from the stack without scheduling work.
    #[inline]
    pub fn inspect<R>(&self, f: impl FnOnce(&CoreStack) -> R) -> R {
        f(&self.0.stack.borrow())
    }

    /// Wakes a sleeping reactor, because a task has produced packets, or a source has events.
    #[inline]
    pub fn kick(&self) {
        if self.0.asleep.get() {
            self.0.wake_reactor();
        }
    }

    /// Returns false in a child of fork(2): the sockets of this core belong to the parent, and the
    /// child's copies do nothing.
    #[inline]
    pub fn is_here(&self) -> bool {
        !self.0.in_child.get()
    }

    /// Calls the stack, and registers for `interest` in slot `index` if it returns `WouldBlock`. A call
    /// that can succeed without end while the reactor waits must spend some budget: [`spend_budget`].
    #[inline]
    pub fn poll_op<R>(
        &self,
        cx: &mut Context<'_>,
        interest: Interest,
        index: u32,
        f: impl FnOnce(&mut CoreStack) -> Result<R, Error>,
    ) -> Poll<Result<R, Error>> {
        ready!(poll_budget(cx));
        match if self.is_here() { self.stack(f) } else { Err(Error::BadSocket) } {
            Ok(answer) => Poll::Ready(Ok(answer)),
            Err(Error::WouldBlock) => {
                self.wait(interest, index, cx.waker());
                Poll::Pending
            }
            // The next call may fail again.
            Err(error) => {
                spend_budget(cx);
                Poll::Ready(Err(error))
            }
        }
    }

    /// Wakes `waker` at the next event for `interest` in slot `index`. Call it right after the
    /// stack returned `WouldBlock`. Events occur only in the reactor's turn, so none can be missed
    /// in between.
    pub fn wait(&self, interest: Interest, index: u32, waker: &Waker) {
        let displaced = self.0.wakers.borrow_mut().register(interest, index, waker);
        match displaced {
            Displaced::Nothing => {}
            Displaced::Duplicate(waker) => drop(waker),
            Displaced::Evicted(waker) => waker.wake(),
        }
    }

    /// Wakes all tasks that wait for these interests, which then find the socket gone.
    fn forget(&self, interests: &[Interest], index: u32) {
        let mut woken = Vec::new();
        for &interest in interests {
            self.0.wakers.borrow_mut().take(interest, index, &mut woken);
        }
        woken.into_iter().for_each(Waker::wake);
    }

    /// Records that a socket owns this connection from now on, by connect or accept.
    #[inline]
    pub fn opened_tcp(&self, id: TcpId) {
        self.tell(id, "connection opened");
    }

    /// Logs an event of a connection at level DEBUG (feature `tracing`).
    #[inline]
    fn tell(&self, id: TcpId, what: &'static str) {
        #[cfg(feature = "tracing")]
        if tracing::enabled!(target: "fs_rt::connection", tracing::Level::DEBUG) {
            self.tell_cold(id, what);
        }
        #[cfg(not(feature = "tracing"))]
        let _ = (id, what);
    }

    #[cfg(feature = "tracing")]
    #[cold]
    fn tell_cold(&self, id: TcpId, what: &'static str) {
        let ends = self.inspect(|stack| (stack.tcp_local(id), stack.tcp_remote(id)));
        if let (Ok(local), Ok(remote)) = ends {
            tracing::debug!(target: "fs_rt::connection", core = self.0.index, %local, %remote, "{what}");
        }
    }

    /// Ends the use of a connection, as `close(2)`.
    pub fn close_tcp(&self, id: TcpId) {
        self.tell(id, "connection closed");
        self.stack(|stack| stack.tcp_close(id));
        self.forget(&[Interest::TcpRead, Interest::TcpWrite], id.index);
    }

    /// Reserves `at` in the kernel and listens there on this core. Several cores may listen at one
    /// address. Port 0 chooses a port. Keep the lease with the listener and with the connections
    /// that it accepts.
    pub fn listen(&self, listen: fs_core::Listen) -> io::Result<Result<(ListenerId, PortLease), Error>> {
        if self.0.shutting_down.get() {
            return Err(shut_down());
        }
        let lease = self.lease(Protocol::Tcp, listen.at, listen.v6_only)?;
        Ok(self.listen_on(listen, lease))
    }

    /// Like [`CoreRef::listen`], with a kernel socket that listens at the address already, in another
    /// process too. The kernel keeps the connections that it has there.
    ///
    /// # Errors
    /// `Unsupported` in standalone addressing.
    pub fn listen_by(
        &self,
        listen: fs_core::Listen,
        socket: OwnedFd,
    ) -> io::Result<Result<(ListenerId, PortLease), Error>> {
        if self.0.shutting_down.get() {
            return Err(shut_down());
        }
        let shared = self.0.shared.clone();
        let place = shared.ports.acquire_listening(listen.at, listen.v6_only, socket)?;
        Ok(self.listen_on(listen, PortLease::new(shared, place)))
    }

    fn listen_on(&self, mut listen: fs_core::Listen, lease: PortLease) -> Result<(ListenerId, PortLease), Error> {
        listen.at = lease.addr();
        let answer = self.stack(|stack| stack.tcp_listen(listen));
        if let Ok(id) = answer {
            self.0.listeners.borrow_mut().push(id);
        }
        answer.map(|id| (id, lease))
    }

    /// Closes a listener. Does nothing if a shutdown has closed it.
    pub fn close_listener(&self, id: ListenerId) {
        let mut listeners = self.0.listeners.borrow_mut();
        let Some(at) = listeners.iter().position(|&l| l == id) else { return };
        listeners.swap_remove(at);
        drop(listeners);
        self.stack(|stack| stack.tcp_close_listener(id));
        self.forget(&[Interest::Accept], id.index);
    }

    /// Returns true while `id` is open (a shutdown closes listeners).
    pub fn is_listening(&self, id: ListenerId) -> bool {
        self.0.listeners.borrow().contains(&id)
    }

    /// Reserves `at` in the kernel and binds a UDP socket there.
    pub fn bind_udp(&self, at: SocketAddr) -> io::Result<Result<(UdpId, PortLease), Error>> {
        let lease = self.lease(Protocol::Udp, at, false)?;
        let answer = self.stack(|stack| stack.udp_bind(lease.addr()));
        Ok(answer.map(|id| (id, lease)))
    }

    /// Like [`CoreRef::bind_udp`], with a non-blocking kernel socket that is bound to `at`, which
    /// then reserves the port.
    ///
    /// # Errors
    /// `Unsupported` in standalone addressing.
    pub fn bind_udp_by(&self, at: SocketAddr, socket: OwnedFd) -> io::Result<Result<(UdpId, PortLease), Error>> {
        let shared = self.0.shared.clone();
        let place = shared.ports.acquire_by(Protocol::Udp, at, socket)?;
        let lease = PortLease::new(shared, place);
        let answer = self.stack(|stack| stack.udp_bind(lease.addr()));
        Ok(answer.map(|id| (id, lease)))
    }

    /// Closes a UDP socket.
    pub fn close_udp(&self, id: UdpId) {
        self.stack(|stack| stack.udp_close(id));
        self.forget(&[Interest::UdpRead, Interest::UdpWrite], id.index);
    }

    /// Reserves a local address.
    pub fn lease(&self, protocol: Protocol, at: SocketAddr, v6_only: bool) -> io::Result<PortLease> {
        let shared = self.0.shared.clone();
        let place = shared.ports.acquire(protocol, at, v6_only)?;
        Ok(PortLease::new(shared, place))
    }

    /// Like [`CoreRef::lease`], for a port that another process holds in the kernel (bound or
    /// listening) and for which this core serves the devices. Port 0 is `EINVAL`.
    pub fn lease_held(&self, protocol: Protocol, at: SocketAddr, v6_only: bool) -> io::Result<PortLease> {
        let shared = self.0.shared.clone();
        let place = shared.ports.acquire_held(protocol, at, v6_only)?;
        Ok(PortLease::new(shared, place))
    }

    /// Returns which carrier a new connection, or a UDP socket with a peer, should use, by the
    /// kernel's routes. `bound`: the device that the socket is bound to. The kernel's answers are
    /// cached until routes, rules, addresses or devices change.
    pub fn carrier(
        &self,
        protocol: Protocol,
        from: Option<SocketAddr>,
        to: SocketAddr,
        bound: Option<IfaceId>,
    ) -> Carrier {
        let shared = &self.0.shared;
        match shared.carriers {
            Carriers::Core => return Carrier::Core,
            Carriers::Kernel => return Carrier::Kernel(Why::NoDevice),
            Carriers::Both => {}
        }
        // The kernel treats the unspecified address as the host itself.
        if to.ip().is_unspecified() || self.is_this_host(to.ip()) {
            return Carrier::Kernel(Why::ThisHost);
        }
        let Some(routes) = &shared.control.routes else { return Carrier::Core };
        let index = bound.map_or(0, |device| routes.index_of(device));
        let route = routes.of((protocol, from, to, index), &mut self.0.route_cache.borrow_mut());
        if matches!(route, ConnectRoute::Others | ConnectRoute::None(_)) {
            return Carrier::Kernel(Why::OtherRoute);
        }
        // What the control thread has sent before this answer, such as the routes of a device that the
        // runtime has just got.
        if shared.inboxes[self.0.index].is_pending() {
            self.0.read_inbox();
        }
        // The stack has the routes of `main` only, and another table may have another gateway.
        let is_known = match route {
            ConnectRoute::OtherTable(device, addr) => self
                .inspect(|stack| stack.next_hop(to.ip(), bound))
                .is_some_and(|(iface, hop)| (routes.index_of(iface), hop) == (device, addr)),
            _ => true,
        };
        // Replies to an address of another device are the kernel's.
        let is_others = |from: IpAddr| !from.is_unspecified() && !self.inspect(|stack| stack.is_local(from));
        match from {
            Some(from) if is_others(from.ip().to_canonical()) => Carrier::Kernel(Why::OtherRoute),
            _ if is_known => Carrier::Core,
            _ => Carrier::Kernel(Why::OtherRoute),
        }
    }

    /// Returns the carrier of a connection that arrived at the kernel's socket.
    pub fn carrier_of_accepted(&self, local: SocketAddr, peer: SocketAddr) -> Carrier {
        Carrier::Kernel(match self.0.shared.carriers {
            Carriers::Kernel => Why::NoDevice,
            _ if self.is_this_host(peer.ip()) || local.ip() == peer.ip() => Why::ThisHost,
            _ => Why::OtherRoute,
        })
    }

    /// Returns true if the host delivers packets for `addr` to itself. For a standalone stack,
    /// loopback addresses belong to nobody.
    pub fn is_this_host(&self, addr: IpAddr) -> bool {
        let addr = addr.to_canonical();
        addr.is_loopback() || self.inspect(|stack| stack.is_local(addr))
    }

    /// Returns false if the runtime has no kernel sockets: in standalone addressing, and in a
    /// program that connects for others.
    pub fn has_kernel(&self) -> bool {
        self.0.shared.carriers != Carriers::Core
    }

    /// Returns true if a daemon shares the runtime's devices with other programs. It takes a kernel socket
    /// as proof of its address only without a peer, not bound to a device, and bound to a port by number.
    pub fn has_shared_device(&self) -> bool {
        self.0.shared.ports.needs_proof()
    }

    /// Counts one more kernel connection of a socket of this core, until the returned value is
    /// dropped.
    pub fn count_kernel_stream(
        &self,
        local: io::Result<SocketAddr>,
        peer: io::Result<SocketAddr>,
        carrier: Carrier,
    ) -> Counted {
        #[cfg(feature = "tracing")]
        if let (Ok(local), Ok(remote)) = (local, peer) {
            let core = self.0.index;
            tracing::debug!(target: "fs_rt::connection", core, %local, %remote, %carrier, "a connection is opened");
        }
        #[cfg(not(feature = "tracing"))]
        let _ = (local, peer, carrier);
        self.0.kernel_streams.update(|streams| streams + 1);
        Counted(self.clone())
    }

    /// Returns true after a shutdown has begun.
    pub fn is_shutting_down(&self) -> bool {
        self.0.shutting_down.get()
    }

    /// Adds a source while the core runs. `doorbell` is the doorbell of [`Source::prepare_sleep`]. It
    /// is never read, so an eventfd's count only grows.
    ///
    /// # Errors
    /// If epoll(7) refuses the descriptor, or the caller is not a task of this core.
    pub fn add_source(&self, source: Rc<dyn Source>, doorbell: OwnedFd) -> io::Result<()> {
        self.0.new_sources.add(source, watch_readable(doorbell)?);
        self.kick();
        Ok(())
    }

    /// Stops new connections: listeners close, and waiting `accept` calls get an error.
    pub(crate) fn begin_shutdown(&self) {
        self.0.shutting_down.set(true);
        loop {
            let id = self.0.listeners.borrow().last().copied();
            match id {
                Some(id) => self.close_listener(id),
                None => break,
            }
        }
    }
}

/// Returns the error of `accept` and `listen` during a shutdown. The kind is the kernel's for a
/// listener after `shutdown(2)` (`EINVAL`). The message names the reason, because no argument was
/// wrong.
pub fn shut_down() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the runtime is shutting down and accepts no new connections")
}

/// Completes when the runtime of the calling thread shuts down. On other threads it never
/// completes.
pub async fn shutdown_signal() {
    let Some(core) = CoreRef::current() else { return std::future::pending().await };
    let mut phase = core.0.shared.phase.subscribe();
    drop(core);
    // An error means that the runtime is gone, which is a shutdown too.
    let _ = phase.wait_for(|phase| !phase.is_running()).await;
}

/// Ready if the task has some of tokio's budget left. Otherwise the task continues after every other task
/// of this core, and the reactor, has run once.
#[inline]
pub fn poll_budget(cx: &Context<'_>) -> Poll<()> {
    if has_budget_remaining() {
        return Poll::Ready(());
    }
    // tokio's `poll_proceed` would leave the task until the driver runs: up to `EVENT_INTERVAL` polls later.
    cx.waker().wake_by_ref();
    Poll::Pending
}

/// Spends one of the task's 128 operations. For calls that are ready again at once, although the reactor has
/// not run: a task that repeats one would run forever, and what it waits for would never arrive. Calls
/// that take from a queue, or fill one, spend nothing: the queue ends them.
pub fn spend_budget(cx: &mut Context<'_>) {
    if let Poll::Ready(budget) = poll_proceed(cx) {
        budget.made_progress();
    }
}

/// Lets every other task of this core, and the reactor, run once.
pub async fn turn() {
    let mut first = true;
    poll_fn(|cx| {
        if std::mem::take(&mut first) {
            cx.waker().wake_by_ref();
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    })
    .await
}

/// Spawns a task on the calling thread's core (`tokio::task::spawn_local`).
///
/// # Panics
/// On a thread that is not a core, such as those of `#[fastsock::main]`: use `tokio::spawn` there.
pub fn spawn_local<F>(future: F) -> tokio::task::JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    tokio::task::spawn_local(future)
}
