//! One core: accepts on the device, connects to the program, and relays.

use crate::names::Expected;
use crate::pump::{BUFFER, pump};
use crate::shared::Shared;
use crate::source::canonical;
use fs_compat::{Keepalive, TcpListener, TcpSocket, TcpStream};
use rustix::net::sockopt::set_socket_linger;
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;
use tokio::net::TcpStream as KernelStream;

/// Connections that the core's listener keeps until the task below takes them. The kernel handles
/// the program's own backlog: connect(2) waits for it.
const BACKLOG: u32 = 1024;
/// Maximum number of local addresses to try for a connection. Each one fails only if another
/// program uses it too.
const SOURCES: usize = 64;

/// Listens at each address of the configuration.
pub(crate) fn listen(shared: &Shared) -> Result<Vec<TcpListener>, String> {
    shared.config.listens().map(|at| listen_at(at).map_err(|error| format!("cannot serve {at}: {error}"))).collect()
}

fn listen_at(at: SocketAddr) -> io::Result<TcpListener> {
    let socket = if at.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    if at.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_nodelay(true)?;
    // The program's own keepalive only checks this host. Without keepalive on the wire, a client
    // that has disappeared would stay connected forever.
    socket.set_tcp_keepalive(keepalive())?;
    socket.bind_held(at)?;
    socket.listen(BACKLOG)
}

/// Linux's defaults (tcp_keepalive_time and others).
fn keepalive() -> Keepalive {
    Keepalive { idle: Duration::from_secs(7200), interval: Duration::from_secs(75), count: 9 }
}

/// Serves a listener until the runtime shuts down.
pub(crate) async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let scratch = Rc::new(RefCell::new(vec![0; BUFFER]));
    // An error means that the runtime has ended.
    while let Ok((wire, client)) = listener.accept().await {
        let (shared, scratch) = (shared.clone(), scratch.clone());
        fs_rt::spawn_local(async move { connection(wire, canonical(client), &shared, &scratch).await });
    }
}

async fn connection(wire: TcpStream, client: SocketAddr, shared: &Arc<Shared>, scratch: &RefCell<Vec<u8>>) {
    let Ok(server) = wire.local_addr().map(canonical) else { return };
    // If the relay ends first, or is killed, both ends are reset: FIN would mean that all bytes have arrived.
    // This fails only if the connection has ended.
    let _ = wire.set_zero_linger();
    let counters = &shared.counters;
    counters.accepted.fetch_add(1, Ordering::Relaxed);
    let connected = {
        let mut connecting = pin!(connect(server, client, shared));
        // The program's backlog may be full for minutes, and the client may leave earlier.
        poll_fn(|cx| match connecting.as_mut().poll(cx) {
            Poll::Ready(connected) => Poll::Ready(Some(connected)),
            Poll::Pending => wire.poll_closed(cx).map(|()| None),
        })
        .await
    };
    match connected {
        Some(Ok((mut program, expected))) => {
            shared.listens(server);
            counters.open.fetch_add(1, Ordering::Relaxed);
            let _ = program.set_zero_linger();
            // Boxed, so that the task is smaller while it connects.
            match Box::pin(pump(&wire, &mut program, scratch)).await {
                Ok(()) => {
                    let _ = (wire.set_linger(None), set_socket_linger(&program, None));
                }
                Err(error) => {
                    tracing::debug!(%client, %server, %error, "reset a connection");
                    counters.reset.fetch_add(1, Ordering::Relaxed);
                }
            }
            counters.open.fetch_sub(1, Ordering::Relaxed);
            // The entry is removed before the socket is closed, because another process may get the
            // address after that.
            drop(expected);
            drop(program);
        }
        Some(Err(error)) => {
            counters.refused.fetch_add(1, Ordering::Relaxed);
            shared.refused(server, &error);
        }
        None => {}
    }
}

/// Connects to the program's listener. The program's end gets the client's address.
async fn connect(server: SocketAddr, client: SocketAddr, shared: &Arc<Shared>) -> io::Result<(KernelStream, Expected)> {
    let mut tried = 0;
    loop {
        match connect_from(shared.sources.next(server), server, client, shared).await {
            Err(error) if is_in_use(&error) && tried < SOURCES => tried += 1,
            connected => return connected,
        }
    }
}

fn is_in_use(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable)
}

async fn connect_from(
    source: SocketAddr,
    server: SocketAddr,
    client: SocketAddr,
    shared: &Arc<Shared>,
) -> io::Result<(KernelStream, Expected)> {
    let socket = if server.is_ipv4() { tokio::net::TcpSocket::new_v4() } else { tokio::net::TcpSocket::new_v6() }?;
    // No SO_REUSEADDR: with it, another process could bind the same address and connect with the
    // client's name.
    socket.set_nodelay(true)?;
    socket.bind(source)?;
    // With TCP_DEFER_ACCEPT the program's end is established by the first data, so the name is
    // expected for as long as the connection lasts.
    let Some(expected) = shared.names.expect(source, server, client)? else {
        return Err(io::ErrorKind::AddrInUse.into());
    };
    Ok((socket.connect(server).await?, expected))
}
