//! The library's own descriptors are not the application's: a call that names one as its set is told so.

mod common;

use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use common::{Way, daemon};
use fs_socket::Errno;
use fs_socket::descriptor::table;
use fs_socket::poll::{self, EpollEvent};

const ADD: i32 = 1;
const DEL: i32 = 2;
const MOD: i32 = 3;
const IN: u32 = 0x1;

#[test]
fn a_number_of_the_librarys_own_is_no_set() {
    daemon();
    let set = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
    table::epoll_made(set.as_raw_fd());
    let (client, server) = Way::Ours.pair();
    let event = EpollEvent { events: IN, data: 7 };
    poll::epoll_ctl(set.as_raw_fd(), ADD, client, Some(event)).expect("ours").unwrap();
    // Open, and not the application's.
    let is_own = |&fd: &RawFd| matches!(fs_socket::getsockname(fd), Some(Err(Errno::BADF)));
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let open = open.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let own: Vec<RawFd> = open.collect::<Vec<RawFd>>().into_iter().filter(is_own).collect();
    let is_set = |fd: &&RawFd| {
        std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok_and(|to| to.to_str() == Some("anon_inode:[eventpoll]"))
    };
    assert!(own.iter().filter(is_set).count() >= 2, "the application's set again, and the one that is slept on");
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    for &fd in &own {
        for operation in [ADD, MOD, DEL] {
            let answer = poll::epoll_ctl(fd, operation, reader.as_raw_fd(), Some(event));
            assert_eq!(answer, Some(Err(Errno::BADF)), "{fd}, {operation}");
        }
        // What is passed is read first (epoll_ctl() of the kernel).
        assert_eq!(poll::epoll_ctl(fd, ADD, reader.as_raw_fd(), None), Some(Err(Errno::FAULT)));
        let answer = poll::epoll_wait(fd, &mut [EpollEvent::default()], Some(Duration::ZERO), None);
        assert_eq!(answer, Some(Err(Errno::BADF)), "{fd}");
    }
    for fd in [client, server] {
        Way::Ours.close(fd).unwrap();
    }
}
