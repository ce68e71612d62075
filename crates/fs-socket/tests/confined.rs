//! A process that has confined itself: memory for as many sockets as it may have descriptors was asked for before.

mod common;

use common::{SOCK_NONBLOCK, Way};
use fs_socket::poll::EpollEvent;
use libc::F_SETFL;
use rustix::process::{Resource, getrlimit, setrlimit};

/// More than the first piece of any table holds.
const MANY: u64 = 3000;

#[test]
fn a_process_that_has_confined_itself_has_sockets_up_to_its_limit() {
    let limit = getrlimit(Resource::Nofile);
    let current = limit.maximum.map_or(MANY + 100, |most| most.min(MANY + 100));
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: Some(current), ..limit }).unwrap();
    common::daemon();
    let set = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
    fs_socket::descriptor::table::epoll_made(std::os::fd::AsRawFd::as_raw_fd(&set));
    fs_socket::confine();
    let sockets: Vec<_> = (0..MANY.min(current - 100)).map(|_| Way::Ours.socket(SOCK_NONBLOCK)).collect();
    let (first, last) = (sockets[0], sockets[sockets.len() - 1]);
    // Answered for those that are ours only.
    assert!(
        sockets.iter().all(|fd| fs_socket::fcntl(*fd, F_SETFL, SOCK_NONBLOCK as usize).is_some()),
        "some are the kernel's"
    );
    // The tables of sets and listeners, of which none was used before.
    let event = EpollEvent { events: 1, data: 1 };
    let number = std::os::fd::AsRawFd::as_raw_fd(&set);
    assert_eq!(fs_socket::poll::epoll_ctl(number, 1, last, Some(event)), Some(Ok(())));
    Way::Ours.bind(first, "127.0.0.1:0".parse().unwrap()).unwrap();
    assert_eq!(fs_socket::listen(first, 8), Some(Ok(())));
    for fd in sockets {
        Way::Ours.close(fd).unwrap();
    }
}
