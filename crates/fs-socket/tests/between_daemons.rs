//! What begins between two daemons, a thread's wait and a forked child, gets the connections that come by the next one.

mod common;

use std::{
    os::fd::{AsRawFd, RawFd},
    time::Duration,
};

use common::Way;
use fs_socket::{
    descriptor::table,
    poll::{self, EpollEvent, PollFd},
    socket::Watch,
};
use rustix::process::Pid;

const WAY: Way = Way::Ours;
/// An accept that others have announced takes milliseconds, one that finds the daemon itself a second.
const PATIENCE: Duration = Duration::from_secs(6);

fn is_ours(fd: RawFd) -> bool {
    table::socket(fd).is_some_and(|socket| socket.watch() == Watch::Channel)
}

fn wait(fd: RawFd, timeout: Option<Duration>) -> bool {
    let mut entry = [PollFd { fd, events: 1, revents: 0 }];
    poll::poll(&mut entry, timeout, None).unwrap_or_else(|| {
        let fd = common::process_unsafe::borrow(fd);
        let timeout = timeout.map(|timeout| timeout.try_into().unwrap());
        rustix::event::poll(&mut [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)], timeout.as_ref())
    }) == Ok(1)
}

/// How a server waits.
#[derive(Clone, Copy)]
enum By {
    Accept,
    Poll,
    /// With a set that it makes itself.
    Epoll,
}

fn wait_in(set: RawFd) -> bool {
    let mut events = [EpollEvent::default(); 1];
    let answer = poll::epoll_wait(set, &mut events, None, None);
    answer.unwrap_or_else(|| {
        let _readable = wait(set, None);
        Ok(poll::strip(set, &mut [EpollEvent { events: 1, data: 7 }]))
    }) == Ok(1)
}

/// Takes connections until one is no kernel's.
fn serve(listener: RawFd, by: By) {
    let set = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
    if matches!(by, By::Epoll) {
        table::epoll_made(set.as_raw_fd());
        let event = EpollEvent { events: 1, data: 7 };
        poll::epoll_ctl(set.as_raw_fd(), 1, listener, Some(event)).unwrap().unwrap();
    }
    loop {
        let is_there = match by {
            By::Accept => true,
            By::Poll => wait(listener, None),
            By::Epoll => wait_in(set.as_raw_fd()),
        };
        if !is_there {
            continue;
        }
        let (fd, _) = WAY.accept(listener, 0).unwrap();
        let ours = is_ours(fd);
        WAY.send(fd, b"served", 0).unwrap();
        WAY.close(fd).unwrap();
        if ours {
            return;
        }
    }
}

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
    let listeners = [(); 3].map(|()| WAY.listener(0));
    let [(polled, _), (accepted, _), (watched, _)] = listeners;
    daemon.kill();
    let waiter = std::thread::spawn(move || serve(polled, By::Poll));
    let children = [forked(accepted, By::Accept), forked(watched, By::Epoll)];
    std::thread::sleep(Duration::from_millis(1200));
    daemon.start_again();
    // This process is the first that finds it.
    WAY.listener(0);
    for (_, at) in listeners {
        loop {
            let client = WAY.socket(0);
            WAY.connect(client, at).unwrap();
            let ours = is_ours(client);
            let answered = wait(client, Some(PATIENCE));
            if !answered {
                for child in children {
                    let _gone = rustix::process::kill_process(child, rustix::process::Signal::KILL);
                }
            }
            assert!(answered, "nobody takes the connection to {at} of {listeners:?}");
            WAY.close(client).unwrap();
            if ours {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    waiter.join().unwrap();
    for child in children {
        let (_, status) =
            rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty()).unwrap().unwrap();
        assert_eq!(status.exit_status(), Some(0));
    }
}
