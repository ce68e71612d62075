//! Where a connection between processes comes from: a port that the kernel gives, and keeps for as long as the connection lasts.
//!
//! The placeholder holds it, so bind(2) of others meets the conflict that it would meet with the kernel's own connection.
//!
//! - One that the application has not bound is bound to a port of the kernel's choice (of `ip_local_port_range` and
//!   IP_LOCAL_PORT_RANGE), without an address: the address could not be taken off again by connect(AF_UNSPEC). It stays
//!   unconnected, so that calls on it that do not come through this library fail at once.
//! - Where the port can be several sockets' (SO_REUSEADDR, SO_REUSEPORT), or is to be chosen with the destination
//!   (IP_BIND_ADDRESS_NO_PORT), or ports run short, the kernel has to know both ends to tell whether the connection is
//!   there already: the placeholder is connected with the SYN put off until data is sent on it (TCP_FASTOPEN_CONNECT),
//!   which never is.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use libc::{SO_ERROR, SO_REUSEADDR, SO_REUSEPORT, SOL_SOCKET, SOL_TCP, TCP_INFO};
use rustix::io::Errno;

use crate::{
    address,
    process::arenas::Mapped,
    socket::{Socket, mark},
    sys::call,
    types::Fd,
};

pub(crate) use libc::{TCP_FASTOPEN_CONNECT, TCP_FASTOPEN_NO_COOKIE};
/// TCP_CLOSE of tcp_states.h.
const CLOSE: u8 = 7;

/// Connections of an arena from which on ports are shared by destination, as the kernel's connections share them. Lower:
/// more placeholders that are half connected. Higher: a few processes with many connections use the ports up.
const MANY: u32 = 1024;

/// The address that a connection to `to` comes from. `source`: what the route says.
///
/// # Errors
/// `EADDRNOTAVAIL`: no port is left for that destination, or that connection is there already.
pub(crate) fn claim(
    fd: Fd,
    socket: &Socket,
    mapped: &Mapped,
    source: IpAddr,
    to: SocketAddr,
) -> Result<SocketAddr, Errno> {
    let family = socket.family();
    if !socket.marked(mark::BOUND) && mapped.slots_used() < MANY {
        match call::bind(fd, address::raw(any(family, 0), family).as_bytes()) {
            // EINVAL: it has one, of an attempt before this.
            Ok(()) | Err(Errno::INVAL) => {
                if let Some(bound) = bound(fd, family).filter(|bound| bound.port() != 0) {
                    return Ok(SocketAddr::new(source, bound.port()));
                }
            }
            Err(_) => {}
        }
    }
    let mut here = bound(fd, family);
    if here.is_none_or(|here| here.port() == 0) || is_shared(fd) {
        reserve(fd, socket, to)?;
        here = bound(fd, family);
    }
    Ok(match here.filter(|here| here.port() != 0) {
        Some(here) if here.ip().is_unspecified() => SocketAddr::new(source, here.port()),
        Some(here) => SocketAddr::new(here.ip().to_canonical(), here.port()),
        // The kernel has no route there (a device that is down): nobody of its own can be at that port.
        None => SocketAddr::new(source, mapped.ephemeral_port()),
    })
}

/// Connects the placeholder without a packet. Whatever else than the port keeps the kernel from it is left alone: the
/// connection is not its.
fn reserve(fd: Fd, socket: &Socket, to: SocketAddr) -> Result<(), Errno> {
    let on = 1_i32.to_ne_bytes();
    let mut answer = call::setsockopt(fd, SOL_TCP, TCP_FASTOPEN_NO_COOKIE, &on);
    if answer.is_ok() {
        answer = call::setsockopt(fd, SOL_TCP, TCP_FASTOPEN_CONNECT, &on);
    }
    if answer.is_ok() {
        answer = call::connect(fd, address::raw(to, socket.family()).as_bytes());
    }
    match answer {
        Ok(()) => {
            socket.mark(mark::RESERVED);
            Ok(())
        }
        Err(errno) => {
            forget_options(fd);
            if errno == Errno::ADDRNOTAVAIL { Err(errno) } else { Ok(()) }
        }
    }
}

/// There is no connection after all: a port that the application did not ask for is given back.
pub(crate) fn give_up(fd: Fd, socket: &Socket) {
    if end(fd, socket) {
        // ECONNRESET of the connection that was ended.
        let _taken = call::int_option(fd, SOL_SOCKET, SO_ERROR);
    }
}

/// connect(AF_UNSPEC): gives the port back likewise. True: the kernel tells of ECONNRESET (tcp_disconnect()).
pub(crate) fn end(fd: Fd, socket: &Socket) -> bool {
    let family = socket.family();
    if is_closed(fd) {
        let given = !socket.marked(mark::BOUND | mark::ACCEPTED) && bound(fd, family).is_some_and(|at| at.port() != 0);
        // Only what is connected is unbound by a disconnect. The discard port of this host: nothing is sent.
        if !given || reserve(fd, socket, loopback(family)).is_err() {
            return false;
        }
    }
    let ended = !is_closed(fd) && call::connect(fd, &[0; 16]).is_ok();
    forget_options(fd);
    socket.unmark(mark::RESERVED);
    ended
}

fn forget_options(fd: Fd) {
    for name in [TCP_FASTOPEN_CONNECT, TCP_FASTOPEN_NO_COOKIE] {
        // Taken where it was set.
        let _ = call::setsockopt(fd, SOL_TCP, name, &[0; 4]);
    }
}

fn is_closed(fd: Fd) -> bool {
    let mut state = [0];
    call::getsockopt(fd, SOL_TCP, TCP_INFO, &mut state).is_err() || state == [CLOSE]
}

/// What the placeholder is bound to.
fn bound(fd: Fd, family: u32) -> Option<SocketAddr> {
    call::getsockname(fd).ok().and_then(|bound| address::parse(bound.as_bytes(), family))
}

/// Whether others can be bound to its port.
fn is_shared(fd: Fd) -> bool {
    [SO_REUSEADDR, SO_REUSEPORT].iter().any(|&name| call::int_option(fd, SOL_SOCKET, name).is_ok_and(|on| on != 0))
}

fn any(family: u32, port: u16) -> SocketAddr {
    let ip: IpAddr =
        if family == address::AF_INET { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    SocketAddr::new(ip, port)
}

fn loopback(family: u32) -> SocketAddr {
    const DISCARD: u16 = 9;
    let ip: IpAddr = if family == address::AF_INET { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    SocketAddr::new(ip, DISCARD)
}
