//! What begins between two daemons, a thread's wait and a forked child, gets the connections that come by the next one.

mod common;

use std::{os::fd::RawFd, time::Duration};

use common::{
    Way,
    servers::{self, By, serve},
};
use rustix::process::Pid;

/// A child that does so, and ends.
fn forked(listener: RawFd, by: By) -> Pid {
    let forking = fs_socket::before_fork().unwrap();
    match common::process_unsafe::fork() {
        0 => {
            fs_socket::after_fork_child(forking);
            serve(listener, by);
            common::process_unsafe::exit(0)
        }
        pid => {
            fs_socket::after_fork_parent(forking, pid > 0);
            Pid::from_raw(pid).unwrap()
        }
    }
}

#[test]
fn connections_by_the_next_daemon_are_taken_by_who_began_to_wait_before_it() {
    let daemon = common::daemon();
    let listeners = [(); 3].map(|()| Way::Ours.listener(0));
    let [(polled, _), (accepted, _), (watched, _)] = listeners;
    daemon.kill();
    let waiter = std::thread::spawn(move || serve(polled, By::Poll));
    let children = [forked(accepted, By::Accept), forked(watched, By::Epoll)];
    std::thread::sleep(Duration::from_millis(1200));
    daemon.start_again();
    // This process is the first that finds it.
    Way::Ours.listener(0);
    for (_, at) in listeners {
        let served = servers::is_served(at);
        if !served {
            for child in children {
                let _gone = rustix::process::kill_process(child, rustix::process::Signal::KILL);
            }
        }
        assert!(served, "nobody takes the connection to {at} of {listeners:?}");
    }
    waiter.join().unwrap();
    for child in children {
        let (_, status) =
            rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty()).unwrap().unwrap();
        assert_eq!(status.exit_status(), Some(0));
    }
}
