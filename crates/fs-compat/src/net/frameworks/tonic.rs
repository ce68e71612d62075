//! tonic's server on [`TcpListener`]; its client connects by [`Connector`](super::Connector).

use crate::net::tcp_listener::TcpListener;
use crate::net::tcp_stream::TcpStream;
use futures_core::Stream;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use tonic::transport::server::{Connected, TcpConnectInfo};

impl Connected for TcpStream {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        TcpConnectInfo { local_addr: self.local_addr().ok(), remote_addr: self.peer_addr().ok() }
    }
}

/// A stream of a listener's connections, for `serve_with_incoming`; like tonic's own `TcpIncoming`.
/// It ends when the runtime shuts down, and the server ends with it.
#[derive(Debug)]
pub struct TcpIncoming {
    listener: TcpListener,
    nodelay: Option<bool>,
}

impl TcpIncoming {
    /// Sets TCP_NODELAY of accepted connections; `None` leaves it as it is.
    pub fn with_nodelay(self, nodelay: Option<bool>) -> Self {
        Self { nodelay, ..self }
    }

    /// Returns the local address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl From<TcpListener> for TcpIncoming {
    fn from(listener: TcpListener) -> Self {
        Self { listener, nodelay: None }
    }
}

impl Stream for TcpIncoming {
    type Item = io::Result<TcpStream>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<TcpStream>>> {
        let accepted = std::task::ready!(self.listener.poll_accept(cx));
        // The only error is the end of the listener.
        let Ok((stream, _)) = accepted else { return Poll::Ready(None) };
        if let Some(nodelay) = self.nodelay {
            stream.set_nodelay(nodelay)?;
        }
        Poll::Ready(Some(Ok(stream)))
    }
}
