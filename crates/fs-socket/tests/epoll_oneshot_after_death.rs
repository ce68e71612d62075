//! A one-shot listener of a set that two processes have: one was told of a connection through memory, and took it out of the kernel's set
//! with that. For the other it is a descriptor of the kernel's when the daemon has ended, and in the set as on the kernel.

mod common;

use std::os::fd::AsRawFd;
use std::time::Duration;

use common::Way;
use fs_socket::Errno;
use fs_socket::descriptor::table;
use fs_socket::poll::{self, EpollEvent};

const ADD: i32 = 1;
const DEL: i32 = 2;
const MOD: i32 = 3;
const IN: u32 = 0x1;
const ONESHOT: u32 = 1 << 30;

#[test]
fn a_told_one_shot_is_changed_and_taken_out_by_another_process_after_the_daemons_death() {
    let daemon = common::daemon();
    let way = Way::Ours;
    let set = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
    table::epoll_made(set.as_raw_fd());
    let number = set.as_raw_fd();
    let event = EpollEvent { events: IN | ONESHOT, data: 7 };
    let listeners = [way.listener(0), way.listener(0)];
    for (listener, _) in listeners {
        poll::epoll_ctl(number, ADD, listener, Some(event)).expect("ours").unwrap();
    }
    let (_client, server) = way.pair();
    for (_, at) in listeners {
        way.connect(way.socket(0), at).unwrap();
    }
    let forking = fs_socket::before_fork().unwrap();
    let child = match common::process_unsafe::fork() {
        0 => {
            fs_socket::after_fork_child(forking);
            let mut told = 0;
            while told < listeners.len() {
                let wait =
                    poll::epoll_wait(number, &mut [EpollEvent::default(); 4], Some(Duration::from_secs(20)), None);
                match wait {
                    Some(Ok(n @ 1..)) => told += n,
                    _ => common::process_unsafe::exit(1),
                }
            }
            common::process_unsafe::exit(0)
        }
        pid => {
            fs_socket::after_fork_parent(forking, pid > 0);
            rustix::process::Pid::from_raw(pid).unwrap()
        }
    };
    let (_, status) = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty()).unwrap().unwrap();
    assert_eq!(status.exit_status(), Some(0), "the child is told of both");
    // This process has not looked into the set, and hears of the death by a connection.
    daemon.kill();
    assert_eq!(way.recv(server, &mut [0; 8], 0), Err(Errno::CONNRESET));
    let [(changed, _), (taken_out, _)] = listeners;
    assert_eq!(poll::epoll_ctl(number, MOD, changed, Some(event)), Some(Ok(())));
    assert_eq!(poll::epoll_ctl(number, DEL, taken_out, None), Some(Ok(())));
    assert_eq!(poll::epoll_ctl(number, DEL, taken_out, None), Some(Err(Errno::NOENT)));
}
