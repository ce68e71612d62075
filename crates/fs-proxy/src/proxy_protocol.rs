//! The PROXY protocol, version 1 and 2: a proxy in front, or this one, sends its client's address,
//! before the first byte of a connection
//! (<https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>).

use crate::config::ProxyVersion;
use fs_stacks::Stream;
use ppp::{HeaderResult, v1, v2};
use std::io;
use std::net::{IpAddr, SocketAddr};
use tokio::io::AsyncReadExt;

/// Longest header that is read. Version 1 has at most 107 bytes; version 2 may have further values,
/// which cloud providers use for about 100 bytes.
const LENGTH_MAX: usize = 2048;
/// The longest line of version 1.
const V1_LENGTH_MAX: usize = 107;
/// The start of a header.
const V1: &[u8] = b"PROXY ";
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Behind the start: version 2, a connection of the proxy itself.
const V2_LOCAL: u8 = 0x20;

/// Reads the header at the start of a connection, and nothing after it. Returns the client's
/// address, or `None` if the proxy in front speaks for itself (its health check).
///
/// # Errors
/// If there is no valid header, or the connection ends.
pub(crate) async fn read(stream: &mut Stream) -> io::Result<Option<SocketAddr>> {
    let mut header = Vec::new();
    let mut ahead = [0; LENGTH_MAX];
    loop {
        let room = LENGTH_MAX - header.len();
        let seen = stream.peek(&mut ahead[..room]).await?;
        if seen == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let known = header.len();
        header.extend_from_slice(&ahead[..seen]);
        // Part of an incomplete header, and not of what follows it.
        let (mine, result) = match parse(&header) {
            Some(Ok((client, length))) => (length.saturating_sub(known), Some(Ok(client))),
            Some(Err(error)) => (0, Some(Err(error))),
            None => (seen, None),
        };
        stream.read_exact(&mut ahead[..mine]).await?;
        if let Some(result) = result {
            return result;
        }
    }
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("PROXY protocol: {what}"))
}

/// Returns the length of the header at the start of `bytes`; `None` if more bytes must arrive.
fn length(bytes: &[u8]) -> Option<io::Result<usize>> {
    let may_begin = |start: &[u8]| bytes.iter().zip(start).all(|(one, other)| one == other);
    let length = if may_begin(V2) {
        let length = bytes.get(V2.len() + 2..V2.len() + 4)?;
        V2.len() + 4 + usize::from(u16::from_be_bytes([length[0], length[1]]))
    } else if may_begin(V1) {
        match bytes.windows(2).position(|end| end == b"\r\n") {
            Some(at) => at + 2,
            None if bytes.len() < V1_LENGTH_MAX => return None,
            None => return Some(Err(malformed("a line that is too long"))),
        }
    } else {
        return Some(Err(malformed("another beginning")));
    };
    if length > LENGTH_MAX {
        return Some(Err(malformed("a header that is too long")));
    }
    (bytes.len() >= length).then_some(Ok(length))
}

/// Parses a header at the start of `bytes`. Returns the client and the header's length; `None` if
/// it is incomplete.
fn parse(bytes: &[u8]) -> Option<io::Result<(Option<SocketAddr>, usize)>> {
    let length = match length(bytes)? {
        Ok(length) => length,
        Err(error) => return Some(Err(error)),
    };
    if bytes.starts_with(V2) && bytes[V2.len()] == V2_LOCAL {
        // The specification, 2.2: the family and the rest of the header are ignored.
        return Some(Ok((None, length)));
    }
    Some(match HeaderResult::parse(&bytes[..length]) {
        HeaderResult::V1(Ok(header)) => {
            let client = match header.addresses {
                v1::Addresses::Tcp4(of) => Some((of.source_address, of.source_port).into()),
                v1::Addresses::Tcp6(of) => Some((of.source_address, of.source_port).into()),
                v1::Addresses::Unknown => None,
            };
            Ok((client, length))
        }
        HeaderResult::V2(Ok(header)) => {
            let client = match header.addresses {
                v2::Addresses::IPv4(of) => Some((of.source_address, of.source_port).into()),
                v2::Addresses::IPv6(of) => Some((of.source_address, of.source_port).into()),
                v2::Addresses::Unix(_) | v2::Addresses::Unspecified => None,
            };
            Ok((client, length))
        }
        HeaderResult::V1(Err(error)) => Err(malformed(&error.to_string())),
        HeaderResult::V2(Err(error)) => Err(malformed(&error.to_string())),
    })
}

/// Returns the header for a connection from `client` to `local`, or for one of our own.
pub(crate) fn header(version: ProxyVersion, ends: Option<(SocketAddr, SocketAddr)>) -> Vec<u8> {
    // Both addresses must have the same family: an IPv6 socket also has IPv4 clients, and a proxy in
    // front names clients of any family.
    let canonical = |addr: SocketAddr| SocketAddr::new(addr.ip().to_canonical(), addr.port());
    let as_v6 = |addr: SocketAddr| match addr.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), addr.port()),
        IpAddr::V6(_) => addr,
    };
    let ends = ends.map(|(client, local)| match (canonical(client), canonical(local)) {
        (client, local) if client.is_ipv4() == local.is_ipv4() => (client, local),
        (client, local) => (as_v6(client), as_v6(local)),
    });
    match (version, ends) {
        (ProxyVersion::V1, Some(ends)) => v1::Addresses::from(ends).to_string().into_bytes(),
        (ProxyVersion::V1, None) => v1::Addresses::Unknown.to_string().into_bytes(),
        (ProxyVersion::V2, Some(ends)) => binary(v2::Command::Proxy, v2::Protocol::Stream, ends.into()),
        (ProxyVersion::V2, None) => binary(v2::Command::Local, v2::Protocol::Unspecified, v2::Addresses::Unspecified),
    }
}

fn binary(command: v2::Command, protocol: v2::Protocol, addresses: v2::Addresses) -> Vec<u8> {
    let header = v2::Builder::with_addresses(v2::Version::Two | command, protocol, addresses).build();
    // Writing to a Vec cannot fail.
    header.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};

    fn addr(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn headers_are_read_as_written() {
        for (client, local) in [("192.0.2.1:5000", "10.0.0.1:80"), ("[2001:db8::1]:5000", "[::1]:80")] {
            for version in [ProxyVersion::V1, ProxyVersion::V2] {
                let written = header(version, Some((addr(client), addr(local))));
                let bytes = [&written[..], b"\x16\xff\xfe after"].concat();
                assert_eq!(parse(&bytes).unwrap().unwrap(), (Some(addr(client)), written.len()));
                for cut in 1..written.len() {
                    assert!(parse(&bytes[..cut]).is_none(), "{version:?} {cut}");
                }
                let own = header(version, None);
                assert_eq!(parse(&own).unwrap().unwrap(), (None, own.len()));
            }
        }
        let mapped = header(ProxyVersion::V1, Some((addr("[::ffff:192.0.2.1]:5"), addr("[::ffff:10.0.0.1]:80"))));
        assert_eq!(mapped, b"PROXY TCP4 192.0.2.1 10.0.0.1 5 80\r\n");
        // The client that a proxy in front names may have another family than the connection.
        let mixed = (addr("[2001:db8::1]:5"), addr("10.0.0.1:80"));
        assert_eq!(header(ProxyVersion::V1, Some(mixed)), b"PROXY TCP6 2001:db8::1 ::ffff:10.0.0.1 5 80\r\n");
        let mixed = header(ProxyVersion::V2, Some((addr("192.0.2.1:5"), addr("[::1]:80"))));
        assert_eq!(parse(&mixed).unwrap().unwrap().0, Some(addr("[::ffff:192.0.2.1]:5")));
    }

    /// A health check by the proxy in front may name any family, with or without addresses.
    #[test]
    fn family_of_a_connection_of_the_proxy_in_front_is_ignored() {
        for rest in [&b"\x20\0\0\0"[..], b"\x20\x11\0\0", b"\x20\x21\0\x03abc", b"\x20\xf1\0\x03abc"] {
            let bytes = [V2, rest].concat();
            assert_eq!(parse(&[&bytes[..], b"after"].concat()).unwrap().unwrap(), (None, bytes.len()), "{rest:?}");
            assert!(parse(&bytes[..bytes.len() - 1]).is_none());
        }
        // Another command, and a client without an address.
        for wrong in [&b"\x22\x11\0\0"[..], b"\x21\x11\0\0", b"\x10\x11\0\0"] {
            assert!(parse(&[V2, wrong].concat()).unwrap().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn other_bytes_are_errors() {
        for wrong in
            [&b"GET / HTTP/1.1\r\n\r\n"[..], b"PROXY TCP4 x y 1 2\r\n", b"\r\n\r\n\0\r\nQUIX0000", b"\x16\x03\x01"]
        {
            assert!(parse(wrong).unwrap().is_err(), "{wrong:?}");
        }
        assert!(parse(&[&b"PROXY TCP4 "[..], &[b'1'; 120]].concat()).unwrap().is_err());
    }

    /// Reads the header in pieces of any size, and no byte after it.
    #[tokio::test]
    async fn only_the_header_is_read() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = addr("192.0.2.1:5000");
        for version in [ProxyVersion::V1, ProxyVersion::V2] {
            let bytes = [header(version, Some((client, addr("10.0.0.1:80")))), b"after".to_vec()].concat();
            for piece in [1, 7, bytes.len()] {
                let mut sender = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
                sender.set_nodelay(true).unwrap();
                let mut stream = Stream::Kernel(listener.accept().await.unwrap().0);
                let sending = async {
                    for part in bytes.chunks(piece) {
                        sender.write_all(part).await.unwrap();
                        tokio::task::yield_now().await;
                    }
                };
                let (read, ()) = tokio::join!(read(&mut stream), sending);
                assert_eq!(read.unwrap(), Some(client));
                let mut rest = [0; 5];
                stream.read_exact(&mut rest).await.unwrap();
                assert_eq!(&rest, b"after");
            }
        }
    }
}
