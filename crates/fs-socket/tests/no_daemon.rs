//! There is no daemon, and has not been: everything is the kernel's, in epoll too.

mod common;

use std::net::TcpListener;
use std::os::fd::AsRawFd;

use common::{SOCK_NONBLOCK, Way};
use fs_socket::Errno;
use fs_socket::poll::{self, EpollEvent};

const ADD: i32 = 1;
const OUT: u32 = 0x4;

#[test]
fn a_socket_that_may_still_become_ours_can_be_waited_for() {
    let asked = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
    let soon = rustix::event::Timespec { tv_sec: 0, tv_nsec: 1000 };
    let mut none = Vec::with_capacity(1);
    let asked = rustix::event::epoll::wait(&asked, rustix::buffer::spare_capacity(&mut none), Some(&soon));
    if asked == Err(Errno::NOSYS) {
        println!("skipped: this kernel has no epoll_pwait2 (QEMU's emulation)");
        return;
    }
    fs_socket::sys::set_variable("FASTSOCK_CONTROL", "/nonexistent/fastsock");
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let set = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
    fs_socket::descriptor::table::epoll_made(set.as_raw_fd());
    let client = Way::Ours.socket(SOCK_NONBLOCK);
    assert_eq!(Way::Ours.connect(client, server.local_addr().unwrap()), Err(Errno::INPROGRESS));
    let event = EpollEvent { events: OUT, data: 7 };
    poll::epoll_ctl(set.as_raw_fd(), ADD, client, Some(event)).expect("known").unwrap();
    let mut events = [EpollEvent::default(); 4];
    assert_eq!(poll::epoll_wait(set.as_raw_fd(), &mut events, None, None), None, "the kernel's");
    let mut events = Vec::with_capacity(4);
    let patience = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
    rustix::event::epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), Some(&patience)).unwrap();
    assert_eq!(events.iter().map(|event| event.data.u64()).collect::<Vec<_>>(), [7]);
    // What is no epoll set is told so.
    let other = Way::Ours.socket(0);
    assert_eq!(poll::epoll_ctl(other, ADD, client, Some(event)), Some(Err(Errno::INVAL)));
    Way::Ours.close(other).unwrap();
    Way::Ours.close(client).unwrap();
}
