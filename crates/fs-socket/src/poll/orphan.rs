//! Waits of a process that has no daemon yet, or whose daemon has ended. What it waits on is the kernel's alone until then, listeners too,
//! and nobody wakes a thread that sleeps in the kernel when another thread or process announces its listener to the next daemon: from
//! there on connections come to where it does not look.

use std::time::Duration;

use rustix::io::Errno;

use super::{EpollEvent, PollFd, set::Set, sys::kernel, wait::Deadline};
use crate::{
    descriptor::table,
    process, slice,
    socket::{Kind, mark},
    stream::channel::{CANCELLED, is_cancelled},
    sys::signals::{Section, Seen},
    types::{Fd, Ours},
};

/// Whether a listener that a next daemon may have is among them.
pub(super) fn has_listener(fds: &[PollFd]) -> bool {
    let _section = Section::begin();
    let is_one = |fd: Fd| {
        table::socket_in_section(fd).is_some_and(|of| of.kind() == Kind::Listener && !of.marked(mark::KERNEL_ONLY))
    };
    fds.iter().any(|entry| entry.fd >= 0 && is_one(entry.fd))
}

/// Whether there is no next daemon to wait for any more: it is found, or this process has none.
fn is_found() -> bool {
    if process::may_be_attached() {
        process::attached();
    }
    !process::may_be_attached()
}

/// poll(2) by the kernel, until this process has found the next daemon: `None`.
pub(super) fn poll(fds: &mut [PollFd], deadline: &Deadline, mask: Option<u64>) -> Ours<usize> {
    let handlers = Seen::now();
    loop {
        let found = is_found();
        if handlers.has_any() {
            return Some(Err(Errno::INTR));
        }
        if found {
            return None;
        }
        let slice = slice::of(Duration::from_nanos(process::RETRY_NS));
        match kernel::ppoll(fds, slice::timeout(slice, deadline.left()), mask) {
            Ok(0) if is_cancelled() => return Some(Err(CANCELLED)),
            Ok(0) if !deadline.is_over() => {}
            answer => return Some(answer),
        }
    }
}

/// epoll_wait(2) by the kernel on a set with nothing of ours, until there is something: `None`.
pub(super) fn wait(
    fd: Fd,
    set: &Set,
    life: u32,
    events: &mut [EpollEvent],
    deadline: &Deadline,
    mask: Option<u64>,
) -> Ours<usize> {
    let handlers = Seen::now();
    while !events.is_empty() {
        let found = is_found();
        if handlers.has_any() {
            return Some(Err(Errno::INTR));
        }
        // Or closed, and perhaps another one by now.
        if set.is_active() || set.life() != life {
            break;
        }
        // From there on a set that becomes ours is made readable for those who sleep in it.
        let slice = slice::of(if found { slice::ENDLESS } else { Duration::from_nanos(process::RETRY_NS) });
        match kernel::epoll_wait(fd, events, slice::timeout(slice, deadline.left()), mask) {
            Ok(0) if is_cancelled() => return Some(Err(CANCELLED)),
            Ok(0) if deadline.is_over() => return Some(Ok(0)),
            Ok(n) => match super::strip(fd, &mut events[..n]) {
                0 => {}
                n => return Some(Ok(n)),
            },
            Err(errno) => return Some(Err(errno)),
        }
    }
    None
}
