//! Placeholders that are used again, and which are not. (`tests/semantics/kept.c` has what a program could see of it.)

mod common;

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::process::Command;
use std::time::{Duration, Instant};

use common::Way;
use fs_socket::sys::call;
use libc::{
    AF_INET, F_DUPFD_CLOEXEC, F_SETFD, F_SETFL, FD_CLOEXEC, O_CLOEXEC, O_NONBLOCK, SO_DOMAIN, SO_KEEPALIVE, SO_LINGER,
    SOCK_CLOEXEC, SOL_SOCKET,
};
use rustix::process::{Resource, Rlimit};

const OURS: Way = Way::Ours;

/// Seats and numbers are the process's, and so is how often one is given a number: each test has a process of its own. `false`: it ran there.
fn is_alone(test: &str) -> bool {
    const VARIABLE: &str = "KEPT_ALONE";
    if std::env::var_os(VARIABLE).is_some() {
        common::daemon();
        return true;
    }
    let mut program = Command::new(std::env::current_exe().unwrap());
    let answer = program.args(["--exact", test, "--nocapture"]).env(VARIABLE, "1").output().unwrap();
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    false
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

/// Opens connections one after the other until one has a socket that was behind a number of the one before: all but the first of each
/// tick of the clock, on a machine that is not too busy. How it is left: with such a socket in a seat.
fn warm(at: (RawFd, SocketAddr), act: impl Fn(RawFd)) {
    let end = Instant::now() + Duration::from_secs(20);
    let mut before = once(at, SOCK_CLOEXEC, &act);
    loop {
        let now = once(at, SOCK_CLOEXEC, &act);
        if now.iter().any(|socket| before.contains(socket)) {
            return;
        }
        assert!(Instant::now() < end, "no socket is used again");
        before = now;
    }
}

/// Numbers behind which sockets are left: those of TCP that are not the program's.
fn seats() -> Vec<RawFd> {
    let is_ours = |fd: &RawFd| fs_socket::dup(*fd) == Some(Err(fs_socket::Errno::BADF));
    (3..4096).filter(|fd| call::int_option(*fd, SOL_SOCKET, SO_DOMAIN) == Ok(AF_INET)).filter(is_ours).collect()
}

/// What is done so to a client has its socket closed: the next ones have others.
fn is_never_used_again(flags: i32, act: impl Fn(RawFd)) {
    let listener = OURS.listener(0);
    for _ in 0..4 {
        warm(listener, |_| {});
        let [client, _] = once(listener, flags, &act);
        for _ in 0..2 {
            assert!(!once(listener, SOCK_CLOEXEC, |_| {}).contains(&client));
        }
    }
}

#[test]
fn a_clean_socket_is_used_again() {
    if is_alone("a_clean_socket_is_used_again") {
        warm(OURS.listener(0), |_| {});
    }
}

#[test]
fn so_is_one_that_is_closed_by_a_reset() {
    if is_alone("so_is_one_that_is_closed_by_a_reset") {
        let reset = |fd| OURS.setsockopt(fd, SOL_SOCKET, SO_LINGER, &1_u64.to_le_bytes()).unwrap();
        warm(OURS.listener(0), reset);
    }
}

#[test]
fn one_with_an_option_is_not() {
    if is_alone("one_with_an_option_is_not") {
        let keepalive = |fd| OURS.setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &1_i32.to_ne_bytes()).unwrap();
        is_never_used_again(SOCK_CLOEXEC, keepalive);
    }
}

#[test]
fn one_with_another_flag_is_not() {
    if is_alone("one_with_another_flag_is_not") {
        is_never_used_again(SOCK_CLOEXEC, |fd| assert_eq!(OURS.fcntl(fd, F_SETFL, O_NONBLOCK as usize), Ok(0)));
    }
}

#[test]
fn one_that_was_looked_at_is_not() {
    if is_alone("one_that_was_looked_at_is_not") {
        is_never_used_again(SOCK_CLOEXEC, fs_socket::spoil_number);
    }
}

#[test]
fn one_with_two_numbers_is_not() {
    if is_alone("one_with_two_numbers_is_not") {
        let duplicated = |fd| OURS.close(OURS.fcntl(fd, F_DUPFD_CLOEXEC, 0).unwrap()).unwrap();
        is_never_used_again(SOCK_CLOEXEC, duplicated);
    }
}

#[test]
fn one_that_a_child_of_system_would_have_is_not() {
    if is_alone("one_that_a_child_of_system_would_have_is_not") {
        is_never_used_again(0, |_| {});
    }
}

#[test]
fn one_of_before_a_change_of_user_is_not() {
    if is_alone("one_of_before_a_change_of_user_is_not") {
        is_never_used_again(SOCK_CLOEXEC, |_| fs_socket::make_sockets_anew());
    }
}

#[test]
fn one_that_a_child_is_spawned_with_is_not() {
    if is_alone("one_that_a_child_is_spawned_with_is_not") {
        let listener = OURS.listener(0);
        // With something that the child inherits all are let go.
        OURS.fcntl(listener.0, F_SETFD, FD_CLOEXEC as usize).unwrap();
        for round in 0..4 {
            warm(listener, |_| {});
            let early = OURS.socket(SOCK_CLOEXEC);
            let socket = behind(early);
            // By the same number later on, which is known of file actions of before.
            if round == 0 {
                fs_socket::process::exec::record_duplicated(early);
            }
            let surviving = fs_socket::before_spawn(true).unwrap();
            fs_socket::process::exec::after_spawn(surviving, false);
            OURS.connect(early, listener.1).unwrap();
            let (server, _) = OURS.accept(listener.0, SOCK_CLOEXEC).unwrap();
            OURS.close(early).unwrap();
            OURS.close(server).unwrap();
            assert!(!once(listener, SOCK_CLOEXEC, |_| {}).contains(&socket));
        }
    }
}

fn set_limit(soft: u64) {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(soft), ..limit }).unwrap();
}

#[test]
fn seats_are_below_the_usual_limit_and_not_below_a_lower_one() {
    if is_alone("seats_are_below_the_usual_limit_and_not_below_a_lower_one") {
        let listener = OURS.listener(0);
        set_limit(512);
        (0..40).for_each(|_| drop(once(listener, SOCK_CLOEXEC, |_| {})));
        assert_eq!(seats(), []);
        set_limit(1024);
        // Each by another number, or with another socket behind it.
        for _ in 0..40 {
            warm(listener, |_| {});
            std::thread::sleep(Duration::from_millis(10));
        }
        let seats = seats();
        assert!(!seats.is_empty() && seats.iter().all(|number| *number < 1024), "{seats:?}");
    }
}

/// How often this thread has slept.
fn slept() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap().trim().parse().unwrap()
}

#[test]
fn close_does_not_wait_for_who_spawns() {
    if is_alone("close_does_not_wait_for_who_spawns") {
        let listener = OURS.listener(0);
        OURS.fcntl(listener.0, F_SETFD, FD_CLOEXEC as usize).unwrap();
        set_limit(1024);
        warm(listener, |_| {});
        // No seat has a number.
        fs_socket::make_sockets_anew();
        let surviving = fs_socket::before_spawn(false).unwrap();
        let napped = std::thread::spawn(move || {
            let before = slept();
            once(listener, SOCK_CLOEXEC, |_| {});
            slept() - before
        });
        // Who waits for it in vain does so for 20,000 naps. (How long the calls take is the machine's affair as well.)
        let napped = napped.join().unwrap();
        assert!(napped < 5000, "{napped} naps");
        fs_socket::process::exec::after_spawn(surviving, false);
    }
}

#[test]
fn a_number_that_was_closed_past_the_library_is_left_alone() {
    if is_alone("a_number_that_was_closed_past_the_library_is_left_alone") {
        let listener = OURS.listener(0);
        warm(listener, |_| {});
        let numbers = seats();
        assert!(!numbers.is_empty());
        let file = std::fs::File::open("/dev/zero").unwrap();
        for number in &numbers {
            call::dup3(file.as_raw_fd(), *number, O_CLOEXEC).unwrap();
        }
        // No tick of the clock is as long.
        std::thread::sleep(Duration::from_millis(30));
        for _ in 0..200 {
            once(listener, SOCK_CLOEXEC, |_| {});
            std::thread::sleep(Duration::from_micros(100));
        }
        fs_socket::make_sockets_anew();
        for number in numbers {
            assert_eq!(behind(number), "/dev/zero");
        }
    }
}
