//! `axum::serve` on [`TcpListener`].

use crate::net::tcp_listener::TcpListener;
use crate::net::tcp_stream::TcpStream;
use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use std::io;
use std::net::SocketAddr;

/// After the end of the runtime, `accept` never completes, because axum's listeners cannot fail.
/// End the server with the runtime: `.with_graceful_shutdown(async move {
/// handle.shutdown_begun().await })`.
impl Listener for TcpListener {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        match TcpListener::accept(self).await {
            Ok(accepted) => accepted,
            // The only error, and it is permanent.
            Err(_over) => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        TcpListener::local_addr(self)
    }
}

/// The peer's address, for `Router::into_make_service_with_connect_info::<PeerAddr>()` and
/// `ConnectInfo<PeerAddr>`. (axum implements `Connected` for `SocketAddr` with its own listeners
/// only; another crate cannot.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerAddr(pub SocketAddr);

impl Connected<IncomingStream<'_, TcpListener>> for PeerAddr {
    fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Self {
        PeerAddr(*stream.remote_addr())
    }
}
