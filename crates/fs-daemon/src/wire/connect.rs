//! Connections that begin: those that a process opens to the world, and those that come from it.

use super::arena::CoreArena;
use super::relay::{errno, relay};
use fs_compat::{TcpListener, TcpSocket, TcpStream};
use fs_shm::{Addr, Channel, Errno, OpenArgs};
use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

/// Connects for a process, then moves the bytes.
pub(super) async fn outgoing(home: Rc<CoreArena>, slot: u32, generation: u32) {
    let Some(channel) = Channel::with_generation(&home.arena, slot, generation) else { return };
    let connected = match (channel.local_addr().to_std(), channel.peer_addr().to_std()) {
        (Some(to), from) => unless_closed(&home, slot, generation, connect(to, from)).await,
        // The process scribbled.
        (None, _) => Some(Err(io::Error::from_raw_os_error(Errno::INVAL.raw_os_error()))),
    };
    let Some(channel) = Channel::with_generation(&home.arena, slot, generation) else { return };
    match connected {
        Some(Ok(stream)) => {
            let (Ok(local), Ok(peer)) = (stream.local_addr(), stream.peer_addr()) else {
                home.forget(&channel);
                channel.set_failed(Errno::CONNRESET);
                channel.abort(None);
                return;
            };
            channel.set_connected(Addr::from(local), Addr::from(peer));
            relay(home, slot, generation, stream).await;
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

async fn connect(to: SocketAddr, from: Option<SocketAddr>) -> io::Result<TcpStream> {
    let to = SocketAddr::new(to.ip().to_canonical(), to.port());
    let socket = socket(to.ip())?;
    // Without an address the port is nobody's wish: the process made it up to have one.
    let from = from.map(|from| SocketAddr::new(from.ip().to_canonical(), from.port()));
    if let Some(from) = from.filter(|from| !from.ip().is_unspecified() && from.is_ipv4() == to.is_ipv4()) {
        if from.port() == 0 { socket.bind(from)? } else { socket.bind_held(from)? }
    }
    socket.connect(to).await
}

fn socket(of: IpAddr) -> io::Result<TcpSocket> {
    let socket = if of.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // What the process wrote is in the ring in the pieces that it wrote; what is taken from there is sent. Nagle's rule
    // would only hold the last piece of an answer back.
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// Listens where a process listens on the kernel.
pub(super) fn listen(listener: &super::WireListener) -> io::Result<TcpListener> {
    let socket = socket(listener.at.ip())?;
    if listener.at.is_ipv6() {
        socket.set_only_v6(listener.v6_only)?;
    }
    socket.bind_held(listener.at)?;
    socket.listen(listener.backlog.max(1))
}

/// Hands connections from the wire to the process, for as long as the core listens.
pub(super) async fn incoming(home: Rc<CoreArena>, listener: TcpListener, backlog: u32) {
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            // The runtime is being shut down.
            Err(_) => return,
        };
        let Ok(local) = stream.local_addr() else { continue };
        let args = OpenArgs {
            local: Addr::from(peer),
            peer: Addr::from(local),
            backlog: backlog.max(1),
            ..OpenArgs::default()
        };
        match Channel::open(&home.arena, &args) {
            Ok(channel) => {
                let (slot, generation) = (channel.slot(), channel.generation());
                fs_rt::spawn_local(relay(home.clone(), slot, generation, stream));
            }
            // No room in the process's queue: the client is told by a reset, as with tcp_abort_on_overflow.
            Err(error) => {
                tracing::debug!(%error, %peer, "a connection that nobody can accept");
                let _reset = stream.set_zero_linger();
            }
        }
    }
}
