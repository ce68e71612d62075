//! [`UdpSocket`].

use super::addresses::each_addr;
use super::addresses::std_addr;
use super::options::{delegate, set_timeout};
use crate::call;
use crate::socket2::{Domain, Socket, Type};
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

/// A UDP socket; see `std::net::UdpSocket`. The kernel carries its datagrams.
///
/// ```
/// use fs_compat::blocking::UdpSocket;
///
/// let (one, other) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
/// one.send_to(b"hello", other.local_addr()?)?;
/// let mut buf = [0; 16];
/// assert_eq!(other.recv_from(&mut buf)?, (5, one.local_addr()?));
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct UdpSocket {
    pub(super) socket: Socket,
}

impl UdpSocket {
    /// Binds the first of the addresses that is available.
    pub fn bind<A: ToSocketAddrs>(addr: A) -> io::Result<UdpSocket> {
        each_addr(addr, |addr| {
            let socket = Socket::new(Domain::for_address(addr), Type::DGRAM, None)?;
            socket.bind(&addr.into())?;
            Ok(UdpSocket { socket })
        })
    }

    /// Sets the peer: the first of the addresses that can be reached.
    pub fn connect<A: ToSocketAddrs>(&self, addr: A) -> io::Result<()> {
        each_addr(addr, |addr| call::again(|| self.socket.connect(&addr.into())))
    }

    /// Returns the local address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        std_addr(&self.socket.local_addr()?)
    }

    /// Returns the peer's address.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        std_addr(&self.socket.peer_addr()?)
    }

    /// Returns another handle of the same socket.
    pub fn try_clone(&self) -> io::Result<UdpSocket> {
        Ok(UdpSocket { socket: self.socket.try_clone()? })
    }

    /// Receives one datagram and its sender. Bytes that do not fit are lost.
    pub fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receive_from(buf, 0)
    }

    /// Receives like [`recv_from`](Self::recv_from), but leaves the datagram in the queue.
    pub fn peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receive_from(buf, libc::MSG_PEEK)
    }

    fn receive_from(&self, buf: &mut [u8], flags: i32) -> io::Result<(usize, SocketAddr)> {
        let (len, addr) = call::recv_from_init(self.socket.fd(), buf, flags)?;
        Ok((len, std_addr(&addr)?))
    }

    /// Sends one datagram to the first of the addresses.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if `addr` resolves to no address.
    pub fn send_to<A: ToSocketAddrs>(&self, buf: &[u8], addr: A) -> io::Result<usize> {
        let Some(addr) = addr.to_socket_addrs()?.next() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no addresses to send data to"));
        };
        self.socket.send_to_with_flags(buf, &addr.into(), libc::MSG_NOSIGNAL)
    }

    /// Sends one datagram to the peer.
    pub fn send(&self, buf: &[u8]) -> io::Result<usize> {
        self.socket.send_with_flags(buf, libc::MSG_NOSIGNAL)
    }

    /// Receives one datagram from the peer.
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        call::recv_init(self.socket.fd(), buf, 0)
    }

    /// Receives like [`recv`](Self::recv), but leaves the datagram in the queue.
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        call::recv_init(self.socket.fd(), buf, libc::MSG_PEEK)
    }

    /// Sets how long receiving waits before it fails with `WouldBlock`. `None` waits for ever.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        set_timeout(&self.socket, timeout, Socket::set_read_timeout)
    }

    /// Sets how long sending waits before it fails with `WouldBlock`. `None` waits for ever.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for zero.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        set_timeout(&self.socket, timeout, Socket::set_write_timeout)
    }

    /// Sets O_NONBLOCK, which all clones share.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        call::set_nonblocking(self.socket.fd(), nonblocking)
    }
}

delegate! { UdpSocket {
    /// How long receiving waits.
    fn read_timeout() -> Option<Duration> = read_timeout;
    /// How long sending waits.
    fn write_timeout() -> Option<Duration> = write_timeout;
    /// SO_BROADCAST.
    fn set_broadcast(broadcast: bool) -> () = set_broadcast;
    /// SO_BROADCAST.
    fn broadcast() -> bool = broadcast;
    /// IP_MULTICAST_LOOP.
    fn set_multicast_loop_v4(multicast_loop_v4: bool) -> () = set_multicast_loop_v4;
    /// IP_MULTICAST_LOOP.
    fn multicast_loop_v4() -> bool = multicast_loop_v4;
    /// IP_MULTICAST_TTL.
    fn set_multicast_ttl_v4(multicast_ttl_v4: u32) -> () = set_multicast_ttl_v4;
    /// IP_MULTICAST_TTL.
    fn multicast_ttl_v4() -> u32 = multicast_ttl_v4;
    /// IPV6_MULTICAST_LOOP.
    fn set_multicast_loop_v6(multicast_loop_v6: bool) -> () = set_multicast_loop_v6;
    /// IPV6_MULTICAST_LOOP.
    fn multicast_loop_v6() -> bool = multicast_loop_v6;
    /// IP_TTL.
    fn set_ttl(ttl: u32) -> () = set_ttl_v4;
    /// IP_TTL.
    fn ttl() -> u32 = ttl_v4;
    /// Joins a group on the device that has the address `interface`.
    fn join_multicast_v4(multiaddr: &Ipv4Addr, interface: &Ipv4Addr) -> () = join_multicast_v4;
    /// Joins a group on the device with the index `interface`.
    fn join_multicast_v6(multiaddr: &Ipv6Addr, interface: u32) -> () = join_multicast_v6;
    /// Leaves a group.
    fn leave_multicast_v4(multiaddr: &Ipv4Addr, interface: &Ipv4Addr) -> () = leave_multicast_v4;
    /// Leaves a group.
    fn leave_multicast_v6(multiaddr: &Ipv6Addr, interface: u32) -> () = leave_multicast_v6;
    /// SO_ERROR: takes the pending error.
    fn take_error() -> Option<io::Error> = take_error;
}}

impl fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("UdpSocket");
        if let Ok(addr) = self.local_addr() {
            out.field("addr", &addr);
        }
        out.field("fd", &self.socket.fd()).finish()
    }
}
