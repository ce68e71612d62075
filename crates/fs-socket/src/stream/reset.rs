//! What tcp_disconnect() of the kernel leaves of a connection: ECONNRESET in SO_ERROR, which poll(2) tells of as well. So the placeholder
//! has it, by a connection of its own that is ended: one whose SYN is put off until data is sent (TCP_FASTOPEN_CONNECT), which never is.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use libc::{SOL_TCP, TCP_FASTOPEN_CONNECT, TCP_FASTOPEN_NO_COOKIE};
use rustix::io::Errno;

use crate::{
    address,
    socket::{Socket, mark},
    sys::call,
    types::Fd,
};

/// Its connection was ended by who had it.
pub(crate) fn end(fd: Fd, socket: &Socket) {
    // One that is bound would go back to what it is bound to.
    if !socket.marked(mark::NAMED) || pretend(fd, socket.family()).is_err() {
        socket.mark(mark::DISCONNECTED);
    }
}

fn pretend(fd: Fd, family: u32) -> Result<(), Errno> {
    let set = |value: i32| {
        let set = |name| call::setsockopt(fd, SOL_TCP, name, &value.to_ne_bytes());
        set(TCP_FASTOPEN_NO_COOKIE).and(set(TCP_FASTOPEN_CONNECT))
    };
    let ended = set(1)
        .and_then(|()| call::connect(fd, address::raw(discard(family), family).as_bytes()))
        .and_then(|()| call::connect(fd, &[0; 16]));
    // Taken where it was set.
    let _taken = set(0);
    ended
}

/// The discard port of this host.
fn discard(family: u32) -> SocketAddr {
    const DISCARD: u16 = 9;
    let ip: IpAddr = if family == address::AF_INET { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    SocketAddr::new(ip, DISCARD)
}
