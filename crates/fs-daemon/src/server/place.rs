//! What a placeholder is: read from the socket itself, so that a process cannot say anything else.

use crate::listeners::Netns;
use crate::sys::netns_cookie;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, ipproto, sockopt};
use std::net::SocketAddr;

/// A TCP socket of a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placeholder {
    pub(super) netns: Netns,
    pub(super) cookie: u64,
    /// The bound address; unspecified and port 0 where it is not bound.
    pub(super) local: SocketAddr,
    pub(super) listens: bool,
    pub(super) v6_only: bool,
}

impl Placeholder {
    /// `EPROTONOSUPPORT`: it is something else.
    pub(super) fn read(socket: BorrowedFd<'_>) -> Result<Self, Errno> {
        let domain = sockopt::socket_domain(socket)?;
        let tcp = sockopt::socket_type(socket)? == SocketType::STREAM
            && sockopt::socket_protocol(socket)? == Some(ipproto::TCP)
            && (domain == AddressFamily::INET || domain == AddressFamily::INET6);
        if !tcp {
            return Err(Errno::PROTONOSUPPORT);
        }
        let local = rustix::net::getsockname(socket)?;
        Ok(Self {
            netns: netns_cookie(socket).map_err(|_| Errno::PROTONOSUPPORT)?,
            cookie: sockopt::socket_cookie(socket)?,
            local: SocketAddr::try_from(local).map_err(|_| Errno::AFNOSUPPORT)?,
            listens: sockopt::socket_acceptconn(socket)?,
            v6_only: domain == AddressFamily::INET6 && sockopt::ipv6_v6only(socket)?,
        })
    }
}
