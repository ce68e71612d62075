//! Sockets that come and go without a packet (TCP_REPAIR).
//!
//! After a flow is spliced, its sockets must not send anything. The server's connection keeps a
//! socket without bytes: else the kernel could choose the same port for the next connection to the
//! server. All such sockets end without a packet, also if the process is killed.

use crate::address::Ends;
use crate::sys::{Queue, Repair, choose_port, repair, set_queue_end};
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

fn open(is_v4: bool) -> io::Result<OwnedFd> {
    let family = if is_v4 { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    repair(socket.as_fd(), Repair::On)?;
    Ok(socket)
}

/// Returns an error if the process may not use TCP_REPAIR.
pub(crate) fn check() -> io::Result<()> {
    open(true).map(drop)
}

/// Opens a socket that has the addresses of a connection, and sends nothing.
///
/// # Errors
/// If another connection has these addresses.
pub(crate) fn hold(ends: &Ends) -> io::Result<OwnedFd> {
    connected(ends, None)
}

/// Sends a RST. `seq` is what the peer expects next; if it is another number, the peer asks for one
/// (RFC 5961 3.2), and the kernel answers, since it has no such connection.
pub(crate) fn reset(ends: &Ends, seq: u32, ack: u32) -> io::Result<()> {
    let socket = connected(ends, Some([seq, ack]))?;
    repair(socket.as_fd(), Repair::Off)?;
    set_socket_linger(&socket, Some(Duration::ZERO))?;
    Ok(())
}

/// Opens a connected socket. The kernel chooses the port, of this one. A port of bind(2) would be lost to all
/// connections of the namespace whose ports the kernel chooses, whatever their peers are: see
/// `inet_csk_update_fastreuse` and `__inet_hash_connect`.
///
/// It does not choose a port outside of its range, or one to which another program has bound a socket.
fn connected(ends: &Ends, numbers: Option<[u32; 2]>) -> io::Result<OwnedFd> {
    connected_by(ends, numbers, true).or_else(|_| connected_by(ends, numbers, false))
}

fn connected_by(ends: &Ends, numbers: Option<[u32; 2]>, chosen: bool) -> io::Result<OwnedFd> {
    let (socket, mut local) = (open(ends.is_v4())?, ends.local);
    if chosen {
        choose_port(socket.as_fd(), local.port())?;
        local.set_port(0);
    }
    bind(&socket, &local)?;
    if let Some([seq, ack]) = numbers {
        set_queue_end(socket.as_fd(), Queue::Send, seq)?;
        set_queue_end(socket.as_fd(), Queue::Receive, ack)?;
    }
    connect(&socket, &ends.peer)?;
    if Ends::of(socket.as_fd())?.local.port() != ends.local.port() {
        return Err(io::ErrorKind::AddrNotAvailable.into());
    }
    Ok(socket)
}
