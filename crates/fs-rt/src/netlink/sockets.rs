//! TCP connections that the kernel has at a port (sock_diag(7)).

use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;

/// `SOCK_DIAG_BY_FAMILY` of `linux/sock_diag.h`.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// The states of connections (`net/tcp_states.h`): TCP_ESTABLISHED (1) to TCP_NEW_SYN_RECV (12) without
/// TCP_CLOSE (7) and TCP_LISTEN (10). A dump of all states has sockets that are only bound, at any port.
const CONNECTIONS: u32 = 0x1ffe & !(1 << 7) & !(1 << 10);
const HEADER: usize = 16;
/// `struct inet_diag_req_v2`.
const REQUEST: usize = 56;
/// An attribute with a program that the kernel runs for each socket: INET_DIAG_REQ_BYTECODE, with four
/// operations (`struct inet_diag_bc_op`).
const FILTER: usize = 4 + 4 * 4;
/// `INET_DIAG_BC_S_GE` and `INET_DIAG_BC_S_LE` of `linux/inet_diag.h`: compare the local port.
const S_GE: u8 = 2;
const S_LE: u8 = 3;
/// States of a connection.
const FIN_WAIT2: u8 = 5;
const TIME_WAIT: u8 = 6;

/// Returns true if the kernel has a connection at a local port, in any state, to a peer for which
/// `is_such` is true.
///
/// # Errors
/// If the kernel has no sock_diag for TCP.
pub(crate) fn has_connection(port: u16, is_such: impl Fn(IpAddr) -> bool) -> io::Result<bool> {
    let mut found = false;
    each_connection(&(port..=port), |connection| found |= is_such(connection.peer))?;
    Ok(found)
}

/// Calls `tell` with each of the kernel's connections at these local ports.
///
/// # Errors
/// If the kernel has no sock_diag for TCP.
pub fn each_connection(ports: &RangeInclusive<u16>, mut tell: impl FnMut(Connection)) -> io::Result<()> {
    let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.bind_auto()?;
    socket.connect(&netlink_sys::SocketAddr::new(0, 0))?;
    for family in [libc::AF_INET, libc::AF_INET6] {
        socket.send(&request(family as u8, ports), 0)?;
        let mut is_over = false;
        while !is_over {
            let (datagram, _) = socket.recv_from_full()?;
            let mut rest = &datagram[..];
            while !rest.is_empty() {
                let (kind, body) = next_message(&mut rest).ok_or(io::ErrorKind::InvalidData)?;
                match kind {
                    SOCK_DIAG_BY_FAMILY => {
                        let connection = Connection::of(body).filter(|one| ports.contains(&one.local.port()));
                        connection.into_iter().for_each(&mut tell);
                    }
                    kind => is_over |= is_end(kind, body)?,
                }
            }
        }
    }
    Ok(())
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

/// Returns true for the message that ends a dump. A dump that ends with an error is incomplete.
fn is_end(kind: u16, body: &[u8]) -> io::Result<bool> {
    if ![libc::NLMSG_DONE, libc::NLMSG_ERROR].contains(&i32::from(kind)) {
        return Ok(false);
    }
    let code = body.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
    if code < 0 { Err(io::Error::from_raw_os_error(code.saturating_neg())) } else { Ok(true) }
}

/// A dump of the connections with these local ports.
fn request(family: u8, ports: &RangeInclusive<u16>) -> [u8; HEADER + REQUEST + FILTER] {
    let mut bytes = [0; HEADER + REQUEST + FILTER];
    bytes[..4].copy_from_slice(&((HEADER + REQUEST + FILTER) as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&((libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16).to_ne_bytes());
    bytes[16..18].copy_from_slice(&[family, libc::IPPROTO_TCP as u8]);
    bytes[20..24].copy_from_slice(&CONNECTIONS.to_ne_bytes());
    let filter = &mut bytes[HEADER + REQUEST..];
    filter[..4].copy_from_slice(&[FILTER as u16, 1].map(u16::to_ne_bytes).concat());
    // Code, offset of the next operation if it is true, and if not: behind the end. The port is in the
    // following operation.
    for (at, code, no, port) in [(4, S_GE, 20_u16, ports.start()), (12, S_LE, 12, ports.end())] {
        filter[at..at + 2].copy_from_slice(&[code, 8]);
        filter[at + 2..at + 4].copy_from_slice(&no.to_ne_bytes());
        filter[at + 6..at + 8].copy_from_slice(&port.to_ne_bytes());
    }
    bytes
}

/// A TCP connection of the kernel, in any state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The local end.
    pub local: SocketAddr,
    /// The peer's address.
    pub peer: IpAddr,
    /// A process has its socket. Otherwise it was not accepted yet, or it was closed.
    pub is_held: bool,
    /// Only late packets are expected: TIME-WAIT, or FIN-WAIT-2 without a process.
    pub is_over: bool,
}

impl Connection {
    /// Parses a `struct inet_diag_msg`.
    fn of(body: &[u8]) -> Option<Self> {
        let [family, state] = *body.first_chunk()?;
        let ip = |at: usize| -> Option<IpAddr> {
            let address: [u8; 16] = *body.get(at..)?.first_chunk()?;
            if i32::from(family) == libc::AF_INET {
                return Some(Ipv4Addr::from(*address.first_chunk()?).into());
            }
            Some(Ipv6Addr::from(address).to_canonical())
        };
        let local = SocketAddr::new(ip(8)?, u16::from_be_bytes(*body.get(4..)?.first_chunk()?));
        // `idiag_inode`.
        let is_held = *body.get(68..)?.first_chunk()? != [0_u8; 4];
        let is_over = state == TIME_WAIT || (state == FIN_WAIT2 && !is_held);
        Some(Self { local, peer: ip(24)?, is_held, is_over })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::reserve::Reservation;
    use fs_core::Protocol;
    use std::net::{TcpListener, TcpStream};

    /// The rest is missing, and the kernel may have a connection there.
    #[test]
    fn dump_that_ends_with_an_error_fails() {
        for kind in [libc::NLMSG_DONE, libc::NLMSG_ERROR] {
            let mut datagram = [20_u32, kind as u32, 0, 0, (-libc::ENOMEM) as u32].map(u32::to_ne_bytes).concat();
            let (kind, body) = next_message(&mut &datagram[..]).unwrap();
            assert_eq!(is_end(kind, body).unwrap_err().raw_os_error(), Some(libc::ENOMEM));
            datagram[16..].fill(0);
            let (kind, body) = next_message(&mut &datagram[..]).unwrap();
            assert!(is_end(kind, body).unwrap());
        }
        assert!(!is_end(SOCK_DIAG_BY_FAMILY, &[]).unwrap());
    }

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
            let mut all = Vec::new();
            each_connection(&(port - 1..=port + 1), |one| all.push(one)).unwrap();
            let (local, peer) = ((Ipv4Addr::LOCALHOST, port).into(), Ipv4Addr::LOCALHOST.into());
            let one = Connection { local, peer, is_held: true, is_over: false };
            assert_eq!(all.iter().filter(|one| one.local == local).collect::<Vec<_>>(), [&one], "{at}");
            drop((server, client));
            assert!(has_connection(port, |peer| peer.is_loopback()).unwrap(), "{at}: TIME-WAIT");
        }
    }
}
