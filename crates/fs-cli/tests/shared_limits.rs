//! A program that fills or blocks the broker: others are served. Needs root.

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

use fs_daemon::shared;
use fs_rt::broker::message::{Answer, LEN, Request};
use fs_rt::broker::{HELLO, wire};
use fs_xdp::{QueueConfig, Umem};
use lab::{DEVICE, Lab, NetNs, connect, exchange, ours};
use liar::{Liar, MEMORY, RINGS, call, greet};
use rustix::io::{Errno, IoSlice};
use rustix::net::sockopt::{Timeout, set_ipv6_v6only, set_socket_linger, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, socket_with,
};
use rustix::process::{Pid, Signal, kill_process};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// SCM_MAX_FD of include/net/scm.h.
const MAX_DESCRIPTORS: usize = 253;
const WAIT: Duration = Duration::from_secs(60);

#[test]
fn program() {
    role::play();
}

fn become_nobody() {
    let nobody = rustix::process::Uid::from_raw(65_534);
    rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
}

/// Returns true if the broker answers on this connection.
fn answers(control: &OwnedFd) -> bool {
    set_socket_timeout(control, Timeout::Recv, Some(WAIT)).unwrap();
    let request = Request::Device("lo".into()).encode();
    wire::send(control.as_fd(), &request, &[]).is_ok() && matches!(wire::receive(control.as_fd(), |fd| fd), Ok(Some(_)))
}

/// Waits for the end of a connection.
fn has_ended(control: &OwnedFd) -> bool {
    set_socket_timeout(control, Timeout::Recv, Some(WAIT)).unwrap();
    matches!(rustix::net::recv(control, &mut [0; LEN], RecvFlags::empty()), Ok((0, _)) | Err(Errno::CONNRESET))
}

/// Returns a socket whose last close(2) blocks until the other one is closed.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (b, _) = listener.accept().unwrap();
    set_socket_linger(&a, Some(Duration::from_secs(3600))).unwrap();
    a.set_nonblocking(true).unwrap();
    while a.write(&[0; 1 << 16]).is_ok() {}
    (a.into(), b)
}

fn send(control: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut message = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || message.push(SendAncillaryMessage::ScmRights(fds)));
    rustix::net::sendmsg(control, &[IoSlice::new(bytes)], &mut message, SendFlags::NOSIGNAL).is_ok()
}

/// The broker's thread closes no descriptor of a program's, however it comes.
#[test]
fn descriptors_that_block_in_close_delay_nobody() {
    let Some(lab) = Lab::up("closes") else { return };
    let daemon = lab.daemon();
    let liar = lab.host.enter(|| Liar::new(&lab));
    let other = greet(&lab);
    assert!(answers(&other));
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let device = Request::Device("lo".into()).encode();
    let lease = Request::Lease.encode();
    type Case<'a> = (&'a str, &'a OwnedFd, Vec<&'a [u8]>, usize);
    let [idle, broken, ended, many] = [(); 4].map(|()| greet(&lab));
    let cases: [Case<'_>; 5] = [
        ("a request that needs none", &idle, vec![&device], 0),
        ("behind a refused one", &liar.control, vec![&lease], 1),
        ("bytes that are no request", &broken, vec![&[0; LEN]], 0),
        ("a message in a connection that ends", &ended, vec![&[0; LEN], &device], 0),
        ("more than a message may have", &many, vec![&device], MAX_DESCRIPTORS - 1),
    ];
    let (mut peers, mut closing) = (Vec::new(), Vec::new());
    for (name, control, messages, before) in cases {
        let (socket, peer) = lab.host.enter(lingering);
        peers.push(peer);
        let mut fds = vec![null.as_fd(); before];
        fds.push(socket.as_fd());
        let (last, first) = messages.split_last().unwrap();
        assert!(first.iter().all(|bytes| send(control, bytes, &[])));
        // The connection may have ended after the first message.
        assert!(send(control, last, &fds) || !first.is_empty(), "{name}");
        // If the daemon has closed its duplicate already, this close(2) blocks until the peers end.
        closing.push(std::thread::spawn(move || drop(socket)));
        assert!(answers(&other), "{name}");
    }
    drop(peers);
    closing.into_iter().for_each(|thread| thread.join().unwrap());
    drop((liar, daemon));
    lab.down();
}

/// The daemon closes its duplicate of a socket that has proved a lease before it answers that the lease has ended.
/// The threads that close what nobody waits for have no part in that.
#[test]
fn port_is_free_when_its_program_has_given_it_up() {
    let Some(lab) = Lab::up("rebind") else { return };
    let daemon = lab.daemon();
    let pid = Pid::from_raw(daemon.pid().cast_signed()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let (peers, controls): (Vec<_>, Vec<_>) = lab.host.enter(|| {
        become_nobody();
        let occupy = |_| {
            let ((socket, peer), control) = (lingering(), greet(&lab));
            assert!(send(&control, &[0; LEN], &[socket.as_fd()]));
            (peer, control)
        };
        (0..8).map(occupy).unzip()
    });
    kill_process(pid, Signal::CONT).unwrap();
    lab.program_of_root("rebind 7001");
    lab.program(&lab.host, 65_534, "rebind 7001");
    lab.program(&NetNs::new(), 65_534, "rebind 7001");
    lab.wait_for_pairs(0);
    // Their connections have ended, though the daemon cannot close them yet.
    assert!(controls.iter().all(has_ended));
    drop((peers, controls, daemon));
    lab.down();
}

/// A user's connections to the broker are bounded, and leave room for other users.
#[test]
fn connections_of_one_user_are_bounded() {
    let Some(lab) = Lab::up("connections") else { return };
    let daemon = lab.daemon();
    let of_nobody = |n: usize| {
        lab.host.enter(|| {
            become_nobody();
            (0..n).map(|_| greet(&lab)).filter(answers).collect::<Vec<_>>()
        })
    };
    let open = of_nobody(200);
    assert_eq!(open.len(), 128);
    assert!(answers(&greet(&lab)));
    drop(open);
    let end = Instant::now() + WAIT;
    while of_nobody(1).is_empty() {
        assert!(Instant::now() < end, "ended connections are counted still");
    }
    drop(daemon);
    lab.down();
}

/// One user's connections all ask for pairs that cannot be made, from the daemon's first moment on.
/// Counts the answers. `is_brief`: a connection ends after one request.
fn flood(lab: &Lab, has_ended: &AtomicBool, answers: &AtomicU32, is_brief: bool) {
    become_nobody();
    let (_umem, file) = Umem::in_file(MEMORY).unwrap();
    let rings = QueueConfig { rx: 3, ..RINGS };
    let attach = Request::Attach { name: DEVICE.into(), queues: 1, memory: MEMORY, rings, segments: true }.encode();
    while !has_ended.load(Ordering::Relaxed) {
        let control = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        set_socket_timeout(&control, Timeout::Recv, Some(Duration::from_secs(1))).unwrap();
        let is_there = rustix::net::connect(&control, &SocketAddrUnix::new(lab.control()).unwrap()).is_ok()
            && rustix::net::send(&control, &HELLO, SendFlags::NOSIGNAL).is_ok();
        while is_there && !has_ended.load(Ordering::Relaxed) && send(&control, &attach, &[file.as_fd()]) {
            let answer = rustix::net::recv(&control, &mut [0; LEN][..], RecvFlags::empty());
            answers.fetch_add(answer.is_ok_and(|(length, _)| length > 0).into(), Ordering::Relaxed);
            if is_brief {
                break;
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Another user's program proves its leases in time.
#[test]
fn flood_at_a_restart_costs_others_no_lease() {
    let Some(lab) = Lab::up("flood") else { return };
    let daemon = lab.daemon();
    let mut program = lab.program(&lab.host, 65_533, "churn 7001");
    let mut kept = lab.peer.enter(|| connect(SocketAddr::new(ours(false), 7001)));
    exchange(&mut kept, 10_000);
    let leases = || lab.host.enter(|| shared::list(shared::PINS.as_ref()).unwrap()[0].leases);
    let before = leases();
    daemon.kill();
    program.wait_for("away");
    let (has_ended, answers) = (AtomicBool::new(false), AtomicU32::new(0));
    let daemon = std::thread::scope(|scope| {
        (0..100).for_each(|_| drop(scope.spawn(|| flood(&lab, &has_ended, &answers, false))));
        let daemon = lab.daemon();
        // A packet while there is no lease is answered with a reset.
        let echoes = scope.spawn(|| {
            while !has_ended.load(Ordering::Relaxed) {
                exchange(&mut kept, 100);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        program.wait_for("back");
        while answers.load(Ordering::Relaxed) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        has_ended.store(true, Ordering::Relaxed);
        echoes.join().unwrap();
        daemon
    });
    // It binds and closes one more all the time.
    let after = leases();
    assert!(before > 60 && after.abs_diff(before) <= 1, "{after} leases, {before} before");
    drop((program, daemon));
    lab.wait_for_pairs(0);
    lab.down();
}

/// Several services may have one user.
#[test]
fn new_connections_do_not_keep_a_users_older_one_from_its_turn() {
    let Some(lab) = Lab::up("turns") else { return };
    let daemon = lab.daemon();
    let older = lab.host.enter(|| {
        become_nobody();
        greet(&lab)
    });
    assert!(answers(&older));
    let (has_ended, others) = (AtomicBool::new(false), AtomicU32::new(0));
    let turns = std::thread::scope(|scope| {
        (0..4).for_each(|_| drop(scope.spawn(|| flood(&lab, &has_ended, &others, true))));
        while others.load(Ordering::Relaxed) < 4 {
            std::thread::sleep(Duration::from_millis(1));
        }
        // More are served while this thread is off its processor, so the best of some tries counts.
        let tries: Option<Vec<u32>> = (0..10)
            .map(|_| {
                let begin = others.load(Ordering::Relaxed);
                answers(&older).then(|| others.load(Ordering::Relaxed) - begin)
            })
            .collect();
        has_ended.store(true, Ordering::Relaxed);
        tries.and_then(|tries| tries.into_iter().min())
    });
    // One is served already, and the next one may be.
    assert!(turns.is_some_and(|turns| turns < 8), "{turns:?} others were served before");
    drop(daemon);
    lab.wait_for_pairs(0);
    lab.down();
}

fn bound(kind: SocketType, at: SocketAddr) -> Option<OwnedFd> {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket(family, kind, None).unwrap();
    if at.is_ipv6() {
        set_ipv6_v6only(&socket, true).unwrap();
    }
    rustix::net::bind(&socket, &at).ok().map(|()| socket)
}

/// A lease that is refused because a user has too many does not stay: another program gets the port.
#[test]
fn lease_beyond_the_limit_leaves_the_port_to_others() {
    let Some(lab) = Lab::up("proofs") else { return };
    let daemon = lab.daemon();
    let root = lab.host.enter(|| Liar::new(&lab));
    let of_root = &root.control;
    lab.host.enter(|| {
        become_nobody();
        let liar = Liar::new(&lab);
        let any = [IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()];
        let ends = (1024..=u16::MAX).flat_map(|port| {
            any.into_iter().flat_map(move |ip| {
                [SocketType::STREAM, SocketType::DGRAM].map(|kind| (kind, SocketAddr::new(ip, port)))
            })
        });
        let mut sockets = ends.filter_map(|(kind, at)| Some(((kind, at), bound(kind, at)?)));
        let is_full = |answer: Answer| match answer {
            Answer::Done => false,
            Answer::Failed { errno: libc::EMFILE, .. } => true,
            other => panic!("{other:?}"),
        };
        loop {
            let batch: Vec<_> = sockets.by_ref().take(128).map(|(_, socket)| socket).collect();
            assert_eq!(batch.len(), 128, "no limit");
            if is_full(call(&liar.control, &Request::Lease, &batch.iter().collect::<Vec<_>>()).0) {
                break;
            }
        }
        // The rest of the last batch is closed, and leaves room for some.
        let (kind, at) = loop {
            let (end, socket) = sockets.next().expect("no limit");
            if is_full(liar.lease(socket)) {
                break end;
            }
        };
        // A closing thread closes the daemon's duplicate.
        let end = Instant::now() + WAIT;
        let socket = loop {
            match bound(kind, at) {
                Some(socket) => break socket,
                None => assert!(Instant::now() < end, "the port is held"),
            }
        };
        assert_eq!(call(of_root, &Request::Lease, &[&socket]).0, Answer::Done);
    });
    drop((root, daemon));
    lab.down();
}
