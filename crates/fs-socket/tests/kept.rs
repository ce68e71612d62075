//! Placeholders that are used again, and which are not. (`tests/semantics/kept.c` has what a program could see of it.)

mod common;

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::Way;
use libc::{F_DUPFD_CLOEXEC, F_SETFL, O_NONBLOCK, SO_KEEPALIVE, SO_LINGER, SOCK_CLOEXEC, SOL_SOCKET};

const OURS: Way = Way::Ours;

/// Seats and the numbers are the process's.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    common::daemon();
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Which socket of the kernel's is behind a number: asked past the library.
fn behind(fd: RawFd) -> String {
    std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap().display().to_string()
}

/// Opens a connection, does something to its client, closes it. Which sockets were behind its two numbers.
fn once((listener, at): (RawFd, SocketAddr), flags: i32, act: impl Fn(RawFd)) -> [String; 2] {
    let client = OURS.socket(flags);
    OURS.connect(client, at).unwrap();
    let (server, _) = OURS.accept(listener, flags).unwrap();
    let sockets = [behind(client), behind(server)];
    act(client);
    OURS.close(client).unwrap();
    OURS.close(server).unwrap();
    sockets
}

/// Of so many connections, how many had a client's socket that was behind a number of the one before.
fn used_again(flags: i32, act: impl Fn(RawFd)) -> usize {
    let listener = OURS.listener(0);
    let all: Vec<_> = (0..200).map(|_| once(listener, flags, &act)).collect();
    OURS.close(listener.0).unwrap();
    let clients = all.iter().zip(all.iter().skip(1));
    clients.filter(|(before, after)| after.contains(&before[0])).count()
}

#[test]
fn a_clean_socket_is_used_again() {
    let _alone = alone();
    // All but the first of each tick of the clock.
    assert!(used_again(SOCK_CLOEXEC, |_| {}) > 0);
}

#[test]
fn so_is_one_that_is_closed_by_a_reset() {
    let _alone = alone();
    let reset = |fd| OURS.setsockopt(fd, SOL_SOCKET, SO_LINGER, &1_u64.to_le_bytes()).unwrap();
    assert!(used_again(SOCK_CLOEXEC, reset) > 0);
}

#[test]
fn what_something_was_done_to_is_not() {
    let _alone = alone();
    let keepalive = |fd| OURS.setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &1_i32.to_ne_bytes()).unwrap();
    assert_eq!(used_again(SOCK_CLOEXEC, keepalive), 0);
    let flag = |fd| assert_eq!(OURS.fcntl(fd, F_SETFL, O_NONBLOCK as usize), Ok(0));
    assert_eq!(used_again(SOCK_CLOEXEC, flag), 0);
    assert_eq!(used_again(SOCK_CLOEXEC, fs_socket::spoil_number), 0);
    let duplicated = |fd| OURS.close(OURS.fcntl(fd, F_DUPFD_CLOEXEC, 0).unwrap()).unwrap();
    assert_eq!(used_again(SOCK_CLOEXEC, duplicated), 0);
    // A child of system(3) would have it.
    assert_eq!(used_again(0, |_| {}), 0);
}

#[test]
fn a_change_of_user_lets_all_go() {
    let _alone = alone();
    assert_eq!(used_again(SOCK_CLOEXEC, |_| fs_socket::make_sockets_anew()), 0);
}
