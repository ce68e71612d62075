//! The peer of a UDP socket, and the address to which it sends.

use super::super::cores;
use super::super::shared::lock;
use super::super::udp_task::interface;
use super::{Connected, UdpSocket};
use crate::local::attempts::each_addr;
use crate::local::udp_kernel::source_in_kernel;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::atomic::Ordering;
use tokio::net::ToSocketAddrs;

impl UdpSocket {
    fn connected(&self) -> Option<Connected> {
        *lock(&self.peer)
    }

    /// Returns the local address. After [`UdpSocket::connect`], a wildcard is the address that the
    /// kernel's routes select for the peer.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.connected().map_or(self.local, |connected| connected.local))
    }

    /// Returns the peer that was set.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        let connected = self.connected().map(|connected| connected.peer);
        connected.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOTCONN))
    }

    /// Returns the peer for a call that sends.
    pub(super) fn peer(&self) -> io::Result<SocketAddr> {
        self.peer_addr().map_err(|_| io::Error::from_raw_os_error(libc::EDESTADDRREQ))
    }

    /// Sets the peer: `send` goes there, and only its datagrams are received. Of several addresses,
    /// the peer is the first one of the socket's family to which the host has a route.
    ///
    /// # Errors
    /// Those of `connect(2)`: `EAFNOSUPPORT` for an address of another family, `ENETUNREACH` without
    /// a route. In standalone addressing, routes are not checked.
    pub async fn connect<A: ToSocketAddrs>(&self, addr: A) -> io::Result<()> {
        each_addr(addr, async |peer| {
            // As the cores name senders: an IPv4 address that IPv6 maps is the IPv4 address.
            let peer = match (peer.ip().to_canonical(), peer) {
                (ip @ IpAddr::V4(_), _) => SocketAddr::new(ip, peer.port()),
                (_, SocketAddr::V6(v6)) => SocketAddrV6::new(*v6.ip(), v6.port(), 0, v6.scope_id()).into(),
                (_, v4) => v4,
            };
            let local = self.source_for(peer).await?;
            *lock(&self.peer) = Some(Connected { peer, local });
            Ok(())
        })
        .await
    }

    /// Returns the local address of datagrams to `peer`.
    async fn source_for(&self, peer: SocketAddr) -> io::Result<SocketAddr> {
        let is_dual = self.local.is_ipv6() && self.local.ip().is_unspecified();
        if self.local.is_ipv4() != peer.is_ipv4() && !is_dual {
            return Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT));
        }
        let Some(kernel) = &self.kernel else { return Ok(self.local) };
        let (local, broadcast) = (self.local, kernel.broadcast()?);
        let device = interface(self.shared.device.load(Ordering::Relaxed));
        let device = device.and_then(|device| self.runtime.device_name(device)).map(str::to_owned);
        // On a core: this thread may be in another network namespace.
        cores::ask(&self.runtime, 0, move |answer| async move {
            let source = source_in_kernel(local, peer, |socket| {
                socket.set_broadcast(broadcast)?;
                socket.bind_device(device.as_deref().map(str::as_bytes))
            });
            // The caller may not wait any more.
            let _ = answer.send(source);
        })
        .await?
    }
}
