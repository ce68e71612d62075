//! Waits of a process that has no daemon yet, or whose daemon has ended. What it waits on is the kernel's alone until then, listeners too,
//! and nobody wakes a thread that sleeps in the kernel when another thread or process announces its listener to the next daemon: from
//! there on connections come to where it does not look.

use std::time::Duration;

use rustix::io::Errno;

use super::{PollFd, set::Set, sys::kernel, wait::Deadline};
use crate::{
    descriptor::table,
    process, slice,
    socket::{Kind, mark},
    stream::channel::{CANCELLED, is_cancelled},
    sys::signals::{Section, Seen},
    types::{Fd, Ours},
};

const IN: i16 = 0x1;

/// Whether a listener that a next daemon may have is among them.
pub(super) fn has_listener(fds: &[PollFd]) -> bool {
    let _section = Section::begin();
    let is_one = |fd: Fd| {
        table::socket_in_section(fd).is_some_and(|of| of.kind() == Kind::Listener && !of.marked(mark::KERNEL_ONLY))
    };
    fds.iter().any(|entry| entry.fd >= 0 && is_one(entry.fd))
}

/// poll(2) by the kernel, until this process has found the next daemon: `None`.
pub(super) fn poll(fds: &mut [PollFd], deadline: &Deadline, mask: Option<u64>) -> Ours<usize> {
    let handlers = Seen::now();
    while process::may_be_attached() && process::attached().is_none() {
        if handlers.has_any() {
            return Some(Err(Errno::INTR));
        }
        let slice = slice::of(Duration::from_nanos(process::RETRY_NS));
        match kernel::ppoll(fds, slice::timeout(slice, deadline.left()), mask) {
            Ok(0) if is_cancelled() => return Some(Err(CANCELLED)),
            Ok(0) if !deadline.is_over() => {}
            answer => return Some(answer),
        }
    }
    None
}

/// Before the kernel's epoll_wait(2) on a set with nothing of ours. `None`: there is something in it, or it is no more such a set.
pub(super) fn wait(fd: Fd, set: &Set, deadline: &Deadline, mask: Option<u64>) -> Ours<usize> {
    let mut one = [PollFd { fd, events: IN, revents: 0 }];
    let mut answer = poll(&mut one, deadline, mask);
    if answer.is_none() && !set.is_active() {
        // One that becomes ours from here on is made readable for those who sleep in it.
        answer = Some(kernel::ppoll(&mut one, deadline.left(), mask));
    }
    answer.filter(|answer| !matches!(answer, Ok(1..)))
}
