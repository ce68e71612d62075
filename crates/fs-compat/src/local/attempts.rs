//! Calls that are tried again: until a socket is ready, and with each address of a name.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use tokio::io::Ready;
use tokio::net::ToSocketAddrs;

/// Calls `f` each time that `ready` has completed, until `f` does not return `WouldBlock`.
pub(crate) async fn when_ready<R>(
    ready: impl AsyncFn() -> io::Result<Ready>,
    mut f: impl FnMut() -> io::Result<R>,
) -> io::Result<R> {
    loop {
        ready().await?;
        match f() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => fs_rt::turn().await,
            answer => return answer,
        }
    }
}

/// Tries `f` with each address that `addrs` resolves to, until one succeeds. Returns the last error
/// if none does.
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
