// Included with `api` as socket2.

use api::{Domain, MaybeUninitSlice, MsgHdr, MsgHdrMut, Protocol, SockAddr, SockRef, Socket, Type};
use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

fn any4() -> SockAddr {
    SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0).into()
}

fn any6() -> SockAddr {
    SocketAddrV6::new(Ipv6Addr::LOCALHOST, 0, 0, 0).into()
}

fn listener(addr: &SockAddr) -> (Socket, SockAddr) {
    let socket = Socket::new(addr.domain(), Type::STREAM, Some(Protocol::TCP)).unwrap();
    socket.bind(addr).unwrap();
    socket.listen(16).unwrap();
    let addr = socket.local_addr().unwrap();
    (socket, addr)
}

fn stream_pair(addr: &SockAddr) -> (Socket, Socket) {
    let (listener, addr) = listener(addr);
    let client = Socket::new(addr.domain(), Type::STREAM, None).unwrap();
    client.connect(&addr).unwrap();
    let (server, peer) = listener.accept().unwrap();
    assert_eq!(peer, client.local_addr().unwrap());
    assert_eq!(server.peer_addr().unwrap(), peer);
    assert_eq!(client.peer_addr().unwrap(), addr);
    (client, server)
}

fn closes_on_exec(socket: &Socket) -> bool {
    rustix::io::fcntl_getfd(socket).unwrap().contains(rustix::io::FdFlags::CLOEXEC)
}

fn datagram_pair() -> (Socket, Socket) {
    let ends = [0, 1].map(|_| {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).unwrap();
        socket.bind(&any4()).unwrap();
        socket
    });
    ends[0].connect(&ends[1].local_addr().unwrap()).unwrap();
    ends[1].connect(&ends[0].local_addr().unwrap()).unwrap();
    ends.into()
}

#[test]
fn names_are_numbers() {
    assert_eq!(Domain::for_address("127.0.0.1:1".parse().unwrap()), Domain::IPV4);
    assert_eq!(Domain::for_address("[::1]:1".parse().unwrap()), Domain::IPV6);
    assert_eq!(i32::from(Domain::UNIX), libc::AF_UNIX);
    assert_eq!(Domain::from(libc::AF_PACKET), Domain::PACKET);
    assert_eq!(Domain::from(libc::AF_VSOCK), Domain::VSOCK);
    assert_eq!(
        i32::from(Type::STREAM.nonblocking().cloexec()),
        libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC
    );
    assert_eq!(Type::from(libc::SOCK_RAW), Type::RAW);
    assert_eq!([Type::DGRAM, Type::SEQPACKET, Type::DCCP].map(i32::from), [2, 5, 6]);
    let protocols = [Protocol::ICMPV4, Protocol::TCP, Protocol::UDP, Protocol::ICMPV6, Protocol::MPTCP];
    assert_eq!(protocols.map(i32::from), [1, 6, 17, 58, 262]);
    assert_eq!([Protocol::DCCP, Protocol::SCTP, Protocol::UDPLITE].map(i32::from), [33, 132, 136]);
    assert_eq!(format!("{:?} {:?} {:?}", Domain::IPV4, Type::STREAM, Protocol::TCP), "AF_INET SOCK_STREAM IPPROTO_TCP");
    assert_eq!(format!("{:?} {:?} {:?}", Domain::from(500), Type::from(501), Protocol::from(502)), "500 501 502");
}

#[test]
fn addresses_round_trip() {
    let v4 = SocketAddrV4::new(Ipv4Addr::new(1, 2, 3, 4), 567);
    let addr = SockAddr::from(v4);
    assert!(addr.is_ipv4() && !addr.is_ipv6() && !addr.is_unix());
    assert_eq!((addr.as_socket(), addr.as_socket_ipv4(), addr.as_socket_ipv6()), (Some(v4.into()), Some(v4), None));
    assert_eq!((addr.family(), addr.domain(), addr.len()), (libc::AF_INET as u16, Domain::IPV4, 16));
    assert_eq!((addr.as_pathname(), addr.as_vsock_address()), (None, None));
    assert_eq!(addr, SockAddr::from(SocketAddr::from(v4)));
    assert_eq!(format!("{addr:?}"), "SockAddr { ss_family: 2, len: 16 }");

    let v6 = SocketAddrV6::new(Ipv6Addr::new(1, 2, 3, 4, 5, 6, 7, 8), 567, 89, 10);
    let addr = SockAddr::from(v6);
    assert_eq!((addr.as_socket(), addr.as_socket_ipv4(), addr.as_socket_ipv6()), (Some(v6.into()), None, Some(v6)));
    assert_eq!((addr.family(), addr.domain(), addr.len()), (libc::AF_INET6 as u16, Domain::IPV6, 28));
    assert_ne!(addr, SockAddr::from(SocketAddrV6::new(*v6.ip(), 568, 89, 10)));

    let addr = SockAddr::vsock(7, 8);
    assert_eq!((addr.as_vsock_address(), addr.domain(), addr.as_socket()), (Some((7, 8)), Domain::VSOCK, None));
}

#[test]
fn unix_addresses_are_paths_names_or_nothing() {
    let addr = SockAddr::unix("/a/b").unwrap();
    assert!(addr.is_unix() && !addr.is_unnamed());
    assert_eq!((addr.as_pathname(), addr.as_abstract_namespace()), (Some(Path::new("/a/b")), None));
    assert_eq!((addr.len(), addr.as_unix().unwrap().as_pathname()), (2 + 5, Some(Path::new("/a/b"))));
    let addr = SockAddr::unix("\0name").unwrap();
    assert_eq!((addr.as_pathname(), addr.as_abstract_namespace(), addr.len()), (None, Some(&b"name"[..]), 2 + 5));
    assert!(addr.as_unix().is_none());
    let addr = SockAddr::unix("").unwrap();
    assert!(addr.is_unnamed());
    assert_eq!((addr.as_pathname(), addr.as_abstract_namespace(), addr.len()), (None, None, 2));
    let longest = "x".repeat(107);
    assert_eq!(SockAddr::unix(&longest).unwrap().as_pathname(), Some(Path::new(&longest)));
    assert_eq!(SockAddr::unix("x".repeat(108)).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert!(SockAddr::unix(format!("\0{}", "x".repeat(107))).is_ok());
    assert_eq!(SockAddr::unix(format!("\0{}", "x".repeat(108))).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn streams_carry_bytes() {
    for addr in [any4(), any6()] {
        let (mut client, mut server) = stream_pair(&addr);
        client.write_all(b"hello").unwrap();
        assert_eq!(client.write_vectored(&[IoSlice::new(b" wo"), IoSlice::new(b"rld")]).unwrap(), 6);
        client.shutdown(Shutdown::Write).unwrap();
        let mut got = [0; 5];
        server.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"hello");
        let (mut first, mut second) = ([0; 2], [0; 8]);
        let mut bufs = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
        assert_eq!(server.read_vectored(&mut bufs).unwrap(), 6);
        assert_eq!((&first, &second[..4]), (b" w", &b"orld"[..]));
        assert_eq!(server.read(&mut got).unwrap(), 0);
        assert_eq!((&server).write(b"x").unwrap(), 1);
        assert_eq!((&client).read(&mut got).unwrap(), 1);
    }
}

#[test]
fn streams_are_read_by_every_call() {
    let (client, server) = stream_pair(&any4());
    assert_eq!(client.send(b"abcdef").unwrap(), 6);
    let mut buf = [MaybeUninit::uninit(); 4];
    assert_eq!(server.peek(&mut buf).unwrap(), 4);
    assert_eq!(server.recv_with_flags(&mut buf[..2], libc::MSG_PEEK).unwrap(), 2);
    assert_eq!(server.recv(&mut buf[..2]).unwrap(), 2);
    assert_eq!(filled(&buf[..2]), b"ab");
    let (mut first, mut second) = ([MaybeUninit::uninit(); 1], [MaybeUninit::uninit(); 9]);
    let mut bufs = [MaybeUninitSlice::new(&mut first), MaybeUninitSlice::new(&mut second)];
    assert_eq!(bufs[1].len(), 9);
    let (len, flags) = server.recv_vectored(&mut bufs).unwrap();
    assert_eq!((len, flags.is_truncated(), flags.is_out_of_band(), flags.is_end_of_record()), (4, false, false, false));
    assert_eq!((filled(&first), filled(&second[..3])), (b"c".to_vec(), b"def".to_vec()));
    assert_eq!(client.send_vectored(&[IoSlice::new(b"1"), IoSlice::new(b"23")]).unwrap(), 3);
    assert_eq!(client.send_vectored_with_flags(&[IoSlice::new(b"4")], libc::MSG_NOSIGNAL).unwrap(), 1);
    assert_eq!(client.send_with_flags(b"5", libc::MSG_NOSIGNAL).unwrap(), 1);
    let mut buf = [MaybeUninit::uninit(); 5];
    assert_eq!(server.recv_with_flags(&mut buf, libc::MSG_WAITALL).unwrap(), 5);
    assert_eq!(filled(&buf), b"12345");
    assert_eq!(server.recv_with_flags(&mut buf, libc::MSG_DONTWAIT).unwrap_err().kind(), ErrorKind::WouldBlock);
    // recvfrom on a stream returns no address.
    client.send(b"x").unwrap();
    let (len, from) = server.recv_from(&mut buf).unwrap();
    assert_eq!((len, from.family(), from.as_socket()), (1, libc::AF_UNSPEC as u16, None));
}

#[test]
fn urgent_bytes_are_separate() {
    let (client, server) = stream_pair(&any4());
    assert_eq!(client.send(b"ab").unwrap(), 2);
    assert_eq!(client.send_out_of_band(b"!").unwrap(), 1);
    let mut buf = [MaybeUninit::uninit(); 4];
    assert_eq!(server.recv(&mut buf).unwrap(), 2);
    assert_eq!(server.recv_out_of_band(&mut buf).unwrap(), 1);
    assert_eq!(filled(&buf[..1]), b"!");
    server.set_out_of_band_inline(true).unwrap();
    assert!(server.out_of_band_inline().unwrap());
}

#[test]
fn datagrams_keep_boundaries_and_senders() {
    let (client, server) = datagram_pair();
    let from = client.local_addr().unwrap();
    let mut buf = [MaybeUninit::uninit(); 4];
    for send in [
        |socket: &Socket, _to: &SockAddr| socket.send(b"abc"),
        |socket: &Socket, to: &SockAddr| socket.send_to(b"abc", to),
        |socket: &Socket, to: &SockAddr| socket.send_to_with_flags(b"abc", to, libc::MSG_NOSIGNAL),
        |socket: &Socket, to: &SockAddr| socket.send_to_vectored(&[IoSlice::new(b"a"), IoSlice::new(b"bc")], to),
        |socket: &Socket, to: &SockAddr| socket.send_to_vectored_with_flags(&[IoSlice::new(b"abc")], to, 0),
        |socket: &Socket, to: &SockAddr| {
            let bufs = [IoSlice::new(b"ab"), IoSlice::new(b"c")];
            socket.sendmsg(&MsgHdr::new().with_addr(to).with_buffers(&bufs).with_flags(0).with_control(&[]), 0)
        },
    ] {
        assert_eq!(send(&client, &server.local_addr().unwrap()).unwrap(), 3);
        assert_eq!(server.peek_sender().unwrap(), from);
        assert_eq!(server.peek_from(&mut buf).unwrap(), (3, from.clone()));
        assert_eq!(server.recv_from(&mut buf).unwrap(), (3, from.clone()));
        assert_eq!(filled(&buf[..3]), b"abc");
    }
    client.send(b"long one").unwrap();
    let mut bufs = [MaybeUninitSlice::new(&mut buf)];
    let (len, flags, sender) = server.recv_from_vectored(&mut bufs).unwrap();
    assert_eq!((len, flags.is_truncated(), sender), (4, true, from.clone()));
    client.send(b"x").unwrap();
    let (len, flags, _) = server.recv_from_vectored_with_flags(&mut bufs, libc::MSG_PEEK).unwrap();
    assert_eq!((len, flags.is_truncated()), (1, false));
    assert_eq!(server.recv_vectored_with_flags(&mut bufs, 0).unwrap().0, 1);
    assert_eq!(server.recv_from_with_flags(&mut buf, libc::MSG_DONTWAIT).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn messages_have_addresses_and_control_data() {
    let (client, server) = datagram_pair();
    server.set_recv_tos_v4(true).unwrap();
    client.send(b"hello").unwrap();
    let mut from = no_address();
    let (mut bytes, mut control) = ([MaybeUninit::uninit(); 16], [MaybeUninit::<u8>::uninit(); 64]);
    let mut bufs = [MaybeUninitSlice::new(&mut bytes)];
    let mut message = MsgHdrMut::new().with_addr(&mut from).with_buffers(&mut bufs).with_control(&mut control);
    assert_eq!(server.recvmsg(&mut message, 0).unwrap(), 5);
    assert!(!message.flags().is_truncated());
    // One IP_TOS: the header and one byte (ip(7)).
    assert_eq!(message.control_len(), size_of::<libc::cmsghdr>() + 8);
    assert_eq!(from.as_socket(), client.local_addr().unwrap().as_socket());
    assert_eq!(filled(&bytes[..5]), b"hello");
}

#[test]
fn pairs_are_unix_sockets() {
    let (a, b) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
    assert!(a.local_addr().unwrap().is_unnamed());
    a.send(b"x").unwrap();
    assert_eq!((&b).read(&mut [0; 4]).unwrap(), 1);
    let (a, _b) = Socket::pair_raw(Domain::UNIX, Type::DGRAM, None).unwrap();
    assert!(!closes_on_exec(&a));
    a.set_cloexec(true).unwrap();
    assert!(closes_on_exec(&a));
}

#[test]
fn only_raw_methods_omit_close_on_exec() {
    assert!(closes_on_exec(&Socket::new(Domain::IPV4, Type::STREAM, None).unwrap()));
    assert!(!closes_on_exec(&Socket::new_raw(Domain::IPV4, Type::STREAM, None).unwrap()));
    let (listener, addr) = listener(&any4());
    let connect = || {
        let client = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        client.connect(&addr).unwrap();
        client
    };
    let _clients = [connect(), connect(), connect()];
    assert!(closes_on_exec(&listener.accept().unwrap().0));
    assert!(!closes_on_exec(&listener.accept_raw().unwrap().0));
    let (accepted, _) = listener.accept4(libc::SOCK_NONBLOCK).unwrap();
    assert!(!closes_on_exec(&accepted) && accepted.nonblocking().unwrap());
    assert!(closes_on_exec(&accepted.try_clone().unwrap()));
}

#[test]
fn blocking_mode_belongs_to_the_socket() {
    let (client, _server) = stream_pair(&any4());
    assert!(!client.nonblocking().unwrap());
    let clone = client.try_clone().unwrap();
    clone.set_nonblocking(true).unwrap();
    assert!(client.nonblocking().unwrap());
    assert_eq!((&client).read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    client.set_nonblocking(false).unwrap();
    client.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    assert_eq!((&clone).read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), None).unwrap().nonblocking().unwrap());
}

#[test]
fn connecting_ends_or_is_refused() {
    let (listening, addr) = listener(&any4());
    let socket = || Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let client = socket();
    client.connect_timeout(&addr, Duration::from_secs(5)).unwrap();
    assert_eq!(client.peer_addr().unwrap(), addr);
    assert!(!client.nonblocking().unwrap());
    // The first call after EINPROGRESS returns the result, later ones that it is connected.
    client.connect(&addr).unwrap();
    assert_eq!(client.connect(&addr).unwrap_err().raw_os_error(), Some(libc::EISCONN));
    drop(listening);
    assert_eq!(socket().connect(&addr).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    let refused = socket().connect_timeout(&addr, Duration::from_secs(5)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(socket().peer_addr().unwrap_err().kind(), ErrorKind::NotConnected);
    assert_eq!(socket().send(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
    assert_eq!(socket().recv(&mut [MaybeUninit::uninit()]).unwrap_err().kind(), ErrorKind::NotConnected);
    assert_eq!(socket().shutdown(Shutdown::Both).unwrap_err().kind(), ErrorKind::NotConnected);
    assert_eq!(socket().accept().unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(socket().bind(&any6()).unwrap_err().raw_os_error(), Some(libc::EAFNOSUPPORT));
    let taken = listener(&any4());
    assert_eq!(socket().bind(&taken.1).unwrap_err().kind(), ErrorKind::AddrInUse);
}

#[test]
fn sockets_convert_to_and_from_descriptors() {
    let (client, mut server) = stream_pair(&any4());
    let number = client.as_raw_fd();
    assert_eq!(client.as_fd().as_raw_fd(), number);
    let owned: OwnedFd = through_its_number(client).into();
    assert_eq!(owned.as_raw_fd(), number);
    let client = Socket::from(owned);
    client.send(b"x").unwrap();
    let client = Socket::from(std::net::TcpStream::from(client));
    assert_eq!(server.read(&mut [0; 2]).unwrap(), 1);
    drop(client);
    assert_eq!(server.read(&mut [0; 2]).unwrap(), 0);
    let udp: std::net::UdpSocket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap().into();
    assert_eq!(Socket::from(udp).r#type().unwrap(), Type::DGRAM);
    let (a, _b) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
    assert_eq!(Socket::from(std::os::unix::net::UnixStream::from(a)).domain().unwrap(), Domain::UNIX);
}

#[test]
fn no_socket_takes_no_room() {
    assert_eq!(size_of::<Option<Socket>>(), size_of::<i32>());
    assert_eq!(size_of::<Option<SockRef<'_>>>(), size_of::<i32>());
}

#[test]
fn references_reach_sockets_of_other_types() {
    let std = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    {
        let reference = SockRef::from(&std);
        assert!(reference.is_listener().unwrap());
        assert_eq!(reference.local_addr().unwrap().as_socket(), Some(std.local_addr().unwrap()));
        assert!(format!("{reference:?}").starts_with("SockRef { raw: "));
    }
    std.local_addr().expect("a reference does not close");
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    assert!(format!("{socket:?}").starts_with("Socket { raw: "));
}

#[test]
fn files_are_sent() {
    let (client, mut server) = stream_pair(&any4());
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.txt", module_path!().replace(':', "_")));
    std::fs::write(&path, b"0123456789").unwrap();
    let file = std::fs::File::open(&path).unwrap();
    assert_eq!(client.sendfile(&file, 2, std::num::NonZeroUsize::new(3)).unwrap(), 3);
    assert_eq!(client.sendfile(&file, 8, None).unwrap(), 2);
    drop(client);
    let mut got = String::new();
    server.read_to_string(&mut got).unwrap();
    assert_eq!(got, "23489");
    std::fs::remove_file(path).unwrap();
}
