//! epoll.

use core::slice;

use fs_socket::poll::{self, EpollEvent};
use libc::{c_int, epoll_event, sigset_t, timespec};

use super::wait::{milliseconds, ready, signals, time};
use crate::sys::answer::done;
use crate::sys::cancel;

fall_through! {
    /// epoll_create(2): an epoll set is the kernel's until a socket of ours comes into it.
    fn epoll_create(size: c_int) -> c_int = None;
    /// epoll_create1(2).
    fn epoll_create1(flags: c_int) -> c_int = None;
    /// epoll_ctl(2).
    fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int =
        done(poll::epoll_ctl(set, operation, fd, event.cast::<EpollEvent>().as_ref().copied()));
    /// epoll_wait(2).
    fn epoll_wait(set: c_int, events: *mut epoll_event, n: c_int, timeout_ms: c_int) -> c_int = {
        room(events, n).and_then(|events| ready(poll::epoll_wait(set, events, milliseconds(timeout_ms), None)))
    };
    /// epoll_pwait(2).
    fn epoll_pwait(set: c_int, events: *mut epoll_event, n: c_int, timeout_ms: c_int, mask: *const sigset_t) -> c_int = {
        room(events, n).and_then(|events| ready(poll::epoll_wait(set, events, milliseconds(timeout_ms), signals(mask))))
    };
    /// epoll_pwait2(2).
    fn epoll_pwait2(set: c_int, events: *mut epoll_event, n: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int = {
        match (room(events, n), time(timeout)) {
            (Some(events), Some(timeout)) => ready(poll::epoll_wait(set, events, timeout, signals(mask))),
            _ => None,
        }
    };
}

/// The array of events. `None`: one that the kernel refuses.
///
/// # Safety
/// As epoll_wait(2).
unsafe fn room<'a>(events: *mut epoll_event, n: c_int) -> Option<&'a mut [EpollEvent]> {
    cancel::point();
    let n = usize::try_from(n).ok().filter(|&n| n > 0)?;
    if events.is_null() {
        return None;
    }
    // SAFETY: by contract; EpollEvent is laid out as the kernel's epoll_event.
    Some(unsafe { slice::from_raw_parts_mut(events.cast(), n) })
}
