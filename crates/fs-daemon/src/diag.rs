//! Who would get a connection: the kernel's own look-up of listeners, by an exact question of sock_diag(7). So addresses,
//! SO_BINDTODEVICE, IPV6_V6ONLY, SO_REUSEPORT and programs of sk_lookup count as they do for a SYN.

use crate::listeners::unmapped;
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use netlink_sys::{Socket, SocketAddr};
use std::io;
use std::net::{self, IpAddr};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// `SOCK_DIAG_BY_FAMILY` of linux/sock_diag.h.
const BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST` and `NLMSG_ERROR` of linux/netlink.h.
const REQUEST: u16 = 1;
const ERROR: u16 = 2;
/// `TCP_LISTEN` of include/net/tcp_states.h.
const LISTEN: u8 = 10;
const IPPROTO_TCP: u8 = 6;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// Bytes of `struct nlmsghdr`, of `struct inet_diag_req_v2`, and of `struct inet_diag_msg` with its cookie.
const HEADER: usize = 16;
const QUESTION: usize = 56;
const COOKIE: usize = 4 + 40;

/// Questions to the namespace that it was opened in.
pub(crate) struct Diag {
    socket: Socket,
    /// Of the last question: an answer to one that was given up is not taken for the next one's.
    asked: AtomicU32,
}

impl Diag {
    pub(crate) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        // The kernel has answered when the question is sent.
        socket.set_non_blocking(true)?;
        Ok(Self { socket, asked: AtomicU32::new(0) })
    }

    /// The cookie (SO_COOKIE) of the socket that would get a SYN from `from` to `to` which comes in by `device`; `None`: nobody
    /// listens there.
    pub(crate) fn listener(&self, from: IpAddr, to: net::SocketAddr, device: u32) -> io::Result<Option<u64>> {
        let number = self.asked.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        self.socket.send(&question(number, from, to, device), 0)?;
        loop {
            let (datagram, _) = self.socket.recv_from_full()?;
            if let Some(answer) = answer(&datagram, number) {
                return answer;
            }
        }
    }
}

impl std::fmt::Debug for Diag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Diag({})", self.socket.as_raw_fd())
    }
}

/// `struct nlmsghdr`, `struct inet_diag_req_v2`. The port that it comes from is 0, which no connection has: so none is found.
fn question(number: u32, from: IpAddr, to: net::SocketAddr, device: u32) -> [u8; HEADER + QUESTION] {
    let (from, at) = (unmapped(from), unmapped(to.ip()));
    let words = |ip| match ip {
        IpAddr::V4(v4) => {
            let mut words = [0; 16];
            words[..4].copy_from_slice(&v4.octets());
            words
        }
        IpAddr::V6(v6) => v6.octets(),
    };
    let mut bytes = [0; HEADER + QUESTION];
    let mut put = |place: usize, value: &[u8]| bytes[place..place + value.len()].copy_from_slice(value);
    put(0, &((HEADER + QUESTION) as u32).to_ne_bytes());
    put(4, &BY_FAMILY.to_ne_bytes());
    put(6, &REQUEST.to_ne_bytes());
    put(8, &number.to_ne_bytes());
    put(HEADER, &[if at.is_ipv4() { AF_INET } else { AF_INET6 }, IPPROTO_TCP]);
    put(HEADER + 4, &u32::MAX.to_ne_bytes());
    put(HEADER + 8, &to.port().to_be_bytes());
    put(HEADER + 12, &words(at));
    put(HEADER + 28, &words(from));
    put(HEADER + 44, &device.to_ne_bytes());
    // INET_DIAG_NOCOOKIE: whichever it is.
    put(HEADER + 48, &[0xff; 8]);
    bytes
}

/// Reads a datagram; `None`: it answers another question.
fn answer(datagram: &[u8], number: u32) -> Option<io::Result<Option<u64>>> {
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "an answer of sock_diag that makes no sense");
    let word = |place: usize| datagram.get(place..place + 4)?.try_into().ok().map(u32::from_ne_bytes);
    if word(8)? != number {
        return None;
    }
    let kind = word(4)? as u16;
    Some(match kind {
        ERROR => match word(HEADER).map(u32::cast_signed) {
            // ENOENT
            Some(-2) => Ok(None),
            Some(errno @ ..=-1) => Err(io::Error::from_raw_os_error(-errno)),
            _ => Err(malformed()),
        },
        BY_FAMILY => {
            let cookie = word(HEADER + COOKIE).zip(word(HEADER + COOKIE + 4));
            match (datagram.get(HEADER + 1), cookie) {
                (Some(&LISTEN), Some((low, high))) => Ok(Some(u64::from(low) | u64::from(high) << 32)),
                (Some(_), Some(_)) => Ok(None),
                _ => Err(malformed()),
            }
        }
        _ => Err(malformed()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt::socket_cookie;
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};

    const LO: u32 = 1;

    #[test]
    fn the_kernel_says_who_listens() {
        let diag = Diag::open().unwrap();
        for (at, from) in
            [("127.0.0.1:0", IpAddr::V4(Ipv4Addr::LOCALHOST)), ("[::1]:0", IpAddr::V6(Ipv6Addr::LOCALHOST))]
        {
            let Ok(listener) = TcpListener::bind(at) else { continue };
            let (to, cookie) = (listener.local_addr().unwrap(), socket_cookie(&listener).unwrap());
            assert_eq!(diag.listener(from, to, LO).unwrap(), Some(cookie), "{at}");
            // A connection is not taken for it.
            let _open = std::net::TcpStream::connect(to).unwrap();
            assert_eq!(diag.listener(from, to, LO).unwrap(), Some(cookie), "{at}");
            drop(listener);
            // Another program may have the port by now.
            assert_ne!(diag.listener(from, to, LO).unwrap(), Some(cookie), "{at}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_an_error() {
        let whole = question(7, Ipv4Addr::LOCALHOST.into(), "127.0.0.1:1".parse().unwrap(), 1);
        for len in 0..HEADER + COOKIE + 8 {
            assert!(answer(&whole[..len], 7).is_none_or(|answer| answer.is_err()), "{len}");
        }
        assert!(answer(&whole, 8).is_none());
    }
}
