//! Tests of behaviour in which crate socket2 differs from ours, so tests/socket2.rs cannot compare
//! it.

use super::*;
use std::net::SocketAddr;

#[test]
fn ipv6_header_option_is_read_where_it_is_set() {
    let Ok(raw) = Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::ICMPV6)) else {
        // Not root.
        return;
    };
    raw.set_header_included_v6(true).unwrap();
    assert!(raw.header_included_v6().unwrap());
}

#[test]
fn address_longer_than_storage_is_cut() {
    let addr = SockAddr::from_parts(SockAddrStorage::zeroed(), 4000);
    assert_eq!(addr.len(), 128);
    assert_eq!(addr.clone(), addr);
    assert_eq!(SockAddr::from_bytes(&[0xff; 200]).len(), 128);
    let v4: SocketAddr = "1.2.3.4:5".parse().unwrap();
    let addr = SockAddr::from(v4);
    assert_eq!(SockAddr::from_bytes(addr.as_bytes()).as_socket(), Some(v4));
}

#[test]
fn received_message_sets_address_length() {
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let [a, b] = [0, 1].map(|_| {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        socket.bind(&any.into()).unwrap();
        socket
    });
    a.send_to(b"x", &b.local_addr().unwrap()).unwrap();
    let mut from = SockAddr::from_bytes(&[]);
    let mut message = MsgHdrMut::new().with_addr(&mut from);
    assert_eq!(b.recvmsg(&mut message, 0).unwrap(), 0);
    assert!(message.flags().is_truncated());
    assert_eq!(from, a.local_addr().unwrap());
}
