//! The kernel's side of the comparison: one pinned thread per core, each with its own listeners and
//! tokio runtime.

use crate::net::{Listener, Stream, UdpSocket};
use fs_core::CongestionControl;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use tokio::net::TcpSocket;

/// Builds a core's runtime and runs `app` on it, on the calling thread, which is pinned to `cpu`.
pub(crate) fn run_core<T>(cpu: usize, app: impl FnOnce() -> T) -> anyhow::Result<T::Output>
where
    T: Future,
{
    crate::sys::pin_to_cpu(cpu).map_err(|error| anyhow::anyhow!("cannot use CPU {cpu}: {error}"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build_local(tokio::runtime::LocalOptions::default())?;
    let result = runtime.block_on(async { app().await });
    // Tasks that still run belong to connections that the program has given up.
    runtime.shutdown_background();
    Ok(result)
}

pub(crate) fn listen(addr: SocketAddr, backlog: u32) -> io::Result<Listener> {
    let socket = tcp_socket(addr)?;
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(true)?;
    socket.bind(addr)?;
    socket.listen(backlog).map(Listener::Kernel)
}

pub(crate) async fn connect(addr: SocketAddr, local: Option<IpAddr>) -> io::Result<Stream> {
    let socket = tcp_socket(addr)?;
    if let Some(local) = local {
        crate::sys::set_bind_address_no_port(socket.as_fd())?;
        socket.bind(SocketAddr::new(local, 0))?;
    }
    socket.connect(addr).await.map(Stream::Kernel)
}

pub(crate) async fn bind_udp(addr: SocketAddr) -> io::Result<UdpSocket> {
    tokio::net::UdpSocket::bind(addr).await.map(UdpSocket::Kernel)
}

/// The option for all of the program's sockets.
static CONGESTION: OnceLock<CongestionControl> = OnceLock::new();

/// Sets the congestion control of all sockets that this program will open.
pub(crate) fn set_congestion(congestion: Option<CongestionControl>) {
    if let Some(congestion) = congestion {
        CONGESTION.get_or_init(|| congestion);
    }
}

fn tcp_socket(addr: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    if let Some(congestion) = CONGESTION.get() {
        crate::sys::set_congestion(socket.as_fd(), congestion.name())?;
    }
    Ok(socket)
}
