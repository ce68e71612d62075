//! The socket types.

mod split;
mod tcp_listener;
mod tcp_options;
mod tcp_socket;
mod tcp_stream;
mod udp_socket;

pub use split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
pub use tcp_listener::TcpListener;
pub use tcp_socket::TcpSocket;
pub use tcp_stream::TcpStream;
pub use tokio::net::ToSocketAddrs;
pub use udp_socket::UdpSocket;

use std::future::Future;
use std::io;
use std::net::SocketAddr;

/// Tries `f` with every address that `addrs` stands for, until one succeeds; else the last error.
pub(crate) async fn each_addr<A, F, Fut, T>(addrs: A, mut f: F) -> io::Result<T>
where
    A: ToSocketAddrs,
    F: FnMut(SocketAddr) -> Fut,
    Fut: Future<Output = io::Result<T>>,
{
    let mut last = None;
    for addr in tokio::net::lookup_host(addrs).await? {
        match f(addr).await {
            Ok(value) => return Ok(value),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "could not resolve to any address")))
}
