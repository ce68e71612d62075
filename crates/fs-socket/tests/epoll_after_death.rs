//! A set had a connection of ours, and has descriptors of the kernel's only when another daemon is there: it is the kernel's again.

mod common;

use std::os::fd::AsRawFd;
use std::sync::mpsc;
use std::time::Duration;

use common::Way;
use fs_socket::Errno;
use fs_socket::descriptor::table;
use fs_socket::poll::{self, EpollEvent, PollFd};
use fs_socket::socket::Watch;

const ADD: i32 = 1;
const IN: u32 = 0x1;

#[test]
fn a_set_without_sockets_of_ours_ends_its_waits_after_a_daemons_death() {
    let daemon = common::daemon();
    let way = Way::Ours;
    let (listener, at) = way.listener(0);
    let connect = || {
        let client = way.socket(0);
        way.connect(client, at).unwrap();
        (client, way.accept(listener, 0).unwrap().0)
    };
    let set = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
    table::epoll_made(set.as_raw_fd());
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    let event = EpollEvent { events: IN, data: 7 };
    if poll::epoll_ctl(set.as_raw_fd(), ADD, reader.as_raw_fd(), Some(event)).is_none() {
        let data = rustix::event::epoll::EventData::new_u64(7);
        rustix::event::epoll::add(&set, &reader, data, rustix::event::epoll::EventFlags::IN).unwrap();
    }
    let (client, server) = connect();
    poll::epoll_ctl(set.as_raw_fd(), ADD, client, Some(event)).expect("ours").unwrap();
    let mut events = [EpollEvent::default(); 4];
    let now = Some(Duration::ZERO);
    assert_eq!(poll::epoll_wait(set.as_raw_fd(), &mut events, now, None), Some(Ok(0)));
    way.close(client).unwrap();
    way.close(server).unwrap();

    let is_ours = |fd| table::socket(fd).is_some_and(|socket| socket.watch() == Watch::Channel);
    let (client, server) = connect();
    daemon.kill();
    assert_eq!(way.recv(server, &mut [0; 8], 0), Err(Errno::CONNRESET));
    way.close(client).unwrap();
    way.close(server).unwrap();
    daemon.start_again();
    // Found at one of the next calls.
    loop {
        let (client, server) = connect();
        let ours = is_ours(client);
        way.close(client).unwrap();
        way.close(server).unwrap();
        if ours {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let (over, ended) = mpsc::channel();
    let number = set.as_raw_fd();
    std::thread::spawn(move || {
        let time = Some(Duration::from_millis(20));
        for _ in 0..3 {
            let answer = poll::epoll_wait(number, &mut [EpollEvent::default(); 4], time, None);
            over.send(answer).unwrap();
        }
        let answer = poll::poll(&mut [PollFd { fd: number, events: 1, revents: 0 }], time, None);
        over.send(answer).unwrap();
    });
    for call in 0..4 {
        let answer = ended.recv_timeout(Duration::from_secs(20)).expect("a wait of 20 ms ends");
        assert!(answer.is_none() || answer == Some(Ok(0)), "call {call}: {answer:?}");
    }
}
