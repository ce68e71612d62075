//! Addresses of names, and of the system calls.

use crate::socket2::SockAddr;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

/// Tries `f` with each address that `addrs` resolves to, until one succeeds. Returns the last error
/// if none does.
pub(super) fn each_addr<T>(addrs: impl ToSocketAddrs, mut f: impl FnMut(SocketAddr) -> io::Result<T>) -> io::Result<T> {
    let mut last = None;
    for addr in addrs.to_socket_addrs()? {
        match f(addr) {
            Ok(value) => return Ok(value),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "could not resolve to any addresses")))
}

/// Converts an address to std's type. Fails with EINVAL for a family that std's sockets do not
/// have.
pub(super) fn std_addr(addr: &SockAddr) -> io::Result<SocketAddr> {
    addr.as_socket().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "invalid argument"))
}
