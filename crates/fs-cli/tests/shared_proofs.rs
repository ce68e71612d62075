//! A lease exists only while a socket keeps its port from others. A program that gives the port up, and
//! keeps the lease, would take the packets of the port's next user. Needs root.

#[path = "shared/lab.rs"]
mod lab;
#[allow(dead_code, reason = "shared with the test of frames")]
#[path = "shared/liar.rs"]
mod liar;
#[allow(dead_code, reason = "shared with the test of frames")]
#[path = "shared/rings_unsafe.rs"]
mod rings_unsafe;
#[path = "shared/role.rs"]
mod role;

use fs_compat::socket2::SockRef;
use fs_rt::broker::message::{Answer, Request};
use fs_rt::broker::wire;
use fs_xdp::Umem;
use lab::{Lab, ours};
use liar::{Liar, MEMORY, attach, call, greet};
use rustix::net::{AddressFamily, SocketType, connect_unspec};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

#[test]
fn program() {
    role::play();
}

const PORT: u16 = 7002;
const WAIT: Duration = Duration::from_secs(60);

/// Another user binds the port.
fn next_user() -> std::io::Result<UdpSocket> {
    UdpSocket::bind(("0.0.0.0", PORT))
}

/// The daemon may close its duplicates of the sockets of a connection that is replaced later than it answers.
fn stays_taken() {
    for _ in 0..50 {
        assert_eq!(next_user().map(drop).unwrap_err().kind(), ErrorKind::AddrInUse);
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn becomes_free() -> UdpSocket {
    let end = Instant::now() + WAIT;
    loop {
        match next_user() {
            Ok(socket) => return socket,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn sends_to_port(lab: &Lab) {
    sends_to(lab, PORT);
}

fn sends_to(lab: &Lab, port: u16) {
    let to = SocketAddr::new(ours(false), port);
    lab.peer.enter(|| UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"secret", to).unwrap());
}

/// A peer's datagram reaches the program.
fn carries(lab: &Lab, liar: &Liar, port: u16) {
    let before = liar.counters(lab)["in_frames"];
    sends_to(lab, port);
    let end = Instant::now() + WAIT;
    while liar.counters(lab)["in_frames"] == before {
        assert!(Instant::now() < end, "no lease of port {port}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A peer's datagram reaches the port's next user, and not the program.
fn carries_nothing(lab: &Lab, liar: &Liar, user: &UdpSocket) {
    let before = liar.counters(lab)["in_frames"];
    user.set_read_timeout(Some(WAIT)).unwrap();
    sends_to_port(lab);
    assert_eq!(user.recv(&mut [0; 9]).unwrap(), 6);
    assert_eq!(liar.counters(lab)["in_frames"], before);
}

#[test]
fn lease_ends_with_its_last_proof() {
    let Some(lab) = Lab::up("proofs") else { return };
    let daemon = lab.daemon();
    lab.host.enter(|| {
        let mut liar = Liar::new(&lab);
        assert_eq!(liar.lease(next_user().unwrap()), Answer::Done);
        stays_taken();
        // A connection that replaces another has its proofs, until it has asked for its leases again.
        liar.resume(&lab);
        stays_taken();
        liar.resume(&lab);
        stays_taken();
        assert_eq!(call(&liar.control, &Request::Resumed, &[]).0, Answer::Done);
        let user = becomes_free();
        carries_nothing(&lab, &liar, &user);
        drop(user);
        // It may prove the lease again.
        let socket: OwnedFd = becomes_free().into();
        assert_eq!(liar.lease(socket.try_clone().unwrap()), Answer::Done);
        liar.resume(&lab);
        assert_eq!(liar.lease(socket), Answer::Done);
        assert_eq!(call(&liar.control, &Request::Resumed, &[]).0, Answer::Done);
        stays_taken();
        liar.resume(&lab);
        let release = Request::Release {
            protocol: fs_core::Protocol::Udp,
            at: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), PORT),
        };
        assert_eq!(call(&liar.control, &release, &[]).0, Answer::Done);
        let user = becomes_free();
        carries_nothing(&lab, &liar, &user);
    });
    // By the daemon: this process still maps the rings.
    lab.wait_for_pairs(0);
    drop(daemon);
    lab.down();
}

/// A program's pair ends with its sockets, while it keeps its connection to the daemon. The next program
/// gets the slot.
#[test]
fn connection_ends_with_its_pair() {
    let Some(lab) = Lab::up("freed") else { return };
    let daemon = lab.daemon();
    lab.host.enter(|| {
        for releases in [true, false] {
            let former = greet(&lab);
            let (_, memory) = Umem::in_file(MEMORY).unwrap();
            let (answer, sockets) = call(&former, &attach(), &[&memory]);
            let Answer::Attached { slot, .. } = answer else { panic!("{answer:?}") };
            drop(sockets);
            let end = Instant::now() + WAIT;
            while !lab.listed().is_empty() {
                assert!(Instant::now() < end, "{:?}", lab.listed());
                std::thread::sleep(Duration::from_millis(10));
            }
            let next = Liar::new(&lab);
            assert_eq!(next.slot, slot);
            assert_eq!(next.lease(becomes_free()), Answer::Done);
            carries(&lab, &next, PORT);
            if releases {
                let release = Request::Release {
                    protocol: fs_core::Protocol::Udp,
                    at: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), PORT),
                };
                let _ended = wire::send(former.as_fd(), &release.encode(), &[]);
                assert!(wire::receive(former.as_fd(), |fd| fd).unwrap().is_none(), "the daemon has answered");
            }
            drop(former);
            // The daemon serves the connections of a user in turn.
            for _ in 0..2 {
                assert_eq!(call(&next.control, &Request::Resumed, &[]).0, Answer::Done);
            }
            assert_eq!(lab.pairs(), 1);
            carries(&lab, &next, PORT);
            drop(next);
            lab.wait_for_pairs(0);
        }
    });
    drop(daemon);
    lab.down();
}

/// The kernel frees a port that it has chosen itself (bind to port 0) when the socket disconnects, or
/// stops to listen.
#[test]
fn socket_that_can_give_up_its_port_is_no_proof() {
    let Some(lab) = Lab::up("autobound") else { return };
    let daemon = lab.daemon();
    lab.host.enter(|| {
        let liar = Liar::new(&lab);
        let refused = |socket: OwnedFd| {
            let answer = liar.lease(socket);
            assert!(matches!(answer, Answer::Failed { errno: libc::EACCES, .. }), "{answer:?}");
        };
        for at in ["0.0.0.0:0", "[::]:0", "10.91.0.1:0"] {
            refused(UdpSocket::bind(at).unwrap().into());
            refused(TcpListener::bind(at).unwrap().into());
            let family = if at.starts_with('[') { AddressFamily::INET6 } else { AddressFamily::INET };
            let bound = rustix::net::socket(family, SocketType::STREAM, None).unwrap();
            rustix::net::bind(&bound, &at.parse::<SocketAddr>().unwrap()).unwrap();
            refused(bound);
        }
        // It has a peer.
        let connected = becomes_free();
        connected.connect("10.91.0.2:9").unwrap();
        refused(connected.into());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connected = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&connected, &SocketAddr::from(([127, 0, 0, 1], PORT + 1))).unwrap();
        rustix::net::connect(&connected, &listener.local_addr().unwrap()).unwrap();
        refused(connected);
        // It leaves the port to others on another device.
        let bound = becomes_free();
        SockRef::from(&bound).bind_device(Some(b"lo")).unwrap();
        refused(bound.into());
        // A port that was named stays with the socket.
        let socket: OwnedFd = becomes_free().into();
        assert_eq!(liar.lease(socket.try_clone().unwrap()), Answer::Done);
        connect_unspec(&socket).unwrap();
        drop(socket);
        stays_taken();
        // Without SO_REUSEADDR.
        let listener = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&listener, &SocketAddr::from(([0; 4], PORT))).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        assert_eq!(liar.lease(listener.try_clone().unwrap()), Answer::Done);
        rustix::net::shutdown(listener.as_fd(), rustix::net::Shutdown::Both).unwrap();
        drop(listener);
        assert_eq!(TcpListener::bind(("0.0.0.0", PORT)).unwrap_err().kind(), ErrorKind::AddrInUse);
    });
    lab.wait_for_pairs(0);
    drop(daemon);
    lab.down();
}

/// The daemon tests a new proof by listening for a moment. That would stop a program which begins to
/// listen at that time. After a restart the leases are not new.
#[test]
fn program_begins_to_listen_while_it_proves_its_leases_again() {
    const SOCKETS: u16 = 150;
    let Some(lab) = Lab::up("listens") else { return };
    let daemon = lab.daemon();
    lab.host.enter(|| {
        let mut liar = Liar::new(&lab);
        let bound = |port| {
            let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
            rustix::net::bind(&socket, &SocketAddr::from(([0; 4], port))).unwrap();
            assert_eq!(liar.lease(socket.try_clone().unwrap()), Answer::Done);
            socket
        };
        let sockets: Vec<OwnedFd> = (PORT..PORT + SOCKETS).map(bound).collect();
        daemon.kill();
        let daemon = lab.daemon();
        liar.resume(&lab);
        for (round, socket) in sockets.iter().enumerate() {
            wire::send(liar.control.as_fd(), &Request::Lease.encode(), &[socket.as_fd()]).unwrap();
            // Hits the daemon's work at different moments.
            let begin = Instant::now() + Duration::from_micros(round as u64);
            while Instant::now() < begin {
                std::hint::spin_loop();
            }
            rustix::net::listen(socket, 1).unwrap();
            let (record, _) = wire::receive(liar.control.as_fd(), |fd| fd).unwrap().unwrap();
            assert_eq!(Answer::decode(&record).unwrap(), Answer::Done);
            assert!(rustix::net::sockopt::socket_acceptconn(socket).unwrap(), "round {round}");
        }
        drop(liar);
        lab.wait_for_pairs(0);
        drop(daemon);
    });
    lab.down();
}

/// After a restart of the daemon nothing proves a lease until its program has shown its socket again.
#[test]
#[ignore = "takes a minute: cargo xtask proof long"]
fn leases_end_if_their_program_does_not_resume() {
    let Some(lab) = Lab::up("silent") else { return };
    let daemon = lab.daemon();
    lab.host.enter(|| {
        let mut liar = Liar::new(&lab);
        assert_eq!(liar.lease(next_user().unwrap()), Answer::Done);
        let mut slow = Liar::new(&lab);
        let of_slow: OwnedFd = UdpSocket::bind(("0.0.0.0", PORT + 1)).unwrap().into();
        assert_eq!(slow.lease(of_slow.try_clone().unwrap()), Answer::Done);
        daemon.kill();
        let daemon = lab.daemon();
        // It replaces its connection after it has proved its lease, and begins again.
        slow.resume(&lab);
        assert_eq!(slow.lease(of_slow.try_clone().unwrap()), Answer::Done);
        slow.resume(&lab);
        let user = becomes_free();
        let before = liar.counters(&lab)["in_frames"];
        user.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let end = Instant::now() + 2 * WAIT;
        while user.recv(&mut [0; 9]).is_err() {
            assert!(
                Instant::now() < end,
                "{} frames have come to the program",
                liar.counters(&lab)["in_frames"] - before
            );
            sends_to_port(&lab);
        }
        carries_nothing(&lab, &liar, &user);
        drop(user);
        carries(&lab, &slow, PORT + 1);
        assert_eq!(slow.lease(of_slow), Answer::Done);
        assert_eq!(call(&slow.control, &Request::Resumed, &[]).0, Answer::Done);
        carries(&lab, &slow, PORT + 1);
        // A program that comes late proves its leases again.
        liar.resume(&lab);
        assert_eq!(liar.lease(becomes_free()), Answer::Done);
        assert_eq!(call(&liar.control, &Request::Resumed, &[]).0, Answer::Done);
        carries(&lab, &liar, PORT);
        drop((liar, slow));
        // By the daemon: this process still maps the rings.
        lab.wait_for_pairs(0);
        drop(daemon);
    });
    lab.down();
}
