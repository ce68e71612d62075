//! A program's proof that the kernel gives it a port: a bound socket in the daemon's namespace.

use crate::sys::{bound_device, namespace_cookie};
use fs_core::Protocol;
use rustix::net::sockopt::{ipv6_v6only, socket_protocol, socket_type};
use rustix::net::{SocketAddrAny, SocketType, getsockname};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;

/// The protocol, addresses and port that a socket reserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Proof {
    pub(crate) protocol: Protocol,
    pub(crate) at: SocketAddr,
    v6_only: bool,
}

impl Proof {
    /// Reads a descriptor that an untrusted process has sent. `namespace`: the cookie of the daemon's.
    pub(crate) fn of(socket: BorrowedFd<'_>, namespace: u64) -> io::Result<Self> {
        let refused = || io::Error::from(io::ErrorKind::PermissionDenied);
        // A socket that is bound to a device does not keep others from the port on another device.
        if namespace_cookie(socket)? != namespace || bound_device(socket)? != 0 {
            return Err(refused());
        }
        let protocol = match (socket_type(socket)?, socket_protocol(socket)?) {
            (SocketType::STREAM, Some(rustix::net::ipproto::TCP)) => Protocol::Tcp,
            (SocketType::DGRAM, Some(rustix::net::ipproto::UDP)) => Protocol::Udp,
            _ => return Err(refused()),
        };
        let at: SocketAddrAny = getsockname(socket)?;
        let at = SocketAddr::try_from(at).map_err(|_| refused())?;
        if at.port() == 0 {
            return Err(refused());
        }
        let v6_only = at.is_ipv6() && ipv6_v6only(socket)?;
        Ok(Self { protocol, at, v6_only })
    }

    /// Returns the ends whose packets the socket would get.
    pub(crate) fn ends(self) -> impl Iterator<Item = SocketAddr> {
        let port = self.at.port();
        let ip = self.at.ip().to_canonical();
        let both = self.at.is_ipv6() && ip.is_unspecified() && !self.v6_only;
        [Some(SocketAddr::new(ip, port)), both.then(|| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port))]
            .into_iter()
            .flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn socket_proves_what_it_reserves() {
        let namespace = |socket: BorrowedFd<'_>| namespace_cookie(socket).unwrap();
        let both = std::net::TcpListener::bind("[::]:0").unwrap();
        let port = both.local_addr().unwrap().port();
        let proof = Proof::of(both.as_fd(), namespace(both.as_fd())).unwrap();
        let ends: Vec<SocketAddr> = proof.ends().collect();
        let any: [SocketAddr; 2] = [format!("[::]:{port}"), format!("0.0.0.0:{port}")].map(|at| at.parse().unwrap());
        assert_eq!((proof.protocol, &ends[..]), (Protocol::Tcp, &any[..]));
        let one = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let proof = Proof::of(one.as_fd(), namespace(one.as_fd())).unwrap();
        assert_eq!(
            (proof.protocol, proof.ends().collect::<Vec<_>>()),
            (Protocol::Udp, vec![one.local_addr().unwrap()])
        );
        // Another namespace, no socket, another kind of socket, not bound, and bound to a device.
        assert!(Proof::of(one.as_fd(), 0).is_err());
        assert!(Proof::of(std::io::stdin().as_fd(), namespace(one.as_fd())).is_err());
        let unix = std::os::unix::net::UnixDatagram::unbound().unwrap();
        assert!(Proof::of(unix.as_fd(), namespace(one.as_fd())).is_err());
        let new = rustix::net::socket(rustix::net::AddressFamily::INET, SocketType::STREAM, None).unwrap();
        assert!(Proof::of(new.as_fd(), namespace(one.as_fd())).is_err());
    }
}
