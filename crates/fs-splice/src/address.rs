//! The two ends of a connection.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

/// The addresses of a connection, as they are in packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
}

impl Ends {
    pub(crate) fn of(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let local = SocketAddr::try_from(rustix::net::getsockname(socket)?)?;
        let peer = rustix::net::getpeername(socket)?.ok_or(io::ErrorKind::NotConnected)?;
        Ok(Self { local: canonical(local), peer: canonical(SocketAddr::try_from(peer)?) })
    }

    pub(crate) fn is_v4(&self) -> bool {
        self.peer.is_ipv4()
    }
}

/// A socket of IPv6 shows clients of IPv4 by mapped addresses.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip if ip.is_ipv4() => SocketAddr::new(ip, address.port()),
        // With the scope of a link-local address.
        _ => address,
    }
}
