// Included with `api` as std::net.

use api::{TcpListener, TcpStream, UdpSocket};
use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::thread;
use std::time::Duration;

const ANY: [&str; 2] = ["127.0.0.1:0", "[::1]:0"];

fn pair(addr: &str) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(addr).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, peer) = listener.accept().unwrap();
    assert_eq!(peer, client.local_addr().unwrap());
    (client, server)
}

#[test]
fn connections_have_two_names() {
    for any in ANY {
        let (client, server) = pair(any);
        assert_eq!(client.peer_addr().unwrap(), server.local_addr().unwrap());
        assert_eq!(client.local_addr().unwrap(), server.peer_addr().unwrap());
        let text = format!("{client:?}");
        let expected = format!(
            "TcpStream {{ addr: {:?}, peer: {:?}, fd: {} }}",
            client.local_addr().unwrap(),
            client.peer_addr().unwrap(),
            client.as_raw_fd()
        );
        assert_eq!(text, expected);
    }
}

#[test]
fn bytes_arrive_whole_and_in_order() {
    let (mut client, mut server) = pair(ANY[0]);
    let sent: Vec<u8> = (0..3_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let expected = sent.clone();
    let writer = thread::spawn(move || {
        client.write_all(&sent).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer
    });
    let mut got = Vec::new();
    server.read_to_end(&mut got).unwrap();
    assert!(got == expected);
    server.write_all(b"thanks").unwrap();
    drop(server);
    assert_eq!(writer.join().unwrap(), "thanks");
}

#[test]
fn several_buffers_at_once() {
    let (mut client, mut server) = pair(ANY[0]);
    assert_eq!(client.write_vectored(&[IoSlice::new(b"ab"), IoSlice::new(b""), IoSlice::new(b"cde")]).unwrap(), 5);
    let (mut first, mut second) = ([0; 1], [0; 8]);
    let mut bufs = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
    assert_eq!(server.read_vectored(&mut bufs).unwrap(), 5);
    assert_eq!((&first, &second[..4]), (b"a", &b"bcde"[..]));
    assert_eq!((&client).write_vectored(&[IoSlice::new(b"x")]).unwrap(), 1);
    assert_eq!((&server).read_vectored(&mut [IoSliceMut::new(&mut second)]).unwrap(), 1);
    client.flush().unwrap();
}

#[test]
fn peek_leaves_bytes_in_the_queue() {
    let (mut client, mut server) = pair(ANY[0]);
    client.write_all(b"abc").unwrap();
    let mut buf = [0; 8];
    assert_eq!(server.peek(&mut buf[..2]).unwrap(), 2);
    assert_eq!(server.peek(&mut buf).unwrap(), 3);
    assert_eq!(server.read(&mut buf).unwrap(), 3);
    server.set_nonblocking(true).unwrap();
    assert_eq!(server.peek(&mut buf).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn clones_share_a_connection() {
    let (client, mut server) = pair(ANY[0]);
    let clone = client.try_clone().unwrap();
    assert_ne!(clone.as_raw_fd(), client.as_raw_fd());
    let writers: Vec<_> = [(client, 1), (clone, 2)]
        .into_iter()
        .map(|(mut stream, byte)| thread::spawn(move || stream.write_all(&[byte; 1000]).unwrap()))
        .collect();
    let mut got = Vec::new();
    // The end arrives when both are dropped.
    server.read_to_end(&mut got).unwrap();
    assert_eq!((got.len(), got.iter().map(|&byte| usize::from(byte)).sum::<usize>()), (2000, 3000));
    for writer in writers {
        writer.join().unwrap();
    }
}

#[test]
fn shutting_down_wakes_a_reader() {
    let (client, _server) = pair(ANY[0]);
    let mut reading = client.try_clone().unwrap();
    let reader = thread::spawn(move || reading.read(&mut [0; 1]).unwrap());
    client.shutdown(Shutdown::Read).unwrap();
    assert_eq!(reader.join().unwrap(), 0);
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!((&client).write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
}

#[test]
fn unread_bytes_reset_the_peer() {
    let (mut client, server) = pair(ANY[0]);
    client.write_all(b"never read").unwrap();
    // It has arrived.
    server.peek(&mut [0; 1]).unwrap();
    drop(server);
    assert_eq!(client.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    // The error is returned once.
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
    assert_eq!(client.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
}

#[test]
fn zero_linger_resets_the_peer() {
    let (client, mut server) = pair(ANY[0]);
    fs_compat::socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    assert_eq!(server.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn reads_end_after_their_timeout() {
    let (mut client, _server) = pair(ANY[0]);
    assert_eq!((client.read_timeout().unwrap(), client.write_timeout().unwrap()), (None, None));
    let short = Some(Duration::from_millis(20));
    client.set_read_timeout(short).unwrap();
    client.set_write_timeout(short).unwrap();
    assert_eq!((client.read_timeout().unwrap(), client.write_timeout().unwrap()), (short, short));
    assert_eq!(client.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
    // The peer does not read, so the buffers fill up.
    let block = [0; 1 << 16];
    let error = loop {
        if let Err(error) = client.write(&block) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    for result in [client.set_read_timeout(Some(Duration::ZERO)), client.set_write_timeout(Some(Duration::ZERO))] {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    // A timeout below the kernel's resolution is not rounded to "for ever".
    client.set_read_timeout(Some(Duration::from_nanos(1))).unwrap();
    assert!(client.read_timeout().unwrap().is_some());
    client.set_read_timeout(None).unwrap();
}

#[test]
fn non_blocking_calls_say_so() {
    let listener = TcpListener::bind(ANY[0]).unwrap();
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    client.set_nonblocking(true).unwrap();
    assert_eq!(client.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
    client.set_nonblocking(false).unwrap();
    listener.set_nonblocking(false).unwrap();
    let (server, _) = listener.accept().unwrap();
    drop(server);
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn options_are_read_back() {
    let (client, _server) = pair(ANY[0]);
    for on in [true, false] {
        client.set_nodelay(on).unwrap();
        assert_eq!(client.nodelay().unwrap(), on);
    }
    client.set_ttl(17).unwrap();
    assert_eq!(client.ttl().unwrap(), 17);
    assert!(client.take_error().unwrap().is_none());
    let listener = TcpListener::bind(ANY[0]).unwrap();
    listener.set_ttl(17).unwrap();
    assert_eq!(listener.ttl().unwrap(), 17);
    assert!(listener.take_error().unwrap().is_none());
    assert!(format!("{listener:?}").starts_with("TcpListener { addr: 127.0.0.1:"));
}

#[test]
fn connecting_is_refused_or_times_out_or_succeeds() {
    // An address of its own: on 127.0.0.1 another test could get the port as soon as it is free.
    let listener = TcpListener::bind("127.0.0.9:0").unwrap();
    let addr = listener.local_addr().unwrap();
    TcpStream::connect_timeout(&addr, Duration::from_secs(5)).unwrap();
    assert_eq!(TcpStream::connect_timeout(&addr, Duration::ZERO).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(TcpListener::bind(addr).unwrap_err().kind(), ErrorKind::AddrInUse);
    drop(listener);
    assert_eq!(TcpStream::connect(addr).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    let timed = TcpStream::connect_timeout(&addr, Duration::from_secs(5)).unwrap_err();
    assert_eq!(timed.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(TcpStream::connect(&[][..] as &[SocketAddr]).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(TcpListener::bind("192.0.2.1:0").unwrap_err().kind(), ErrorKind::AddrNotAvailable);
    // The second address is tried after the first one fails.
    let listener = TcpListener::bind(&[addr, listener_addr()][..]).unwrap();
    let both = [addr, listener.local_addr().unwrap()];
    TcpStream::connect(&both[..]).unwrap();
}

fn listener_addr() -> SocketAddr {
    ANY[0].to_socket_addrs().unwrap().next().unwrap()
}

#[test]
fn listeners_accept_for_all_their_clones() {
    let listener = TcpListener::bind(ANY[0]).unwrap();
    let addr = listener.local_addr().unwrap();
    let clone = listener.try_clone().unwrap();
    assert_eq!(clone.local_addr().unwrap(), addr);
    let acceptors: Vec<_> = [listener, clone]
        .into_iter()
        .map(|listener| thread::spawn(move || listener.incoming().take(3).filter(|stream| stream.is_ok()).count()))
        .collect();
    let clients: Vec<_> = (0..6).map(|_| TcpStream::connect(addr).unwrap()).collect();
    assert_eq!(acceptors.into_iter().map(|acceptor| acceptor.join().unwrap()).sum::<usize>(), 6);
    drop(clients);
}

#[test]
fn sockets_convert_to_and_from_descriptors() {
    let (client, mut server) = pair(ANY[0]);
    let number = client.as_raw_fd();
    assert_eq!(client.as_fd().as_raw_fd(), number);
    let owned: OwnedFd = through_its_number(client).into();
    assert_eq!(owned.as_raw_fd(), number);
    let mut client = TcpStream::from(owned);
    client.write_all(b"x").unwrap();
    assert_eq!(server.read(&mut [0; 2]).unwrap(), 1);
    drop(client);
    assert_eq!(server.read(&mut [0; 2]).unwrap(), 0);
}

#[test]
fn any_thread_may_use_them() {
    fn thread_safe<T: Send + Sync + Unpin + std::panic::UnwindSafe + std::panic::RefUnwindSafe>() {}
    thread_safe::<TcpStream>();
    thread_safe::<TcpListener>();
    thread_safe::<UdpSocket>();
}

#[test]
fn datagrams() {
    for any in ANY {
        let (a, b) = (UdpSocket::bind(any).unwrap(), UdpSocket::bind(any).unwrap());
        let (at_a, at_b) = (a.local_addr().unwrap(), b.local_addr().unwrap());
        assert_eq!(a.send_to(b"abc", at_b).unwrap(), 3);
        let mut buf = [0; 8];
        assert_eq!(b.peek_from(&mut buf).unwrap(), (3, at_a));
        assert_eq!(b.recv_from(&mut buf).unwrap(), (3, at_a));
        assert_eq!(a.peer_addr().unwrap_err().kind(), ErrorKind::NotConnected);
        a.connect(at_b).unwrap();
        b.connect(at_a).unwrap();
        assert_eq!(a.peer_addr().unwrap(), at_b);
        assert_eq!(a.send(b"defg").unwrap(), 4);
        assert_eq!(b.peek(&mut buf).unwrap(), 4);
        assert_eq!(b.try_clone().unwrap().recv(&mut buf[..2]).unwrap(), 2);
        b.set_nonblocking(true).unwrap();
        assert_eq!(b.recv(&mut buf).unwrap_err().kind(), ErrorKind::WouldBlock);
        b.set_nonblocking(false).unwrap();
        let short = Some(Duration::from_millis(20));
        b.set_read_timeout(short).unwrap();
        b.set_write_timeout(short).unwrap();
        assert_eq!(b.recv(&mut buf).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!((b.read_timeout().unwrap(), b.write_timeout().unwrap()), (short, short));
        assert_eq!(a.send_to(b"x", &[][..] as &[SocketAddr]).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert!(format!("{a:?}").starts_with("UdpSocket { addr: "));
    }
}

#[test]
fn datagram_options() {
    let socket = UdpSocket::bind(ANY[0]).unwrap();
    for on in [true, false] {
        socket.set_broadcast(on).unwrap();
        assert_eq!(socket.broadcast().unwrap(), on);
        socket.set_multicast_loop_v4(on).unwrap();
        assert_eq!(socket.multicast_loop_v4().unwrap(), on);
    }
    socket.set_multicast_ttl_v4(9).unwrap();
    socket.set_ttl(17).unwrap();
    assert_eq!((socket.multicast_ttl_v4().unwrap(), socket.ttl().unwrap()), (9, 17));
    let group = Ipv4Addr::new(224, 0, 1, 201);
    socket.join_multicast_v4(&group, &Ipv4Addr::LOCALHOST).unwrap();
    socket.leave_multicast_v4(&group, &Ipv4Addr::LOCALHOST).unwrap();
    assert!(socket.take_error().unwrap().is_none());
    let socket = UdpSocket::bind(ANY[1]).unwrap();
    socket.set_multicast_loop_v6(false).unwrap();
    assert!(!socket.multicast_loop_v6().unwrap());
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 3);
    socket.join_multicast_v6(&group, 1).unwrap();
    socket.leave_multicast_v6(&group, 1).unwrap();
}
