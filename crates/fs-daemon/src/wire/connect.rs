//! Connections that begin: those that a process opens to the world, and those that come from it.

use super::WireListener;
use super::arena::CoreArena;
use super::options::{ListenerOptions, SocketOptions};
use super::relay::{errno, relay};
use crate::server::{Command, Commands};
use fs_compat::{TcpListener, TcpSocket, TcpStream};
use fs_shm::channel::Options;
use fs_shm::{Addr, Channel, Errno, OpenArgs};
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::sync::oneshot;

/// Connects for a process, then moves the bytes.
pub(super) async fn outgoing(commands: Arc<Commands>, home: Rc<CoreArena>, slot: u32, generation: u32) {
    let Some(channel) = Channel::with_generation(&home.arena, slot, generation) else { return };
    let socket_options = SocketOptions::of(&channel);
    let connected = match (channel.local_addr().to_std(), channel.peer_addr().to_std()) {
        (Some(to), from) => {
            let work = connect_if_allowed(&commands, &home, to, from, &socket_options);
            unless_closed(&home, slot, generation, work).await
        }
        // The process scribbled.
        (None, _) => Some(Err(io::Error::from_raw_os_error(Errno::INVAL.raw_os_error()))),
    };
    let Some(channel) = Channel::with_generation(&home.arena, slot, generation) else { return };
    match connected {
        Some(Ok((stream, _held))) => {
            let (Ok(local), Ok(peer)) = (stream.local_addr(), stream.peer_addr()) else {
                home.forget(&channel);
                channel.set_failed(Errno::CONNRESET);
                channel.abort(None);
                return;
            };
            channel.set_connected(Addr::from(local), Addr::from(peer));
            relay(home, slot, generation, stream, socket_options).await;
        }
        Some(Err(error)) => {
            home.forget(&channel);
            channel.set_failed(errno(&error));
            channel.abort(None);
        }
        None => {
            home.forget(&channel);
            channel.abort(None);
        }
    }
}

/// `None`: the process has closed the connection before it was made.
async fn unless_closed<T>(home: &CoreArena, slot: u32, generation: u32, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    poll_fn(|cx| {
        let channel = Channel::with_generation(&home.arena, slot, generation);
        let Some(channel) = channel else { return Poll::Ready(None) };
        home.watch(&channel, cx.waker());
        if channel.state().is_none_or(|state| state.is_closed(channel.side().other())) {
            return Poll::Ready(None);
        }
        work.as_mut().poll(cx).map(Some)
    })
    .await
}

/// What the process wrote is its wish; the control thread says what it may. The socket that holds the port is to be held as long
/// as the connection.
async fn connect_if_allowed(
    commands: &Commands,
    home: &CoreArena,
    to: SocketAddr,
    from: Option<SocketAddr>,
    socket_options: &SocketOptions,
) -> io::Result<(TcpStream, Option<OwnedFd>)> {
    let to = SocketAddr::new(to.ip().to_canonical(), to.port());
    // Without an address the port is nobody's wish: the process made it up to have one.
    let from = from.map(|from| SocketAddr::new(from.ip().to_canonical(), from.port()));
    let from = from.filter(|from| !from.ip().is_unspecified() && from.is_ipv4() == to.is_ipv4());
    let from_ip = from.map(|from| from.ip());
    let has_port = from.is_some_and(|from| from.port() != 0);
    let held = if !has_port && home.allowed.borrow().has(commands.generation(), from_ip, to) {
        None
    } else {
        let asked = commands.generation();
        let (answer, verdict) = oneshot::channel();
        commands.send(Command::Judge { arena: home.id, from, to, answer });
        // The control thread has ended, and so does everything.
        let verdict = verdict.await.unwrap_or(Err(rustix::io::Errno::CONNRESET));
        let held = verdict.map_err(io::Error::from)?;
        if !has_port {
            home.allowed.borrow_mut().add(asked, from_ip, to);
        }
        held
    };
    Ok((connect(to, from, socket_options).await?, held))
}

async fn connect(to: SocketAddr, from: Option<SocketAddr>, socket_options: &SocketOptions) -> io::Result<TcpStream> {
    let socket = socket(to.ip())?;
    socket.set_options(socket_options.options());
    if let Some(from) = from {
        if from.port() == 0 { socket.bind(from)? } else { socket.bind_held(from)? }
    }
    socket.connect(to).await
}

fn socket(of: IpAddr) -> io::Result<TcpSocket> {
    if of.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }
}

/// Listens where processes listen on the kernel.
pub(super) fn listen(listener: &WireListener) -> io::Result<TcpListener> {
    let &WireListener { at, v6_only, backlog, options, .. } = listener;
    let socket = socket(at.ip())?;
    socket.set_options(options.on_core());
    if at.is_ipv6() {
        socket.set_only_v6(v6_only)?;
    }
    socket.bind_held(at)?;
    socket.listen_fast_open(backlog.max(1), options.fast_open)
}

/// An address that the core listens at, for one listener or a group that shares it (SO_REUSEPORT).
pub(super) struct SharedListener {
    /// `None` once it is closed; the task ends then.
    listener: RefCell<Option<TcpListener>>,
    homes: RefCell<Vec<Home>>,
}

/// One listener's way in.
struct Home {
    listener: u32,
    arena: Rc<CoreArena>,
    backlog: u32,
    options: ListenerOptions,
}

impl Home {
    fn has_room(&self) -> bool {
        self.arena.arena.pending() < self.backlog
    }
}

impl SharedListener {
    pub(super) fn new(listener: TcpListener) -> Rc<Self> {
        Rc::new(Self { listener: RefCell::new(Some(listener)), homes: RefCell::default() })
    }

    /// A listener's way in from here on.
    pub(super) fn add(&self, listener: &WireListener, arena: Rc<CoreArena>) {
        let &WireListener { listener, backlog, options, .. } = listener;
        let mut homes = self.homes.borrow_mut();
        homes.retain(|home| home.listener != listener);
        homes.push(Home { listener, arena, backlog: backlog.max(1), options });
        drop(homes);
        // The listener has just been made, or is going, with the runtime.
        let _set = self.set_backlog();
    }

    /// The engine's own queue is as long as all of theirs.
    fn set_backlog(&self) -> io::Result<()> {
        let all = self.homes.borrow().iter().fold(0_u32, |sum, home| sum.saturating_add(home.backlog));
        self.listener.borrow().as_ref().map_or(Ok(()), |listener| listener.set_backlog(all))
    }

    /// A listener's backlog or options have changed.
    pub(super) fn change(&self, changed: &WireListener) -> io::Result<()> {
        let mut homes = self.homes.borrow_mut();
        let Some(home) = homes.iter_mut().find(|home| home.listener == changed.listener) else { return Ok(()) };
        (home.backlog, home.options) = (changed.backlog.max(1), changed.options);
        drop(homes);
        self.set_backlog()?;
        match &*self.listener.borrow() {
            Some(listener) => {
                listener.set_options(changed.options.on_core())?;
                listener.set_fast_open(changed.options.fast_open)
            }
            None => Ok(()),
        }
    }

    /// Takes a listener out; `false`: it was the last one, and the core listens there no more.
    pub(super) fn remove(&self, listener: u32) -> bool {
        self.homes.borrow_mut().retain(|home| home.listener != listener);
        if self.homes.borrow().is_empty() {
            // Closes at once, and wakes the task.
            drop(self.listener.take());
            return false;
        }
        // As in `add`.
        let _set = self.set_backlog();
        true
    }

    /// Waits until some listener's queue has room; `false`: the core listens there no more.
    async fn room(&self) -> bool {
        while !self.homes.borrow().iter().any(Home::has_room) {
            if self.listener.borrow().is_none() {
                return false;
            }
            tokio::time::sleep(FULL).await;
        }
        true
    }

    /// Several listeners share it (SO_REUSEPORT).
    fn is_shared(&self) -> bool {
        self.homes.borrow().len() > 1
    }

    /// The next one in turn that has room; the others are asked in their order after it.
    fn next(&self) -> Option<(Rc<CoreArena>, u32, ListenerOptions)> {
        let mut homes = self.homes.borrow_mut();
        let index = homes.iter().position(Home::has_room)?;
        let home = homes.remove(index);
        let answer = (home.arena.clone(), home.backlog, home.options);
        homes.push(home);
        Some(answer)
    }

    /// The next connection; `None`: the core listens there no more.
    async fn accept(&self) -> Option<(TcpStream, SocketAddr)> {
        poll_fn(|cx| match &*self.listener.borrow() {
            // An error is the runtime's end.
            Some(listener) => listener.poll_accept(cx).map(Result::ok),
            None => Poll::Ready(None),
        })
        .await
    }
}

/// How often a full queue is looked at again. Nothing tells when a process accepts; until then connections wait in the
/// engine's queue, and when that is full too, SYNs are dropped and come again, as on the kernel.
const FULL: Duration = Duration::from_millis(1);

/// Hands connections from the wire to the processes, for as long as the core listens there.
pub(super) async fn incoming(shared: Rc<SharedListener>) {
    loop {
        let Some((stream, peer)) = shared.accept().await else { return };
        // Asked now and not before: who accepts may have made room since. So one more waits than the backlog says, as on the
        // kernel.
        if !shared.room().await {
            // The client is told by a reset, as the kernel does.
            let _reset = stream.set_zero_linger();
            return;
        }
        let (Ok(local), Some((home, backlog, options))) = (stream.local_addr(), shared.next()) else { continue };
        let (local, peer) = (Addr::from(peer), Addr::from(local));
        let inherited = options.inherited;
        if shared.is_shared() {
            // The engine's listener has given it those of the group's latest. It is over only if the peer has reset it.
            let _over = stream.set_options(options.on_core());
        }
        let options = [Options::default(), inherited];
        let args = OpenArgs { local, peer, backlog, from_core: true, options, ..OpenArgs::default() };
        match Channel::open(&home.arena, &args) {
            Ok(channel) => {
                let (slot, generation) = (channel.slot(), channel.generation());
                let socket_options = SocketOptions::inherited(inherited);
                fs_rt::spawn_local(relay(home.clone(), slot, generation, stream, socket_options));
            }
            // No slot is left, or the listener has just gone: the client is told by a reset, as the kernel does.
            Err(error) => {
                tracing::debug!(%error, "dropped a connection that nobody can accept");
                let _reset = stream.set_zero_linger();
            }
        }
    }
}
