//! Sockets that come and go without a packet (TCP_REPAIR).
//!
//! After a flow is spliced, its sockets must not send anything. The server's connection keeps a
//! socket without bytes: else the kernel could choose the same port for the next connection to the
//! server. All such sockets end without a packet, also if the process is killed.

use crate::address::Ends;
use crate::sys::{Queue, Repair, repair, set_queue_end};
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
    let socket = open(ends.is_v4())?;
    bind(&socket, &ends.local)?;
    connect(&socket, &ends.peer)?;
    Ok(socket)
}

/// Sends a RST. `seq` is what the peer expects next; if it is another number, the peer asks for one
/// (RFC 5961 3.2), and the kernel answers, since it has no such connection.
pub(crate) fn reset(ends: &Ends, seq: u32, ack: u32) -> io::Result<()> {
    let socket = open(ends.is_v4())?;
    bind(&socket, &ends.local)?;
    set_queue_end(socket.as_fd(), Queue::Send, seq)?;
    set_queue_end(socket.as_fd(), Queue::Receive, ack)?;
    connect(&socket, &ends.peer)?;
    repair(socket.as_fd(), Repair::Off)?;
    set_socket_linger(&socket, Some(Duration::ZERO))?;
    Ok(())
}
