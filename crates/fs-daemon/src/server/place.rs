//! What a placeholder is: read from the socket itself, so that a process cannot say anything else.

use super::ports::Shares;
use crate::listeners::Netns;
use crate::netns::Flow;
use crate::sys::{netns_cookie, raw_option};
use crate::wire::ListenerOptions;
use fs_shm::channel::Options;
use fs_shm::channel::sockopt::SocketOption;
use libc::SOL_SOCKET;
use rustix::fd::{AsFd, BorrowedFd};
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
    pub(super) shares: Shares,
    /// Its user to the kernel's rules.
    pub(super) uid: u32,
    /// What it is bound to, and marked with (SO_MARK); 0: nothing.
    pub(super) device: u32,
    pub(super) mark: u32,
}

const MARK: i32 = 36;
const BINDTOIFINDEX: i32 = 62;

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
            uid: rustix::fs::fstat(socket)?.st_uid,
            device: bound_device(socket),
            mark: word(socket, MARK).unwrap_or(u32::MAX),
            shares: Shares { address: sockopt::socket_reuseaddr(socket)?, port: sockopt::socket_reuseport(socket)? },
        })
    }
}

impl Placeholder {
    /// A connection of it, to the kernel's routes.
    pub(super) fn flow(&self, to: SocketAddr) -> Flow {
        let Self { local, uid, mark, device, .. } = *self;
        Flow { to, from: Some(local.ip()), port: local.port(), uid, mark, device }
    }
}

/// What a socket that listens at `at` answers a client at `to`, to the kernel's routes: an answer has the user, the mark and the device
/// of the listener (`inet_csk_route_req` of the kernel). `None`: the kernel does not tell.
pub(super) fn way_back(socket: BorrowedFd<'_>, at: SocketAddr, to: SocketAddr) -> Option<Flow> {
    let uid = rustix::fs::fstat(socket).ok()?.st_uid;
    let (mark, device) = (word(socket, MARK)?, word(socket, BINDTOIFINDEX)?);
    Some(Flow { to, from: Some(at.ip()), port: at.port(), uid, mark, device })
}

/// The index of the device that a socket is bound to (SO_BINDTODEVICE, a VRF's device); 0: none. Where the kernel does not tell
/// it counts as bound.
pub(super) fn bound_device(socket: BorrowedFd<'_>) -> u32 {
    word(socket, BINDTOIFINDEX).unwrap_or(u32::MAX)
}

fn word(socket: BorrowedFd<'_>, name: i32) -> Option<u32> {
    let mut value = [0; 4];
    let len = raw_option(socket, SOL_SOCKET, name, &mut value).ok()?;
    (len == value.len()).then(|| u32::from_ne_bytes(value))
}

/// The backlog of a socket that listens, cut to the kernel's limit (net.core.somaxconn) as it was then.
pub(super) fn backlog(socket: BorrowedFd<'_>) -> u32 {
    /// The limit that Linux begins with, for a kernel that does not tell.
    const USUAL: u32 = 4096;
    queue(socket).map_or(USUAL, |(_, backlog)| backlog)
}

/// How many connections wait for accept in the kernel's own queue of a socket that listens.
pub(super) fn waiting(socket: BorrowedFd<'_>) -> u32 {
    queue(socket).map_or(0, |(waiting, _)| waiting)
}

/// The kernel's queue of a socket that listens: how many wait, and how many may.
fn queue(socket: BorrowedFd<'_>) -> Option<(u32, u32)> {
    /// Of linux/tcp.h and, of `struct tcp_info`, `tcpi_unacked` and `tcpi_sacked`: for a listener, net/ipv4/tcp.c has these there.
    const INFO: i32 = 11;
    const UNACKED: usize = 24;
    let mut info = [0; UNACKED + 8];
    let len = raw_option(socket, ipproto::TCP.as_raw().get() as i32, INFO, &mut info).ok()?;
    let [.., a, b, c, d, e, f, g, h] = info;
    (len >= info.len()).then(|| (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h])))
}

/// What a socket has on which nothing was set. Such values are the kernel's defaults; the stack has its own.
#[derive(Debug, Default)]
pub(super) struct DefaultOptions(Vec<Vec<u8>>);

/// TCP_DEFER_ACCEPT and TCP_FASTOPEN of linux/tcp.h.
const DEFER_ACCEPT: i32 = 9;
const FASTOPEN: i32 = 23;

fn value(socket: BorrowedFd<'_>, level: i32, name: i32) -> Vec<u8> {
    let mut value = vec![0; Options::VALUE_MAX];
    // Empty: this socket does not have it (IPV6_* of an IPv4 socket).
    let len = raw_option(socket, level, name, &mut value).unwrap_or(0);
    value.truncate(len);
    value
}

impl DefaultOptions {
    pub(super) fn new() -> Self {
        let socket = |family| rustix::net::socket(family, SocketType::STREAM, Some(ipproto::TCP));
        // One for IPv6 has the options of IPv4 too. Without any there are no listeners either.
        let socket = socket(AddressFamily::INET6).or_else(|_| socket(AddressFamily::INET));
        let values = |socket: rustix::fd::OwnedFd| {
            Options::table().iter().map(|option| value(socket.as_fd(), option.level, option.name)).collect()
        };
        Self(socket.map(values).unwrap_or_default())
    }

    /// What an application has set on its listening socket.
    pub(super) fn changed_on(&self, socket: BorrowedFd<'_>) -> ListenerOptions {
        let mut inherited = Options::default();
        for (number, &SocketOption { level, name, .. }) in Options::table().iter().enumerate() {
            let value = value(socket, level, name);
            if !value.is_empty() && self.0.get(number) != Some(&value) && !inherited.note(number, &value) {
                tracing::debug!(level, name, "the stack does not have this option of a listener");
            }
        }
        let int = |name| match value(socket, ipproto::TCP.as_raw().get() as i32, name)[..] {
            [a, b, c, d, ..] => u32::from_ne_bytes([a, b, c, d]),
            _ => 0,
        };
        ListenerOptions { inherited, defer_accept: int(DEFER_ACCEPT), fast_open: int(FASTOPEN) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt;

    #[test]
    fn a_backlog_is_read_from_the_socket() {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, Some(ipproto::TCP)).unwrap();
        for set in [7, 1, 100] {
            rustix::net::listen(&socket, set).unwrap();
            assert_eq!(backlog(socket.as_fd()), set as u32);
        }
    }

    #[test]
    fn only_what_was_set_counts() {
        for family in [AddressFamily::INET, AddressFamily::INET6] {
            let socket = rustix::net::socket(family, SocketType::STREAM, Some(ipproto::TCP)).unwrap();
            let default_options = DefaultOptions::new();
            assert_eq!(default_options.changed_on(socket.as_fd()), ListenerOptions::default());
            sockopt::set_tcp_nodelay(&socket, true).unwrap();
            sockopt::set_socket_keepalive(&socket, true).unwrap();
            sockopt::set_tcp_keepidle(&socket, std::time::Duration::from_secs(11)).unwrap();
            sockopt::set_socket_recv_buffer_size(&socket, 20_000).unwrap();
            let expected =
                Options { nodelay: true, keepalive: true, keep_idle: 11, receive_buffer: 20_000, ..Options::default() };
            assert_eq!(default_options.changed_on(socket.as_fd()).inherited, expected);
        }
    }
}
