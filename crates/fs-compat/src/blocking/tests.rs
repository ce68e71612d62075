//! Tests of methods that `std::net` does not have. tests/blocking.rs compares the others with std.

use super::*;
use crate::socket2::{Domain, Socket, Type};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

#[test]
fn linger_is_read_back_and_resets() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    assert_eq!(client.linger().unwrap(), None);
    client.set_linger(Some(Duration::from_secs(3))).unwrap();
    assert_eq!(client.linger().unwrap(), Some(Duration::from_secs(3)));
    client.set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    assert_eq!(server.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn quickack_is_read_back() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    client.set_quickack(false).unwrap();
    assert!(!client.quickack().unwrap());
    client.set_quickack(true).unwrap();
    assert!(client.quickack().unwrap());
}

#[test]
fn configured_socket_becomes_listener_and_back() {
    let socket = Socket::new(Domain::IPV6, Type::STREAM, None).unwrap();
    socket.set_only_v6(true).unwrap();
    socket.bind(&"[::1]:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    socket.listen(1).unwrap();
    let listener = TcpListener::from(socket);
    assert!(listener.only_v6().unwrap());
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut server = listener.into_incoming().next().unwrap().unwrap();
    client.write_all(b"x").unwrap();
    assert_eq!(server.read(&mut [0; 2]).unwrap(), 1);
    assert!(Socket::from(client).peer_addr().unwrap().is_ipv6());
}

#[test]
fn std_socket_becomes_ours() {
    let std = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = std.local_addr().unwrap();
    let ours = TcpListener::from(std);
    assert_eq!(ours.local_addr().unwrap(), addr);
    let client = TcpStream::connect(addr).unwrap();
    assert_eq!(ours.accept().unwrap().1, client.local_addr().unwrap());
}

#[test]
fn address_of_other_family_is_refused() {
    let (unix, _other) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
    assert_eq!(TcpStream::from(unix).local_addr().unwrap_err().kind(), ErrorKind::InvalidInput);
}
