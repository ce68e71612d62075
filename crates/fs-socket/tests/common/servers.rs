//! Servers that wait in different ways, and clients that want to be theirs by memory.

use std::{
    net::SocketAddr,
    os::fd::{AsRawFd, RawFd},
    time::Duration,
};

use fs_socket::{
    descriptor::table,
    poll::{self, EpollEvent, PollFd},
    socket::Watch,
};

use rustix::process::Pid;

use super::Way;

const WAY: Way = Way::Ours;
/// An accept that others have announced takes milliseconds, one that finds the daemon itself a second.
const PATIENCE: Duration = Duration::from_secs(6);

pub(crate) fn is_ours(fd: RawFd) -> bool {
    table::socket(fd).is_some_and(|socket| socket.watch() == Watch::Channel)
}

pub(crate) fn wait(fd: RawFd, timeout: Option<Duration>) -> bool {
    let mut entry = [PollFd { fd, events: 1, revents: 0 }];
    poll::poll(&mut entry, timeout, None).unwrap_or_else(|| {
        let fd = super::process_unsafe::borrow(fd);
        let timeout = timeout.map(|timeout| timeout.try_into().unwrap());
        rustix::event::poll(&mut [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)], timeout.as_ref())
    }) == Ok(1)
}

/// How a server waits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum By {
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
pub(crate) fn serve(listener: RawFd, by: By) {
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
pub(crate) fn forked(listener: RawFd, by: By) -> Pid {
    let forking = fs_socket::before_fork().unwrap();
    match super::process_unsafe::fork() {
        0 => {
            fs_socket::after_fork_child(forking);
            serve(listener, by);
            super::process_unsafe::exit(0)
        }
        pid => {
            fs_socket::after_fork_parent(forking, pid > 0);
            Pid::from_raw(pid).unwrap()
        }
    }
}

pub(crate) fn kill(child: Pid) {
    let _gone = rustix::process::kill_process(child, rustix::process::Signal::KILL);
}

/// It has served, and ends well.
pub(crate) fn end(child: Pid) {
    let (_, status) = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty()).unwrap().unwrap();
    assert_eq!(status.exit_status(), Some(0));
}

/// Connects until a connection is no kernel's; false: one is not answered.
pub(crate) fn is_served(at: SocketAddr) -> bool {
    loop {
        let client = WAY.socket(0);
        WAY.connect(client, at).unwrap();
        let ours = is_ours(client);
        if !wait(client, Some(PATIENCE)) {
            return false;
        }
        WAY.close(client).unwrap();
        if ours {
            return true;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
