//! A listener whose numbers are closed, replaced or shut down by another thread while the daemon is told of it.

mod common;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use common::{Way, mini::Mini};
use fs_shm::control::Object;
use fs_socket::sys::call;
use rustix::io::Errno;

/// The daemon and its books are the process's.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bound() -> i32 {
    let fd = Way::Ours.socket(0);
    Way::Ours.bind(fd, "127.0.0.1:0".parse().unwrap()).unwrap();
    fd
}

/// What the daemon knows of `fd` after `meanwhile` was done amid listen(2) on it.
fn amid(daemon: &Mini, fd: i32, meanwhile: impl FnOnce()) -> (usize, Vec<Object>) {
    daemon.amid_listen(move || assert!(fs_socket::listen(fd, 8).is_some()), meanwhile);
    daemon.knows(fd)
}

#[test]
fn a_number_that_was_closed_has_no_entry_and_the_listener_is_gone() {
    let _alone = alone();
    let daemon = common::daemon();
    let fd = bound();
    assert_eq!(amid(daemon, fd, || Way::Ours.close(fd).unwrap()), (0, vec![]));
}

/// A process attaches, on one thread, and announces what another one closes.
#[test]
fn who_has_closed_it_is_refused_at_once() {
    let _alone = alone();
    let daemon = common::daemon();
    let (fd, at) = Way::Ours.listener(0);
    let connect = move || {
        let client = Way::Ours.socket(0);
        let connected = Way::Ours.connect(client, at);
        Way::Ours.close(client).unwrap();
        connected
    };
    // The way is known from here on.
    connect().unwrap();
    let mut closes = None;
    daemon.amid_listen(
        move || {
            fs_socket::listen(fd, 9).unwrap().unwrap();
        },
        || {
            closes = Some(std::thread::spawn(move || {
                Way::Ours.close(fd).unwrap();
                connect()
            }));
            // Amid close(2), which waits for the answer.
            std::thread::sleep(Duration::from_millis(20));
        },
    );
    assert_eq!(closes.unwrap().join().unwrap(), Err(Errno::CONNREFUSED));
}

#[test]
fn a_number_that_is_another_sockets_now_stays_that_ones() {
    let _alone = alone();
    let daemon = common::daemon();
    let (client, server) = Way::Ours.pair();
    let fd = bound();
    let known = amid(daemon, fd, || assert_eq!(fs_socket::dup2(server, fd), Some(Ok(fd))));
    assert!(matches!(known, (0, ref entries) if matches!(entries[..], [Object::Channel { .. }])), "{known:?}");
    for fd in [fd, client, server] {
        Way::Ours.close(fd).unwrap();
    }
}

#[test]
fn another_number_of_it_is_the_listeners() {
    let _alone = alone();
    let daemon = common::daemon();
    let fd = bound();
    let other = Way::Ours.dup(fd);
    let mut third = -1;
    let known = amid(daemon, fd, || {
        third = Way::Ours.dup(fd);
        Way::Ours.close(fd).unwrap();
    });
    assert_eq!(known, (1, vec![]));
    for number in [other, third] {
        let (_, entries) = daemon.knows(number);
        assert!(matches!(entries[..], [Object::Listener(_)]), "{entries:?}");
        Way::Ours.close(number).unwrap();
        assert_eq!(daemon.knows(number).1, []);
    }
    assert_eq!(daemon.knows(other).0, 0);
}

#[test]
fn one_that_was_shut_down_is_not_announced() {
    let _alone = alone();
    let daemon = common::daemon();
    let fd = bound();
    let other = Way::Ours.dup(fd);
    let known = amid(daemon, fd, || {
        assert!(fs_socket::shutdown(fd, 2).is_none());
        call::shutdown(fd, 2).unwrap();
    });
    assert_eq!(known, (0, vec![]));
    assert_eq!(daemon.knows(other), (0, vec![]));
    Way::Ours.close(fd).unwrap();
    Way::Ours.close(other).unwrap();
}

#[test]
fn one_that_is_announced_to_the_next_daemon_is_closed_meanwhile() {
    let _alone = alone();
    let daemon = common::daemon();
    let (fd, at) = Way::Ours.listener(0);
    assert!(matches!(daemon.knows(fd), (1, entries) if matches!(entries[..], [Object::Listener(_)])));
    daemon.kill();
    // Until the process has seen it, and may try to find another.
    while fs_socket::process::current().is_some_and(fs_socket::process::Attachment::check) {
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(1100));
    daemon.start_again();
    let attach = || assert!(fs_socket::process::attached().is_some());
    daemon.amid_listen(attach, || Way::Ours.close(fd).unwrap());
    assert_eq!(daemon.knows(fd), (0, vec![]));
    // Another one takes the place of the first.
    let (fd, _) = Way::Ours.listener(0);
    let client = Way::Ours.socket(0);
    assert!(Way::Ours.connect(client, at).is_err());
    assert!(matches!(daemon.knows(fd), (1, entries) if matches!(entries[..], [Object::Listener(_)])));
    Way::Ours.close(client).unwrap();
    Way::Ours.close(fd).unwrap();
}

/// A process that listens over and over, a connection each time, would run out of mappings (65,530) and with them of memory.
#[test]
fn listeners_that_are_gone_leave_no_mappings() {
    fn mappings() -> usize {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.contains("/memfd:fastsock-listener")).count()
    }
    let _alone = alone();
    common::daemon();
    let round = || {
        let (client, server) = Way::Ours.pair();
        Way::Ours.close(client).unwrap();
        Way::Ours.close(server).unwrap();
    };
    round();
    let before = mappings();
    (0..50).for_each(|_| round());
    assert!(mappings() <= before + 2, "{before} mappings of listeners before, {} after 50 more", mappings());
}
