//! TCP connections that the kernel has at a port (sock_diag(7)).

use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use netlink_sys::{Socket, SocketAddr};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// `SOCK_DIAG_BY_FAMILY` of `linux/sock_diag.h`.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// The states of connections (`net/tcp_states.h`): TCP_ESTABLISHED (1) to TCP_NEW_SYN_RECV (12) without
/// TCP_CLOSE (7) and TCP_LISTEN (10). A dump of all states has sockets that are only bound, at any port.
const CONNECTIONS: u32 = 0x1ffe & !(1 << 7) & !(1 << 10);
const HEADER: usize = 16;
/// `struct inet_diag_req_v2`.
const REQUEST: usize = 56;

/// Returns true if the kernel has a connection at a local port, in any state, to a peer for which
/// `is_such` is true.
///
/// # Errors
/// If the kernel has no sock_diag for TCP.
pub(crate) fn has_connection(port: u16, is_such: impl Fn(IpAddr) -> bool) -> io::Result<bool> {
    let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut found = false;
    for family in [libc::AF_INET, libc::AF_INET6] {
        socket.send(&request(family as u8, port), 0)?;
        let is_counted = |peer: Peer| peer.local_port == port && is_such(peer.address);
        let mut is_over = false;
        while !is_over {
            let (datagram, _) = socket.recv_from_full()?;
            let mut rest = &datagram[..];
            while !rest.is_empty() {
                let (kind, body) = next_message(&mut rest).ok_or(io::ErrorKind::InvalidData)?;
                match kind {
                    SOCK_DIAG_BY_FAMILY => found |= Peer::of(body).is_some_and(is_counted),
                    kind if i32::from(kind) == libc::NLMSG_DONE => is_over = true,
                    kind if i32::from(kind) == libc::NLMSG_ERROR => {
                        let code = body.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
                        return Err(io::Error::from_raw_os_error(-code));
                    }
                    _ => {}
                }
            }
        }
    }
    Ok(found)
}

/// Takes the next message of a datagram. Returns its type and what follows its header.
fn next_message<'a>(rest: &mut &'a [u8]) -> Option<(u16, &'a [u8])> {
    let length = u32::from_ne_bytes(*rest.first_chunk()?) as usize;
    let message = rest.get(..length)?;
    let kind = u16::from_ne_bytes(*message.get(4..)?.first_chunk()?);
    // Messages are aligned to four bytes.
    *rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, message.get(HEADER..)?))
}

/// A dump of the connections with this local port.
fn request(family: u8, port: u16) -> [u8; HEADER + REQUEST] {
    let mut bytes = [0; HEADER + REQUEST];
    bytes[..4].copy_from_slice(&((HEADER + REQUEST) as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&((libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16).to_ne_bytes());
    bytes[16..18].copy_from_slice(&[family, libc::IPPROTO_TCP as u8]);
    bytes[20..24].copy_from_slice(&CONNECTIONS.to_ne_bytes());
    bytes[24..26].copy_from_slice(&port.to_be_bytes());
    bytes
}

/// The peer of a connection.
struct Peer {
    local_port: u16,
    address: IpAddr,
}

impl Peer {
    /// Parses a `struct inet_diag_msg`.
    fn of(body: &[u8]) -> Option<Self> {
        let local_port = u16::from_be_bytes(*body.get(4..)?.first_chunk()?);
        let address: [u8; 16] = *body.get(24..)?.first_chunk()?;
        let address = if i32::from(*body.first()?) == libc::AF_INET {
            Ipv4Addr::from(*address.first_chunk()?).into()
        } else {
            Ipv6Addr::from(address).to_canonical()
        };
        Some(Self { local_port, address })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::reserve::Reservation;
    use fs_core::Protocol;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn connections_of_the_kernel_are_found_until_they_end() {
        for at in ["127.0.0.1:0", "[::]:0"] {
            // A kernel or namespace without IPv6.
            let Ok(listener) = TcpListener::bind(at) else { continue };
            let port = listener.local_addr().unwrap().port();
            // Sockets that are only bound, here and at other ports, have no peer.
            let _bound = Reservation::new(Protocol::Tcp, "[::]:0".parse().unwrap(), false);
            assert!(!has_connection(port, |_| true).unwrap(), "{at}: there are only bound sockets");
            let local = |peer: IpAddr| peer == Ipv4Addr::LOCALHOST;
            assert!(!has_connection(port, local).unwrap(), "{at}: it only listens");
            let client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            assert!(has_connection(port, local).unwrap(), "{at}: it waits to be accepted");
            let (server, _) = listener.accept().unwrap();
            assert!(!has_connection(port, |peer| !local(peer)).unwrap(), "{at}: no other peer");
            drop((server, client));
            assert!(has_connection(port, local).unwrap(), "{at}: TIME-WAIT");
        }
    }
}
