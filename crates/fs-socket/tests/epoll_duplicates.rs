//! An epoll set that was duplicated before its first socket of ours, as mio's `Registry::try_clone` does.

mod common;

use std::os::fd::AsRawFd;
use std::time::Duration;

use common::{SOCK_NONBLOCK, Way, daemon};
use fs_socket::descriptor::table;
use fs_socket::poll::{self, EpollEvent};

const ADD: i32 = 1;
const IN: u32 = 0x1;

#[test]
fn a_socket_added_by_a_duplicate_is_reported_by_the_original() {
    daemon();
    let set = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
    let set = set.as_raw_fd();
    table::epoll_made(set);
    let duplicate = fs_socket::dup(set).expect("a set is known from its making on").unwrap();
    assert_eq!(
        (table::epoll(set), table::epoll(duplicate)),
        (None, None),
        "the kernel's as long as nothing of ours is in it"
    );

    let listener = Way::Ours.socket(SOCK_NONBLOCK);
    Way::Ours.bind(listener, "127.0.0.1:0".parse().unwrap()).unwrap();
    Way::Ours.listen(listener).unwrap();
    let event = EpollEvent { events: IN, data: 77 };
    poll::epoll_ctl(duplicate, ADD, listener, Some(event)).expect("a listener of ours").unwrap();
    assert!(table::epoll(set).is_some());
    assert_eq!(table::epoll(set), table::epoll(duplicate));

    let client = Way::Ours.socket(0);
    Way::Ours.connect(client, Way::Ours.name(listener)).unwrap();
    let mut events = [EpollEvent::default(); 4];
    let n = poll::epoll_wait(set, &mut events, Some(Duration::from_secs(20)), None).expect("ours").unwrap();
    let data = events[0].data;
    assert_eq!((n, data), (1, 77));
    fs_socket::close(duplicate).unwrap().unwrap();
    assert!(table::epoll(set).is_some(), "a set lives as long as one of its numbers");
}
