//! A program's proof that the kernel gives it a port: a bound socket in the daemon's namespace.

use crate::leases::{Leases, Write};
use crate::sys::{bound_device, namespace_cookie, port_range};
use fs_core::Protocol;
use rustix::net::sockopt::{
    ipv6_v6only, set_socket_reuseaddr, socket_acceptconn, socket_protocol, socket_reuseaddr, socket_type,
};
use rustix::net::{Shutdown, SocketAddrAny, SocketType, connect_unspec, getpeername, getsockname, listen, shutdown};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;

/// Times that a socket is tested. Fewer: a program that is fast enough passes the test by luck. More:
/// some system calls each, for each of a program's 1,024 ephemeral ports.
const ROUNDS: usize = 8;

/// The protocol, addresses and port that a socket reserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Proof {
    pub(crate) protocol: Protocol,
    pub(crate) at: SocketAddr,
    v6_only: bool,
    /// The socket is a TCP listener.
    pub(crate) listens: bool,
}

impl Proof {
    /// Reads a descriptor that an untrusted process has sent. `namespace`: the cookie of the daemon's.
    pub(crate) fn of(socket: BorrowedFd<'_>, namespace: u64) -> io::Result<Self> {
        let refused = || io::Error::from(io::ErrorKind::PermissionDenied);
        if namespace_cookie(socket)? != namespace {
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
        let listens = protocol == Protocol::Tcp && socket_acceptconn(socket)?;
        Ok(Self { protocol, at, v6_only, listens })
    }

    /// Returns true if a slot has leases of all ends.
    pub(crate) fn is_leased<M: Write>(&self, leases: &Leases<M>, slot: u16) -> bool {
        self.ends().all(|end| leases.has(self.protocol, end, slot))
    }

    /// Returns an error if the program could free the port while the daemon has the socket too. A port
    /// that the kernel has chosen (bind(2) to port 0, or none) is freed when a UDP socket is disconnected,
    /// and when a TCP socket stops listening or its connection ends (SOCK_BINDPORT_LOCK in
    /// `__udp_disconnect`, `tcp_disconnect` and `tcp_set_state`). This does that, and checks the port.
    ///
    /// A program can make the kernel choose the same port again during the test (IP_LOCAL_PORT_RANGE). So the
    /// test runs [`ROUNDS`] times, and refuses a socket that has such a range.
    ///
    /// Listeners are not tested, because the test would drop their queue: they are accepted only at ports that
    /// the kernel never chooses. Sockets bound to a device are refused, because other sockets can have the port
    /// on another device.
    ///
    /// If `is_leased`, an earlier daemon has done this, and the program may have begun to listen, or bound the
    /// socket to a device. The test would end both.
    pub(crate) fn keeps_port(&self, socket: BorrowedFd<'_>, is_leased: bool) -> io::Result<()> {
        if getpeername(socket).is_ok_and(|peer| peer.is_some()) {
            return Err(io::Error::other("it has a peer"));
        }
        if is_leased {
            return Ok(());
        }
        if bound_device(socket)? != 0 {
            return Err(io::Error::other("it is bound to a device"));
        }
        if self.listens {
            if !chosen_ports()?.contains(&self.at.port()) {
                return Ok(());
            }
            return Err(io::Error::other("it listens, at a port that the kernel may have chosen"));
        }
        for _ in 0..ROUNDS {
            match self.protocol {
                Protocol::Udp => connect_unspec(socket)?,
                Protocol::Tcp => {
                    // Otherwise it cannot listen at a port with connections in TIME-WAIT.
                    let reuses = socket_reuseaddr(socket)?;
                    set_socket_reuseaddr(socket, true)?;
                    let stopped = listen(socket, 0).and_then(|()| shutdown(socket, Shutdown::Both));
                    set_socket_reuseaddr(socket, reuses)?;
                    stopped?;
                }
            }
            let now = SocketAddr::try_from(getsockname(socket)?).ok();
            if now != Some(self.at) || port_range(socket)? != 0 {
                return Err(io::Error::other("the kernel has chosen it: bind to a number"));
            }
        }
        Ok(())
    }

    /// Returns the ends whose packets the socket would get.
    pub(crate) fn ends(&self) -> impl Iterator<Item = SocketAddr> + use<> {
        let port = self.at.port();
        let ip = self.at.ip().to_canonical();
        let both = self.at.is_ipv6() && ip.is_unspecified() && !self.v6_only;
        [Some(SocketAddr::new(ip, port)), both.then(|| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port))]
            .into_iter()
            .flatten()
    }
}

/// Returns the ports of which the kernel chooses, in the daemon's namespace.
fn chosen_ports() -> io::Result<RangeInclusive<u16>> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")?;
    let mut ports = text.split_whitespace().map(str::parse);
    match (ports.next(), ports.next()) {
        (Some(Ok(first)), Some(Ok(last))) => Ok(first..=last),
        _ => Err(io::ErrorKind::InvalidData.into()),
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
        // Another namespace, no socket, another kind of socket, and not bound.
        assert!(Proof::of(one.as_fd(), 0).is_err());
        assert!(Proof::of(std::io::stdin().as_fd(), namespace(one.as_fd())).is_err());
        let unix = std::os::unix::net::UnixDatagram::unbound().unwrap();
        assert!(Proof::of(unix.as_fd(), namespace(one.as_fd())).is_err());
        let new = rustix::net::socket(rustix::net::AddressFamily::INET, SocketType::STREAM, None).unwrap();
        assert!(Proof::of(new.as_fd(), namespace(one.as_fd())).is_err());
    }
}
