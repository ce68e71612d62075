//! Two ends of a connection within the host, beside the kernel's answers.

mod common;

use common::{SOCK_NONBLOCK, Way, both, same};
use fs_socket::{Errno, flags};

#[test]
fn a_connection_carries_bytes_both_ways() {
    same(|way| {
        let (client, server) = way.pair();
        let mut room = [0; 64];
        assert_eq!(way.send(client, b"ping", 0), Ok(4));
        assert_eq!(way.recv(server, &mut room, 0), Ok(4));
        assert_eq!(way.send(server, b"pong!", 0), Ok(5));
        assert_eq!(way.recv(client, &mut room, 0), Ok(5));
        assert_eq!(&room[..5], b"pong!");
        assert_eq!(way.close(client), Ok(()));
        assert_eq!(way.recv(server, &mut room, 0), Ok(0));
        way.close(server).unwrap();
    });
}

#[test]
fn names_of_both_ends_agree() {
    same(|way| {
        let (client, server) = way.pair();
        assert_eq!(way.peer(client).unwrap(), way.name(server));
        assert_eq!(way.name(client), way.peer(server).unwrap());
        assert!(way.name(client).ip().is_loopback());
        assert_ne!(way.name(client).port(), 0);
        way.close(client).unwrap();
        way.close(server).unwrap();
    });
}

#[test]
fn what_a_closed_peer_brings() {
    let answers = same(|way| {
        let mut room = [0; 64];
        let mut answers = vec![];
        // FIN: end of data, then the first send goes, then the pipe is broken.
        let (client, server) = way.pair();
        way.close(server).unwrap();
        answers.push(way.recv(client, &mut room, 0));
        answers.push(way.send(client, b"x", 0));
        std::thread::sleep(std::time::Duration::from_millis(20));
        answers.push(way.send(client, b"x", 0));
        answers.push(way.recv(client, &mut room, 0));
        way.close(client).unwrap();
        // Unread bytes: a reset.
        let (client, server) = way.pair();
        way.send(client, b"unread", 0).unwrap();
        way.close(server).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        answers.push(way.recv(client, &mut room, 0));
        answers.push(way.recv(client, &mut room, 0));
        answers.push(way.send(client, b"x", 0));
        answers.push(way.peer(client).map(|_| 0));
        way.close(client).unwrap();
        // SO_LINGER 0: a reset.
        let (client, server) = way.pair();
        way.setsockopt(server, 1, 13, &[1, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        way.close(server).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        answers.push(way.getsockopt(client, 1, 4).map(|errno| errno as usize));
        answers.push(way.recv(client, &mut room, 0));
        way.close(client).unwrap();
        answers
    });
    assert_eq!(answers[0], Ok(0));
}

#[test]
fn calls_that_do_not_wait() {
    same(|way| {
        let (listener, at) = way.listener(SOCK_NONBLOCK);
        let mut answers = vec![way.accept(listener, 0).map(|_| 0)];
        let client = way.socket(SOCK_NONBLOCK);
        answers.push(way.connect(client, at).map(|()| 0));
        std::thread::sleep(std::time::Duration::from_millis(20));
        answers.push(way.getsockopt(client, 1, 4).map(|errno| errno as usize));
        answers.push(way.connect(client, at).map(|()| 0));
        answers.push(way.connect(client, at).map(|()| 0));
        let (server, peer) = way.accept(listener, 0).unwrap();
        assert_eq!(common::std(peer), way.name(client));
        // Accepted sockets block, whatever the listener does.
        answers.push(way.fcntl(server, 3, 0).map(|flags| (flags & SOCK_NONBLOCK) as usize));
        let mut room = [0; 8];
        answers.push(way.recv(client, &mut room, 0));
        answers.push(way.recv(server, &mut room, flags::DONTWAIT));
        answers.push(way.recv(server, &mut [], flags::DONTWAIT));
        for fd in [listener, client, server] {
            way.close(fd).unwrap();
        }
        answers
    });
}

#[test]
fn flags_of_receiving() {
    same(|way| {
        let (client, server) = way.pair();
        let mut room = [0; 8];
        let mut answers = vec![way.send(client, b"abcdef", 0)];
        answers.push(way.recv(server, &mut room, flags::PEEK));
        answers.push(way.recv(server, &mut room[..2], flags::TRUNC));
        answers.push(way.recv(server, &mut room[..3], flags::PEEK | flags::WAITALL));
        assert_eq!(&room[..3], b"cde");
        answers.push(way.recv(server, &mut room, flags::OOB));
        answers.push(way.recv(server, &mut room, flags::ERRQUEUE));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(30));
                way.send(client, b"ghij", 0).unwrap();
            });
            answers.push(way.recv(server, &mut room, flags::WAITALL));
        });
        assert_eq!(&room, b"cdefghij");
        way.close(client).unwrap();
        answers.push(way.recv(server, &mut room, flags::WAITALL));
        way.close(server).unwrap();
        answers
    });
}

#[test]
fn shutdown_and_what_is_left() {
    same(|way| {
        let (client, server) = way.pair();
        let mut room = [0; 8];
        let mut answers = vec![way.shutdown(client, 7).map(|()| 0)];
        answers.push(way.shutdown(client, 1).map(|()| 0));
        answers.push(way.send(client, b"x", 0));
        answers.push(way.recv(server, &mut room, 0));
        answers.push(way.send(server, b"still", 0));
        answers.push(way.recv(client, &mut room, 0));
        answers.push(way.shutdown(server, 2).map(|()| 0));
        answers.push(way.recv(client, &mut room, 0));
        answers.push(way.recv(server, &mut room, 0));
        answers.push(way.send(server, b"x", 0));
        way.close(client).unwrap();
        way.close(server).unwrap();
        answers
    });
}

#[test]
fn time_limits_and_a_full_pipe() {
    let (kernel, ours) = both(|way| {
        let (client, server) = way.pair();
        let mut timeval = [0; 16];
        timeval[8..].copy_from_slice(&50_000_u64.to_ne_bytes());
        way.setsockopt(server, 1, 20, &timeval).unwrap();
        way.setsockopt(client, 1, 21, &timeval).unwrap();
        let mut room = [0; 8];
        let mut answers = vec![way.recv(server, &mut room, 0)];
        let block = vec![7; 1 << 20];
        // Fills up: what fits comes back, then nothing.
        let mut sent = 0;
        let last = loop {
            match way.send(client, &block, 0) {
                Ok(some) => sent += some,
                Err(errno) => break errno,
            }
        };
        assert!(sent > 10_000);
        answers.push(Err(last));
        let mut left = sent;
        let mut room = vec![0; 1 << 20];
        while left != 0 {
            left -= way.recv(server, &mut room, 0).unwrap();
        }
        answers.push(way.recv(server, &mut room, 0));
        way.close(client).unwrap();
        way.close(server).unwrap();
        answers
    });
    assert_eq!(ours, kernel);
    assert_eq!(ours[0], Err(Errno::AGAIN));
}

#[test]
fn errors_of_what_is_not_connected() {
    same(|way| {
        let mut room = [0; 8];
        let fd = way.socket(0);
        let mut answers = vec![way.recv(fd, &mut room, 0), way.send(fd, b"x", 0)];
        answers.push(way.shutdown(fd, 1).map(|()| 0));
        answers.push(way.peer(fd).map(|_| 0));
        answers.push(way.accept(fd, 0).map(|_| 0));
        // Nobody listens on port 1 here.
        answers.push(way.connect(fd, "127.0.0.1:1".parse().unwrap()).map(|()| 0));
        way.close(fd).unwrap();
        answers.push(way.close(fd).map(|()| 0));
        answers.push(way.recv(fd, &mut room, 0));
        let (listener, at) = way.listener(0);
        answers.push(way.recv(listener, &mut room, 0));
        answers.push(way.connect(listener, at).map(|()| 0));
        way.close(listener).unwrap();
        let (client, server) = way.pair();
        answers.push(way.connect(client, at).map(|()| 0));
        answers.push(way.listen(client).map(|()| 0));
        answers.push(way.accept(client, 0).map(|_| 0));
        way.close(client).unwrap();
        way.close(server).unwrap();
        answers
    });
}

#[test]
fn duplicates_share_and_the_last_one_closes() {
    same(|way| {
        let (client, server) = way.pair();
        let other = way.dup(client);
        way.close(client).unwrap();
        let mut room = [0; 8];
        let mut answers = vec![way.recv(server, &mut room, flags::DONTWAIT)];
        answers.push(way.send(other, b"dup", 0));
        answers.push(way.recv(server, &mut room, 0));
        // O_NONBLOCK is of the open socket.
        let third = way.dup(other);
        way.fcntl(third, 4, SOCK_NONBLOCK as usize).unwrap();
        answers.push(way.recv(other, &mut room, 0));
        way.close(third).unwrap();
        way.close(other).unwrap();
        answers.push(way.recv(server, &mut room, 0));
        way.close(server).unwrap();
        answers
    });
}

#[test]
fn urgent_data() {
    same(|way| {
        let (client, server) = way.pair();
        let mut room = [0; 16];
        let mut answers = vec![way.send(client, b"abC", flags::OOB)];
        answers.push(way.send(client, b"de", 0));
        std::thread::sleep(std::time::Duration::from_millis(20));
        answers.push(way.recv(server, &mut room, 0));
        answers.push(way.recv(server, &mut room, flags::OOB));
        assert_eq!(room[0], b'C');
        answers.push(way.recv(server, &mut room, flags::OOB));
        answers.push(way.recv(server, &mut room, 0));
        way.close(client).unwrap();
        way.close(server).unwrap();
        answers
    });
}

#[test]
fn an_unaccelerated_client_reaches_the_same_listener() {
    common::daemon();
    let (listener, at) = Way::Ours.listener(0);
    let kernel = Way::Kernel.socket(0);
    Way::Kernel.connect(kernel, at).unwrap();
    let ours = Way::Ours.socket(0);
    Way::Ours.connect(ours, at).unwrap();
    let mut room = [0; 8];
    for _ in 0..2 {
        let (server, peer) = Way::Ours.accept(listener, 0).unwrap();
        let client = if common::std(peer) == Way::Kernel.name(kernel) { kernel } else { ours };
        Way::Ours.send(server, b"hello", 0).unwrap();
        assert_eq!(Way::Ours.recv(client, &mut room, 0), Ok(5));
        Way::Ours.close(server).unwrap();
    }
    for fd in [listener, ours, kernel] {
        Way::Ours.close(fd).unwrap();
    }
}

#[test]
fn an_acceptor_that_sleeps_is_woken_by_either_kind() {
    common::daemon();
    let (listener, at) = Way::Ours.listener(0);
    std::thread::scope(|scope| {
        let acceptor = scope.spawn(move || {
            (0..4).for_each(|_| {
                let (server, _) = Way::Ours.accept(listener, 0).unwrap();
                Way::Ours.send(server, b"!", 0).unwrap();
                Way::Ours.close(server).unwrap();
            });
        });
        for way in [Way::Ours, Way::Kernel, Way::Ours, Way::Kernel] {
            std::thread::sleep(std::time::Duration::from_millis(30));
            let client = way.socket(0);
            way.connect(client, at).unwrap();
            assert_eq!(way.recv(client, &mut [0; 8], 0), Ok(1));
            way.close(client).unwrap();
        }
        acceptor.join().unwrap();
    });
    Way::Ours.close(listener).unwrap();
}

/// The answers to other threads' requests come on a connection that everybody watches for its end.
#[test]
fn who_polls_sleeps_on_while_others_ask_the_daemon() {
    use std::time::Duration;

    common::daemon();
    let way = Way::Ours;
    let pairs = [way.pair(), way.pair()];
    let (told, tells) = std::sync::mpsc::channel();
    let polls = std::thread::spawn(move || {
        told.send(rustix::thread::gettid().as_raw_nonzero()).unwrap();
        let mut fds = pairs.map(|(_, fd)| fs_socket::poll::PollFd { fd, events: 1, revents: 0 });
        fs_socket::poll::poll(&mut fds, None, None)
    });
    let thread = tells.recv().unwrap();
    let slept = || -> u32 {
        let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
        count.trim().parse().unwrap()
    };
    std::thread::sleep(Duration::from_millis(200));
    let before = slept();
    for _ in 0..50 {
        let (listener, _) = way.listener(0);
        std::thread::sleep(Duration::from_millis(2));
        way.close(listener).unwrap();
    }
    let woken = slept() - before;
    way.send(pairs[0].0, b"x", 0).unwrap();
    assert_eq!(polls.join().unwrap(), Some(Ok(1)));
    assert!(woken < 20, "woken {woken} times by what was not for it");
    for (client, server) in pairs {
        way.close(client).unwrap();
        way.close(server).unwrap();
    }
}
