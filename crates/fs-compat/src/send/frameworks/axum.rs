//! `axum::serve` on [`TcpListener`].

use crate::send::{TcpListener, TcpStream};
use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use std::io;
use std::net::SocketAddr;

/// When the runtime has ended nothing is accepted any more, and as axum knows no end of a listener `accept` waits: end the
/// server with the runtime by `.with_graceful_shutdown(async move { handle.shutdown_begun().await })`.
impl Listener for TcpListener {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        match TcpListener::accept(self).await {
            Ok(accepted) => accepted,
            // There is one error, and it does not go away.
            Err(_over) => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        TcpListener::local_addr(self)
    }
}

/// The peer's address, for `Router::into_make_service_with_connect_info::<PeerAddr>()` and `ConnectInfo<PeerAddr>`. (axum
/// implements `Connected` for `SocketAddr` with its own listeners only; another crate cannot.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerAddr(pub SocketAddr);

impl Connected<IncomingStream<'_, TcpListener>> for PeerAddr {
    fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Self {
        PeerAddr(*stream.remote_addr())
    }
}
