//! Reserves a port in the kernel with a bound socket. While a listener of ours has the port, the
//! socket also listens for connections that do not come through the runtime's devices. While it
//! exists, the kernel refuses the port to other processes, has checked our privilege for it, and
//! never assigns it. It disappears with the process.

use fs_core::Protocol;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A reserved port. Dropping it frees the port.
#[derive(Debug)]
pub(crate) struct Reservation {
    fd: OwnedFd,
    /// The kernel had sockets of connections at the port, in TIME-WAIT or of a closed listener.
    pub(crate) is_shared: bool,
}

impl Reservation {
    /// Reserves `at`. Port 0 lets the kernel choose. `v6_only` as for the socket that it
    /// represents.
    ///
    /// Servers can use a port that only accepted connections use (the purpose of SO_REUSEADDR on
    /// Linux): those in TIME-WAIT, and those whose listener is closed. They cannot use a port with
    /// another socket. A bind with SO_REUSEADDR alone cannot distinguish the two while no socket
    /// listens. So the second attempt listens for a moment, which fails next to another reservation.
    /// At the end SO_REUSEADDR is off, so that later binds or listens of other processes fail.
    pub(crate) fn new(protocol: Protocol, at: SocketAddr, v6_only: bool) -> io::Result<Self> {
        if at.port() == 0 {
            return Self::of_any_port(protocol, at, v6_only);
        }
        let exclusive = Self::socket(protocol, at, v6_only)?;
        match exclusive.bind(at) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && protocol == Protocol::Tcp => {}
            Err(error) => return Err(error),
            Ok(()) => return Ok(exclusive),
        }
        let mut shared = Self::socket(protocol, at, v6_only)?;
        shared.is_shared = true;
        shared.set_option(libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
        shared.bind(at)?;
        shared.listen_for_a_moment()?;
        Ok(shared)
    }

    /// Reserves a port that the kernel chooses, and binds it explicitly: only then does a socket
    /// keep its port when it stops listening or is disconnected (SOCK_BINDPORT_LOCK).
    fn of_any_port(protocol: Protocol, mut at: SocketAddr, v6_only: bool) -> io::Result<Self> {
        let mut tries = 0;
        loop {
            let any = Self::socket(protocol, at, v6_only)?;
            at.set_port(0);
            any.bind(at)?;
            at.set_port(any.port()?);
            drop(any);
            let ours = Self::socket(protocol, at, v6_only)?;
            match ours.bind(at) {
                // Another process got the port in between.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries < 100 => tries += 1,
                bound => return bound.map(|()| ours),
            }
        }
    }

    /// Reserves with a non-blocking socket that is bound already.
    pub(crate) fn by(fd: OwnedFd) -> Self {
        Self { fd, is_shared: false }
    }

    fn socket(protocol: Protocol, at: SocketAddr, v6_only: bool) -> io::Result<Self> {
        let family = if at.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET };
        let kind = match protocol {
            Protocol::Tcp => libc::SOCK_STREAM,
            Protocol::Udp => libc::SOCK_DGRAM,
        };
        // SAFETY: no pointers; the result is checked.
        let fd = unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` is new and has no other owner.
        let this = Self { fd: unsafe { OwnedFd::from_raw_fd(fd) }, is_shared: false };
        if at.is_ipv6() {
            this.set_option(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, v6_only as i32)?;
        }
        Ok(this)
    }

    fn set_option(&self, level: i32, name: i32, value: i32) -> io::Result<()> {
        // SAFETY: `value` lives during the call and its size is given.
        let answer = unsafe {
            libc::setsockopt(self.fd.as_raw_fd(), level, name, (&raw const value).cast(), size_of::<i32>() as u32)
        };
        check(answer)
    }

    fn bind(&self, at: SocketAddr) -> io::Result<()> {
        let fd = self.fd.as_raw_fd();
        check(match at {
            SocketAddr::V4(v4) => {
                let raw = libc::sockaddr_in {
                    sin_family: libc::AF_INET as u16,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                    sin_zero: [0; 8],
                };
                // SAFETY: `raw` lives during the call and its size is given.
                unsafe { libc::bind(fd, (&raw const raw).cast(), size_of::<libc::sockaddr_in>() as u32) }
            }
            SocketAddr::V6(v6) => {
                let raw = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as u16,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                    sin6_scope_id: v6.scope_id(),
                };
                // SAFETY: `raw` lives during the call and its size is given.
                unsafe { libc::bind(fd, (&raw const raw).cast(), size_of::<libc::sockaddr_in6>() as u32) }
            }
        })
    }

    fn listen_for_a_moment(&self) -> io::Result<()> {
        self.listen(0)?;
        self.stop_listening()
    }

    /// Starts to listen. Another call changes the backlog. Accepted connections inherit this
    /// socket's SO_REUSEADDR, without which no other listener could use the port while one of them
    /// lives.
    pub(crate) fn listen(&self, backlog: u32) -> io::Result<()> {
        self.set_option(libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        // SAFETY: no pointers.
        check(unsafe { libc::listen(self.fd.as_raw_fd(), backlog) })
    }

    /// Stops listening and only reserves the port. Waiting connections are reset.
    pub(crate) fn stop_listening(&self) -> io::Result<()> {
        // SAFETY: no pointers. On a listener this returns it to the bound state (inet_shutdown,
        // TCP_LISTEN).
        check(unsafe { libc::shutdown(self.fd.as_raw_fd(), libc::SHUT_RDWR) })?;
        self.set_option(libc::SOL_SOCKET, libc::SO_REUSEADDR, 0)
    }

    /// The socket.
    pub(crate) fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Returns the socket's identity: duplicates of its descriptor have the same.
    pub(crate) fn id(&self) -> io::Result<(u64, u64)> {
        let stat = rustix::fs::fstat(&self.fd)?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// Returns the reserved port.
    pub(crate) fn port(&self) -> io::Result<u16> {
        let mut raw = [0u8; size_of::<libc::sockaddr_in6>()];
        let mut len = raw.len() as u32;
        // SAFETY: `raw` has `len` bytes, the size of the larger of the two address types that we
        // bind.
        check(unsafe { libc::getsockname(self.fd.as_raw_fd(), raw.as_mut_ptr().cast(), &mut len) })?;
        // sockaddr_in and sockaddr_in6 both hold the port in bytes 2 and 3, in network order.
        Ok(u16::from_be_bytes([raw[2], raw[3]]))
    }
}

impl AsFd for Reservation {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn check(answer: i32) -> io::Result<()> {
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_port_stays_reserved_when_its_socket_is_disconnected() {
        for at in ["127.0.0.1:0", "[::]:0"] {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                // A kernel or namespace without IPv6.
                let Ok(reserved) = Reservation::new(protocol, at.parse().unwrap(), false) else { continue };
                let port = reserved.port().unwrap();
                rustix::net::connect_unspec(&reserved).unwrap();
                assert_eq!(reserved.port().unwrap(), port, "{protocol:?} {at}");
            }
        }
    }
}
