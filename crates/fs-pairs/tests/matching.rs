//! Which sockets are matched, and the reason for which others are refused.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use common::raw::Raw;
use common::*;
use fs_carrier::exact::Carried;
use fs_carrier::kernel::RecvMode;
use fs_pairs::counters::count;
use fs_pairs::listing::{Process, list};
use fs_pairs::message::{Answer, Request};
use fs_pairs::service::Limits;
use fs_pairs::{Offered, Reason};
use rustix::net::{AddressFamily, SocketType};

#[test]
fn two_ends_are_matched_and_use_the_ring() {
    let service = Running::start();
    for at in ["127.0.0.1:0", "[::1]:0"] {
        let (a, b) = connection_at(at);
        let (pair_a, pair_b) = promoted(&service.client(), &service.client(), a, b);
        ring_carries(&pair_a, &pair_b, 1000);
    }
}

/// Matches an IPv4 connection that a dual-stack socket has accepted.
#[test]
fn mapped_address_is_its_ipv4_address() {
    let service = Running::start();
    let listener = TcpListener::bind("[::]:0").expect("a dual-stack socket");
    let a = TcpStream::connect(("127.0.0.1", listener.local_addr().expect("its address").port())).expect("connect");
    let (b, _) = listener.accept().expect("accept");
    let (pair_a, pair_b) = promoted(&service.client(), &service.client(), a, b);
    ring_carries(&pair_a, &pair_b, 1000);
}

/// Bytes from before the promotion, read or unread, keep their order.
#[test]
fn ends_join_at_different_moments() {
    let service = Running::start();
    let (mut a, mut b) = connection();
    a.write_all(b"one two ").expect("sent");
    b.write_all(b"x").expect("sent");
    let mut four = [0; 4];
    b.read_exact(&mut four).expect("a part of it");
    let clients = [service.client(), service.client()];
    let [(_, region_a, end_a), (_, region_b, end_b)] = match_ends([&clients[0], &clients[1]], [a.as_fd(), b.as_fd()]);
    a.write_all(b"three ").expect("sent");
    let pair_a = promote(a, region_a, end_a);
    assert_eq!(pair_a.send(b"four ", false), Ok(5));
    b.write_all(b"y").expect("sent");
    let pair_b = promote(b, region_b, end_b);
    assert_eq!(pair_b.send(b"z", false), Ok(1));
    let mut got = Vec::new();
    let mut buffer = [0; 3];
    while got.len() < 15 {
        let n = pair_b.recv(&mut buffer, RecvMode::WAIT).expect("bytes");
        got.extend_from_slice(&buffer[..n]);
    }
    assert_eq!(got, b"two three four ");
    let mut buffer = [0; 16];
    let mut n = 0;
    while n < 3 {
        n += pair_a.recv(&mut buffer[n..], RecvMode::WAIT).expect("bytes");
    }
    assert_eq!(&buffer[..n], b"xyz");
    ring_carries(&pair_a, &pair_b, 1000);
}

#[test]
fn lonely_offer_is_refused_after_its_time() {
    let service = Running::start();
    let (a, _b) = connection();
    let client = service.client();
    let number = offer(&client, &a);
    assert_eq!(refused(&client, number), Reason::NoPeer);
}

#[test]
fn other_descriptors_are_refused() {
    let service = Running::start();
    let client = service.client();
    let none = Carried::default();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let udp = UdpSocket::bind("127.0.0.1:0").expect("a port");
    udp.connect(listener.local_addr().expect("its address")).expect("connect");
    let file = std::fs::File::open("/dev/null").expect("a file");
    let pair = std::os::unix::net::UnixStream::pair().expect("a pair").0;
    let cases = [
        (listener.as_fd(), Reason::NotEstablished),
        (udp.as_fd(), Reason::NotTcp),
        (file.as_fd(), Reason::NotTcp),
        (pair.as_fd(), Reason::NotTcp),
    ];
    for (fd, reason) in cases {
        let number = client.offer(fd, none).expect("sent");
        assert_eq!(refused(&client, number), reason);
    }
}

/// The library offers no TCP socket to wait for the answers to its earlier offers (FASTSOCK_CALLS=0).
#[test]
fn refusal_comes_after_the_match_of_earlier_offers() {
    let path = path();
    let limits = Limits { wait: Duration::from_secs(3600), ..Limits::default() };
    let service = fs_pairs::Service::with_limits(&path, limits).expect("a service");
    let raw = Raw::connect_to(&path);
    let (a, b) = connection();
    for (number, socket) in [(1, a.as_fd()), (2, b.as_fd()), (3, raw.0.as_fd())] {
        let request = Request::Offer { number: fs_pairs::Number(number), carried: Carried::default() };
        raw.send(&request.encode(), &[socket]).expect("sent");
    }
    let _service = Running::run(path, service);
    let answers = [(); 3].map(|()| match raw.answer() {
        Answer::Matched { number, .. } => (number.0, None),
        Answer::Refused { number, reason } => (number.0, Some(reason)),
    });
    assert_eq!(answers, [(1, None), (2, None), (3, Some(Reason::NotTcp))]);
}

#[test]
fn ended_connection_is_refused() {
    let service = Running::start();
    let client = service.client();
    let (a, b) = connection();
    a.shutdown(std::net::Shutdown::Write).expect("shut");
    for socket in [&a, &b] {
        // The FIN may still be in transit.
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let number = offer(&client, socket);
            let reason = refused(&client, number);
            if reason == Reason::NotEstablished {
                break;
            }
            assert!(Instant::now() < end, "{reason}");
        }
    }
}

/// A process offers a socket, and connects it to another peer (connect(2) with AF_UNSPEC). Then
/// another socket connects from the offered one's address to its former peer.
#[test]
fn reconnected_socket_gets_no_ring_of_its_former_addresses() {
    let service = Running::with(Limits { wait: Duration::from_secs(3600), ..Limits::default() });
    let [liar, client_a, client_b] = [(); 3].map(|()| service.client());
    let [listener, other] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
    let bound = |at: SocketAddr| {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        rustix::net::sockopt::set_socket_reuseaddr(&socket, true).expect("set");
        rustix::net::bind(&socket, &at).expect("bind");
        TcpStream::from(socket)
    };
    let connect = |socket: &TcpStream, to: &TcpListener| {
        rustix::net::connect(socket, &to.local_addr().expect("its address")).expect("connect");
        to.accept().expect("accept").0
    };
    let socket = bound(SocketAddr::from(([127, 0, 0, 1], 0)));
    let former = connect(&socket, &listener);
    let address = socket.local_addr().expect("its address");
    let stale = offer(&liar, &socket);
    // Refused at once, so the offer before it has been taken.
    let not_tcp = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let refused_at_once = liar.offer(not_tcp.as_fd(), Carried::default()).expect("a service");
    assert_eq!(refused(&liar, refused_at_once), Reason::NotTcp);
    rustix::net::connect_unspec(&socket).expect("disconnect");
    drop(former);
    let _elsewhere = connect(&socket, &other);
    let a = bound(address);
    let b = connect(&a, &listener);
    let (number_b, number_a) = (offer(&client_b, &b), offer(&client_a, &a));
    matched(&client_b, number_b);
    matched(&client_a, number_a);
    liar.forget(stale);
    refused(&liar, stale);
}

#[test]
fn too_many_counted_bytes_are_refused() {
    let service = Running::start();
    let client = service.client();
    let (mut a, _b) = connection();
    a.write_all(b"abc").expect("sent");
    for carried in
        [Carried { sent: 4, taken: 0 }, Carried { sent: 3, taken: 1 }, Carried { sent: u64::MAX, taken: u64::MAX }]
    {
        let number = client.offer(a.as_fd(), carried).expect("sent");
        assert_eq!(refused(&client, number), Reason::Counts);
    }
}

#[test]
fn socket_is_offered_once() {
    let service = Running::with(Limits { wait: Duration::from_secs(60), ..Limits::default() });
    let (client_a, client_b) = (service.client(), service.client());
    let (a, b) = connection();
    let number = offer(&client_a, &a);
    wait_for_offers(&service, 1);
    let again = offer(&client_b, &a);
    assert_eq!(refused(&client_b, again), Reason::Twice);
    let other = offer(&client_b, &b);
    let _kept = (matched(&client_a, number), matched(&client_b, other));
    for socket in [&a, &b] {
        let again = offer(&client_b, socket);
        assert_eq!(refused(&client_b, again), Reason::Twice);
    }
    // After both ends have sent `forget`, it is an ordinary socket.
    client_a.forget(number);
    client_b.forget(other);
    let end = Instant::now() + Duration::from_secs(60);
    while count(&service.path).expect("counters").pairs > 0 {
        assert!(Instant::now() < end, "the pair is not over");
        std::thread::sleep(Duration::from_millis(1));
    }
    let (number, other) = (offer(&client_a, &a), offer(&client_b, &b));
    matched(&client_a, number);
    matched(&client_b, other);
}

/// A socket that is connected to itself is its own mirror.
#[test]
fn self_connected_socket_is_not_matched() {
    let service = Running::with(Limits { wait: Duration::from_secs(3600), ..Limits::default() });
    let client = service.client();
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    rustix::net::bind(&socket, &"127.0.0.1:0".parse::<SocketAddr>().expect("an address")).expect("bind");
    let own: SocketAddr = rustix::net::getsockname(&socket).expect("a name").try_into().expect("an address");
    rustix::net::connect(&socket, &own).expect("connect");
    let again = rustix::io::fcntl_dupfd_cloexec(&socket, 0).expect("a duplicate");
    let number = offer(&client, &socket);
    let twice = offer(&client, &again);
    assert_eq!(refused(&client, twice), Reason::Twice);
    client.forget(number);
    assert_eq!(refused(&client, number), Reason::NoPeer);
}

/// The duplicate of a waiting offer does not keep a connection open that its process has closed.
#[test]
fn forgotten_offer_is_closed_at_once() {
    let service = Running::with(Limits { wait: Duration::from_secs(3600), ..Limits::default() });
    let client = service.client();
    let (a, mut b) = connection();
    b.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
    let number = offer(&client, &a);
    client.forget(number);
    drop(a);
    assert_eq!(b.read(&mut [0; 1]).expect("the end"), 0);
    // The same after the process has exited.
    let (a, mut b) = connection();
    b.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
    let other = service.client();
    offer(&other, &a);
    drop(a);
    let number = other.descriptor().expect("a connection");
    rustix::net::shutdown(number_of(number), rustix::net::Shutdown::Both).expect("shut");
    assert_eq!(b.read(&mut [0; 1]).expect("the end"), 0);
}

/// A server, whose clients have no library and close at once, goes on offering its sockets.
#[test]
fn forgotten_offers_are_answered() {
    let service = Running::with(Limits { wait: Duration::from_secs(3600), ..Limits::default() });
    let client = service.client();
    for _ in 0..200 {
        let (a, _b) = connection();
        let number = offer(&client, &a);
        client.forget(number);
        assert_eq!(refused(&client, number), Reason::NoPeer);
    }
    assert!(!client.is_waiting());
}

/// Returns a duplicate of the client's descriptor. A socket cannot be opened in /proc, so it is
/// found in this process.
fn number_of(number: i32) -> std::os::fd::OwnedFd {
    let own = rustix::process::getpid();
    let process = rustix::process::pidfd_open(own, rustix::process::PidfdFlags::empty()).expect("a pidfd");
    rustix::process::pidfd_getfd(&process, number, rustix::process::PidfdGetfdFlags::empty()).expect("the descriptor")
}

#[test]
fn client_without_a_service_costs_nothing_and_finds_one_later() {
    let path = path();
    let client = fs_pairs::Client::new(&path).expect("a client");
    let (a, b) = connection();
    for _ in 0..1000 {
        assert!(client.offer(a.as_fd(), carried(&a)).is_none());
    }
    assert!(client.descriptor().is_none() && !client.is_waiting());
    client.forget(fs_pairs::Number(7));
    assert!(client.answer().is_none());
    let _service = Running::at(path, Limits::default());
    // Once it looks for the service again.
    match_ends([&client, &client], [a.as_fd(), b.as_fd()]);
}

#[test]
fn pairs_outlive_the_service() {
    let path = path();
    let service = Running::at(path.clone(), Limits { wait: Duration::from_secs(3600), ..Limits::default() });
    let (client_a, client_b) = (service.client(), service.client());
    let pairs: Vec<_> = (0..100)
        .map(|_| {
            let (a, b) = connection();
            promoted(&client_a, &client_b, a, b)
        })
        .collect();
    let (lonely, _peer) = connection();
    offer(&client_a, &lonely);
    drop(service);
    for (a, b) in &pairs {
        ring_carries(a, b, 10);
    }
    // Which call meets the loss first makes no difference.
    client_a.forget(fs_pairs::Number(1));
    assert!(matches!(answer(&client_a), Offered::Lost));
    assert!(!client_a.is_waiting());
}

/// The client counts its answers: one too many, and it reads all later ones an offer late.
#[test]
fn end_that_cannot_be_told_costs_the_other_one_nothing() {
    let service = Running::with(Limits { wait: Duration::from_secs(3600), ..Limits::default() });
    let (client_a, client_b) = (service.client(), service.client());
    let (a, b) = connection();
    let _pair = promoted(&client_a, &client_b, a, b);
    // As if its process had exited after its offer.
    let descriptor = number_of(client_b.descriptor().expect("a connection"));
    rustix::net::shutdown(descriptor, rustix::net::Shutdown::Read).expect("shut");
    let (a, b) = connection();
    let number = offer(&client_a, &a);
    // Refused at once, so the offer before it has been taken.
    let not_tcp = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let refused_at_once = client_a.offer(not_tcp.as_fd(), Carried::default()).expect("a service");
    refused(&client_a, refused_at_once);
    offer(&client_b, &b);
    let _half = matched(&client_a, number);
    let (lonely, _peer) = connection();
    let number = offer(&client_a, &lonely);
    client_a.forget(number);
    assert_eq!(refused(&client_a, number), Reason::NoPeer);
    assert!(!client_a.is_waiting());
}

#[test]
fn pairs_and_refused_offers_are_listed() {
    let service = Running::start();
    let (client_a, client_b) = (service.client(), service.client());
    let pairs: Vec<_> = (0..40)
        .map(|_| {
            let (a, b) = connection();
            let names = (a.local_addr().expect("a name"), b.local_addr().expect("a name"));
            (names, promoted(&client_a, &client_b, a, b))
        })
        .collect();
    let (_, (a, b)) = &pairs[0];
    let ring = ping_pong(a, b, 100);
    let (lonely, _peer) = connection();
    let number = offer(&client_a, &lonely);
    assert_eq!(refused(&client_a, number), Reason::NoPeer);
    let rows = list(&service.path).expect("a list");
    // On a busy machine some ends were refused, and offered again.
    assert_eq!(rows.iter().filter(|row| row.refused.is_none()).count(), 40);
    for (row, (names, _)) in rows.iter().zip(&pairs) {
        // The service may have taken the offer of either end first.
        assert!(row.refused.is_none() && [*names, (names.1, names.0)].contains(&(row.local, row.peer)), "{row:?}");
        assert!(row.ends.iter().all(|end| end.pid == std::process::id() && !end.name().is_empty()), "{row:?}");
    }
    let [forth, back] = rows[0].traffic;
    assert_eq!(forth.ring + forth.kernel + back.ring + back.kernel, 100 * 2 * 8);
    assert_eq!((forth.ring + back.ring) / 8, ring);
    let last = rows[rows.len() - 1];
    assert_eq!((last.refused, last.local), (Some(Reason::NoPeer), lonely.local_addr().expect("a name")));
    assert_eq!(last.netns, rows[0].netns);
    drop(pairs);
    assert!(list(std::path::Path::new("/none")).is_err());
}

#[test]
fn both_ends_have_to_be_permitted() {
    let (a, b) = connection();
    let (c, d) = connection();
    let forbidden = b.local_addr().expect("a name").port();
    let permit = move |process: &Process, local: SocketAddr, _peer: SocketAddr| {
        assert_eq!((process.pid, process.uid), (std::process::id(), rustix::process::getuid().as_raw()));
        local.port() != forbidden
    };
    let limits = Limits { wait: Duration::from_secs(3600), ..Limits::default() };
    let service = Running::permitted_by(Box::new(permit), limits);
    let client = service.client();
    let (first, second) = (offer(&client, &a), offer(&client, &b));
    assert_eq!(refused(&client, second), Reason::Policy);
    client.forget(first);
    assert_eq!(refused(&client, first), Reason::NoPeer);
    promoted(&service.client(), &service.client(), c, d);
}
