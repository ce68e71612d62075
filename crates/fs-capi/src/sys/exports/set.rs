//! epoll.

use core::slice;
use core::time::Duration;

use fs_socket::poll::{self, EpollEvent, PollFd};
use libc::{c_int, epoll_event, sigset_t, timespec};

use super::wait::{milliseconds, ready, signals, time, timed};
use crate::sys::answer::{done, is_bad};
use crate::sys::errno::set_errno;
use crate::sys::real;

fall_through! {
    /// epoll_ctl(2).
    fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int =
        done(poll::epoll_ctl(set, operation, fd, event.cast::<EpollEvent>().as_ref().filter(|_| !is_bad(event)).copied()));
}

define! {
    /// epoll_create(2): an epoll set is the kernel's until a socket of ours comes into it.
    fn epoll_create(size: c_int) -> c_int = made(real::epoll_create(size));
    /// epoll_create1(2).
    fn epoll_create1(flags: c_int) -> c_int = made(real::epoll_create1(flags));
    /// epoll_wait(2).
    fn epoll_wait(set: c_int, events: *mut epoll_event, n: c_int, timeout_ms: c_int) -> c_int = {
        waited(set, events, n, milliseconds(timeout_ms), None, || real::epoll_wait(set, events, n, timeout_ms))
    };
    /// epoll_pwait(2).
    fn epoll_pwait(set: c_int, events: *mut epoll_event, n: c_int, timeout_ms: c_int, mask: *const sigset_t) -> c_int = {
        let kernel = || real::epoll_pwait(set, events, n, timeout_ms, mask);
        waited(set, events, n, milliseconds(timeout_ms), signals(mask), kernel)
    };
    /// epoll_pwait2(2).
    fn epoll_pwait2(set: c_int, events: *mut epoll_event, n: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int = {
        let kernel = || real::epoll_pwait2(set, events, n, timeout, mask);
        match time(timeout) {
            Some(timeout) => waited(set, events, n, timeout, signals(mask), kernel),
            None => kernel(),
        }
    };
}

/// Remembers a new set, so that its duplicates are known for what they are.
fn made(set: c_int) -> c_int {
    if set >= 0 {
        fs_socket::descriptor::table::epoll_made(set);
    }
    set
}

/// Waits in our way or, where there is nothing of ours in the set, in the kernel's. In a kernel's wait, the set may have
/// become ours: then the event that ended the wait is not the application's.
///
/// # Safety
/// As epoll_pwait(2); `kernel` is that call with these arguments.
unsafe fn waited(
    set: c_int,
    events: *mut epoll_event,
    n: c_int,
    timeout: Option<Duration>,
    mask: Option<u64>,
    kernel: impl Fn() -> c_int,
) -> c_int {
    let n = match usize::try_from(n) {
        Ok(n) if n > 0 && !is_bad(events) => n,
        Ok(n) if n > 0 => return nowhere(set, timeout, mask, kernel),
        _ => return kernel(),
    };
    loop {
        // SAFETY: by contract; EpollEvent is laid out as the kernel's epoll_event.
        let room = unsafe { slice::from_raw_parts_mut(events.cast::<EpollEvent>(), n) };
        if let Some(answer) = ready(timed(timeout, |left| poll::epoll_wait(set, room, left, mask))) {
            return answer;
        }
        let answer = kernel();
        let Ok(got @ 1..) = usize::try_from(answer) else { return answer };
        let left = poll::strip(set, &mut room[..got]);
        if left > 0 {
            return left as c_int;
        }
    }
}

/// An epoll_wait that has nowhere to write: EFAULT as soon as there is an event.
fn nowhere(set: c_int, timeout: Option<Duration>, mask: Option<u64>, kernel: impl Fn() -> c_int) -> c_int {
    let mut entry = [PollFd { fd: set, events: libc::POLLIN, revents: 0 }];
    match ready(timed(timeout, |left| poll::poll(&mut entry, left, mask))) {
        Some(1..) => {
            set_errno(libc::EFAULT);
            -1
        }
        Some(answer) => answer,
        None => kernel(),
    }
}
