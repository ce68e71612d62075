//! The kernel's list of TCP sockets (/proc/PID/net/tcp and tcp6).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

/// States of include/net/tcp_states.h.
const ESTABLISHED: u8 = 1;
const LISTEN: u8 = 10;

/// A socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
    state: u8,
    pub(super) inode: u64,
}

impl Entry {
    pub(super) fn listens(&self) -> bool {
        self.state == LISTEN
    }

    pub(super) fn is_established(&self) -> bool {
        self.state == ESTABLISHED
    }

    /// Returns true if `other` is the peer of this socket.
    pub(super) fn mirrors(&self, other: &Entry) -> bool {
        self.local == other.peer && self.peer == other.local && self.inode != other.inode
    }
}

/// Returns the sockets of a process's network namespace.
pub(super) fn entries(process: &Path) -> Vec<Entry> {
    let read = |name: &str| std::fs::read_to_string(process.join("net").join(name)).unwrap_or_default();
    [read("tcp"), read("tcp6")].iter().flat_map(|text| text.lines().skip(1)).filter_map(entry).collect()
}

/// Parses a line: number, local and other address, state, queues, timers, user, inode.
fn entry(line: &str) -> Option<Entry> {
    let words: Vec<&str> = line.split_whitespace().collect();
    Some(Entry {
        local: address(words.get(1)?)?,
        peer: address(words.get(2)?)?,
        state: u8::from_str_radix(words.get(3)?, 16).ok()?,
        inode: words.get(9)?.parse().ok()?,
    })
}

/// Parses words of 32 bits in the machine's byte order, and a port.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let words = ip.as_bytes().chunks(8).map(|word| u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok());
    let bytes: Vec<u8> = words.collect::<Option<Vec<u32>>>()?.into_iter().flat_map(u32::to_ne_bytes).collect();
    let ip: IpAddr = match bytes.len() {
        4 => Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into(),
        16 => Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn own_sockets_are_listed() {
        for ip in ["127.0.0.1", "::1"] {
            let Ok(listener) = TcpListener::bind((ip, 0)) else { continue };
            let at = listener.local_addr().unwrap();
            let client = TcpStream::connect(at).unwrap();
            let (server, _) = listener.accept().unwrap();
            let entries = entries(Path::new("/proc/self"));
            let of = |at, peer| entries.iter().find(|entry| entry.local == at && entry.peer == peer).unwrap();
            let own = of(client.local_addr().unwrap(), at);
            assert!(own.is_established() && own.mirrors(of(at, server.peer_addr().unwrap())));
            assert!(entries.iter().any(|entry| entry.local == at && entry.listens()));
        }
    }

    #[test]
    fn lines_that_make_no_sense_are_left_out() {
        for line in ["", "0: 1 2 3", "0: 0100007F:ZZ 0100007F:1 01 a b c d e 5", "0: é:1 0100007F:1 01 a b c d e 5"] {
            assert_eq!(entry(line), None, "{line}");
        }
    }
}
