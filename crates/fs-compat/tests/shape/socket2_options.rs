// Included after socket2.rs.

use api::{InterfaceIndexOrAddress, SockFilter, TcpKeepalive};

fn tcp(domain: Domain) -> Socket {
    Socket::new(domain, Type::STREAM, None).unwrap()
}

fn udp(domain: Domain) -> Socket {
    Socket::new(domain, Type::DGRAM, None).unwrap()
}

/// Sets each option to each value and reads it back.
macro_rules! read_back {
    ($socket:expr, $($get:ident $set:ident: $($value:expr),*;)*) => {{
        let socket = $socket;
        $($(
            socket.$set($value).unwrap_or_else(|error| panic!("{} {:?}: {error}", stringify!($set), $value));
            assert_eq!(socket.$get().unwrap(), $value, stringify!($get));
        )*)*
    }};
}

#[test]
fn options_are_read_back() {
    read_back!(tcp(Domain::IPV4),
        keepalive set_keepalive: true, false;
        reuse_address set_reuse_address: true, false;
        reuse_port set_reuse_port: true, false;
        broadcast set_broadcast: true, false;
        out_of_band_inline set_out_of_band_inline: true, false;
        linger set_linger: Some(Duration::from_secs(7)), Some(Duration::ZERO), None::<Duration>;
        read_timeout set_read_timeout: Some(Duration::from_millis(1500)), None::<Duration>;
        write_timeout set_write_timeout: Some(Duration::from_millis(1500)), None::<Duration>;
        priority set_priority: 3, 0;
        tcp_nodelay set_tcp_nodelay: true, false;
        tcp_cork set_tcp_cork: true, false;
        tcp_thin_linear_timeouts set_tcp_thin_linear_timeouts: true, false;
        tcp_notsent_lowat set_tcp_notsent_lowat: 4096;
        tcp_user_timeout set_tcp_user_timeout: Some(Duration::from_millis(2500)), None::<Duration>;
        ttl_v4 set_ttl_v4: 17, 64;
        tos_v4 set_tos_v4: 0x28, 0;
        freebind_v4 set_freebind_v4: true, false;
    );
    read_back!(tcp(Domain::IPV6),
        only_v6 set_only_v6: true, false;
        unicast_hops_v6 set_unicast_hops_v6: 17, 64;
        tclass_v6 set_tclass_v6: 0x28, 0;
        freebind_v6 set_freebind_v6: true, false;
        recv_tclass_v6 set_recv_tclass_v6: true, false;
        recv_hoplimit_v6 set_recv_hoplimit_v6: true, false;
    );
    read_back!(udp(Domain::IPV4),
        recv_tos_v4 set_recv_tos_v4: true, false;
        multicast_all_v4 set_multicast_all_v4: true, false;
        multicast_loop_v4 set_multicast_loop_v4: false, true;
        multicast_ttl_v4 set_multicast_ttl_v4: 9, 1;
    );
    read_back!(udp(Domain::IPV6),
        multicast_all_v6 set_multicast_all_v6: true, false;
        multicast_loop_v6 set_multicast_loop_v6: false, true;
        multicast_hops_v6 set_multicast_hops_v6: 9, 1;
        multicast_if_v6 set_multicast_if_v6: 1;
    );
    read_back!(Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap().0,
        passcred set_passcred: true, false;
    );
}

#[test]
fn kernel_doubles_buffer_sizes() {
    let socket = tcp(Domain::IPV4);
    socket.set_recv_buffer_size(64 << 10).unwrap();
    socket.set_send_buffer_size(32 << 10).unwrap();
    assert_eq!((socket.recv_buffer_size().unwrap(), socket.send_buffer_size().unwrap()), (128 << 10, 64 << 10));
}

#[test]
fn socket_reports_its_properties() {
    let socket = tcp(Domain::IPV6);
    assert_eq!(socket.r#type().unwrap(), Type::STREAM);
    assert_eq!(socket.domain().unwrap(), Domain::IPV6);
    assert_eq!(socket.protocol().unwrap(), Some(Protocol::TCP));
    assert!(!socket.is_listener().unwrap());
    assert!(socket.take_error().unwrap().is_none());
    assert_ne!(socket.cookie().unwrap(), tcp(Domain::IPV6).cookie().unwrap());
    assert_eq!(Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap().0.protocol().unwrap(), None);
}

#[test]
fn keepalive_is_seconds_and_probes() {
    let socket = tcp(Domain::IPV4);
    let keepalive =
        TcpKeepalive::new().with_time(Duration::from_secs(200)).with_interval(Duration::from_secs(30)).with_retries(4);
    socket.set_tcp_keepalive(&keepalive).unwrap();
    assert!(socket.keepalive().unwrap());
    assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(200));
    assert_eq!(socket.tcp_keepalive_interval().unwrap(), Duration::from_secs(30));
    assert_eq!(socket.tcp_keepalive_retries().unwrap(), 4);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(Duration::from_secs(100))).unwrap();
    assert_eq!(socket.tcp_keepalive_interval().unwrap(), Duration::from_secs(30));
}

#[test]
fn tcp_options_of_a_connection() {
    let (client, _server) = stream_pair(&any4());
    assert!(client.tcp_mss().unwrap() > 500);
    client.set_tcp_quickack(false).unwrap();
    assert!(!client.tcp_quickack().unwrap());
    let congestion = client.tcp_congestion().unwrap();
    // The name is padded with zeros.
    assert!(congestion.len() == 16 && congestion[0].is_ascii_alphabetic(), "{congestion:?}");
    client.set_tcp_congestion(&congestion).unwrap();
    assert!(client.set_tcp_congestion(b"no such").is_err());
    let unconnected = tcp(Domain::IPV4);
    unconnected.set_tcp_mss(1000).unwrap();
    unconnected.set_cpu_affinity(0).unwrap();
    // Only a redirected connection has an original destination.
    assert!(client.original_dst_v4().is_err());
    assert!(stream_pair(&any6()).0.original_dst_v6().is_err());
}

#[test]
fn groups_are_joined_once() {
    let (group, loopback) = (Ipv4Addr::new(224, 0, 1, 200), Ipv4Addr::LOCALHOST);
    let socket = udp(Domain::IPV4);
    socket.set_multicast_if_v4(&loopback).unwrap();
    assert_eq!(socket.multicast_if_v4().unwrap(), loopback);
    socket.join_multicast_v4(&group, &loopback).unwrap();
    assert_eq!(socket.join_multicast_v4(&group, &loopback).unwrap_err().kind(), ErrorKind::AddrInUse);
    socket.leave_multicast_v4(&group, &loopback).unwrap();
    assert_eq!(socket.leave_multicast_v4(&group, &loopback).unwrap_err().kind(), ErrorKind::AddrNotAvailable);
    let by_number = InterfaceIndexOrAddress::Index(1);
    socket.join_multicast_v4_n(&group, &by_number).unwrap();
    socket.leave_multicast_v4_n(&group, &by_number).unwrap();
    let by_address = InterfaceIndexOrAddress::Address(loopback);
    socket.join_multicast_v4_n(&group, &by_address).unwrap();
    socket.leave_multicast_v4_n(&group, &by_address).unwrap();
    let (source, ssm) = (Ipv4Addr::new(10, 1, 2, 3), Ipv4Addr::new(232, 1, 1, 1));
    socket.join_ssm_v4(&source, &ssm, &loopback).unwrap();
    socket.leave_ssm_v4(&source, &ssm, &loopback).unwrap();
    let (group, loopback) = (Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2), 1);
    let socket = udp(Domain::IPV6);
    socket.join_multicast_v6(&group, loopback).unwrap();
    assert_eq!(socket.join_multicast_v6(&group, loopback).unwrap_err().kind(), ErrorKind::AddrInUse);
    socket.leave_multicast_v6(&group, loopback).unwrap();
}

#[test]
fn privileged_options_return_the_kernels_errors() {
    let root = rustix::process::geteuid().is_root();
    let socket = udp(Domain::IPV4);
    assert_eq!(socket.device().unwrap(), None);
    for (result, read_back) in [
        (socket.set_mark(5), socket.mark().map(|mark| mark == 5)),
        (socket.set_ip_transparent_v4(true), socket.ip_transparent_v4()),
        (socket.set_busy_poll(20), socket.busy_poll().map(|busy| busy == 20)),
    ] {
        match result {
            Ok(()) => assert!(read_back.unwrap()),
            Err(error) => assert!(!root, "{error}"),
        }
    }
    socket.bind_device(Some(b"lo")).unwrap();
    assert_eq!(socket.device().unwrap().as_deref(), Some(&b"lo"[..]));
    if root {
        socket.bind_device(None).unwrap();
        udp(Domain::IPV6).set_ip_transparent_v6(true).unwrap();
        assert!(!udp(Domain::IPV6).ip_transparent_v6().unwrap());
        let raw = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)).unwrap();
        raw.set_header_included_v4(true).unwrap();
        assert!(raw.header_included_v4().unwrap());
        let raw = Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::ICMPV6)).unwrap();
        // Crate socket2 reads another option than it sets.
        raw.set_header_included_v6(true).unwrap();
        raw.header_included_v6().unwrap();
    }
}

#[test]
fn filter_drops_rejected_packets() {
    let (client, server) = datagram_pair();
    // ret #0 rejects every packet (Documentation/networking/filter.rst).
    server.attach_filter(&[SockFilter::new(0x06, 0, 0, 0)]).unwrap();
    client.send(b"dropped").unwrap();
    server.detach_filter().unwrap();
    client.send(b"kept").unwrap();
    let mut buf = [MaybeUninit::uninit(); 16];
    assert_eq!(server.recv(&mut buf).unwrap(), 4);
}
