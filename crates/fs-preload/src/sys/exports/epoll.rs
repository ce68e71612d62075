//! epoll(7).

use fs_carrier::kernel::Event;
use libc::{c_int, epoll_event, sigset_t, timespec};

use super::jump::inside;
use crate::descriptor::{self, Found};
use crate::object::Body;
use crate::promotion;
use crate::set::{self, Control};
use crate::sys::errno::{answer, checked};
use crate::sys::kernel::SetCall;
use crate::sys::{memory, real};

define! {
    /// epoll_create(2).
    fn epoll_create(size: c_int) -> c_int = begun(real::epoll_create(size));
    /// epoll_create1(2).
    fn epoll_create1(flags: c_int) -> c_int = begun(real::epoll_create1(flags));
    /// epoll_ctl(2).
    fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int =
        controlled(set, operation, fd, event);
    /// epoll_wait(2).
    fn epoll_wait(set: c_int, events: *mut epoll_event, n: c_int, timeout_ms: c_int) -> c_int = {
        let time = u64::try_from(timeout_ms).ok().map(|ms| ms * 1_000_000);
        waited(set, events, n, time, core::ptr::null()).unwrap_or_else(|| real::epoll_wait(set, events, n, timeout_ms))
    };
    /// epoll_pwait(2).
    fn epoll_pwait(set: c_int, events: *mut epoll_event, n: c_int, timeout_ms: c_int, mask: *const sigset_t) -> c_int = {
        let time = u64::try_from(timeout_ms).ok().map(|ms| ms * 1_000_000);
        waited(set, events, n, time, mask).unwrap_or_else(|| real::epoll_pwait(set, events, n, timeout_ms, mask))
    };
    /// epoll_pwait2(2).
    fn epoll_pwait2(set: c_int, events: *mut epoll_event, n: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int =
        match super::poll::nanoseconds(timeout) {
            Ok(time) => waited(set, events, n, time, mask),
            // The kernel returns the error.
            Err(()) => None,
        }
        .unwrap_or_else(|| real::epoll_pwait2(set, events, n, timeout, mask));
}

fn begun(number: c_int) -> c_int {
    if number >= 0 {
        descriptor::begin_set(number);
    }
    number
}

/// # Safety
/// Like epoll_pwait(2).
unsafe fn waited(
    number: c_int,
    events: *mut epoll_event,
    n: c_int,
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
) -> Option<c_int> {
    let n = usize::try_from(n).ok().filter(|n| *n > 0 && *n < c_int::MAX as usize / size_of::<epoll_event>())?;
    let Found::Object(held) = descriptor::find(number) else { return None };
    let result = match held.body() {
        Body::Set(polled) if memory::is_writable(events, n * size_of::<epoll_event>()) => {
            // SAFETY: `Event` is laid out as `epoll_event`; by contract there are `n` of them.
            let into = unsafe { core::slice::from_raw_parts_mut(events.cast::<Event>(), n) };
            Some(answer(inside(|| polled.wait(SetCall { number, mask }, into, timeout_ns))) as c_int)
        }
        _ => None,
    };
    held.release();
    result
}

/// # Safety
/// Like epoll_ctl(2).
unsafe fn controlled(number: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    // SAFETY: by contract.
    let plain = || unsafe { real::epoll_ctl(number, operation, fd, event) };
    let found = descriptor::find(fd);
    if matches!(found, Found::Plain) {
        return plain();
    }
    let asked = if memory::is_readable(event, size_of::<epoll_event>()) {
        // SAFETY: readable.
        Some(unsafe { event.read_unaligned() })
    } else {
        None
    };
    let is_bad = asked.is_none() && operation != libc::EPOLL_CTL_DEL;
    let asked = asked.unwrap_or(epoll_event { events: 0, u64: 0 });
    let control = Control { number, fd, operation, events: asked.events, data: asked.u64 };
    match found {
        Found::Plain => plain(),
        Found::Watched(slot, visit) => {
            let result = plain();
            if result == 0 {
                promotion::registered(slot, control);
            }
            slot.leave(visit);
            result
        }
        Found::Object(held) => {
            let result = inside(|| match held.body() {
                Body::Set(polled) => {
                    // A set in a set, unless the call fails at once.
                    let entered =
                        if operation == libc::EPOLL_CTL_ADD && fd != number { polled.enter_set(fd) } else { Ok(()) };
                    match entered {
                        Ok(()) => plain(),
                        Err(error) => answer(Err(error)) as c_int,
                    }
                }
                // The kernel returns the error.
                Body::Socket(_) if is_bad => plain(),
                Body::Socket(socket) if socket.has_ring(fd) => {
                    answer(set::control(control, socket, |operation| {
                        let mut event = epoll_event { events: control.events, u64: control.data };
                        // SAFETY: an event that the kernel reads.
                        checked(unsafe { real::epoll_ctl(number, operation, fd, &raw mut event) } as isize)
                    })) as c_int
                }
                Body::Socket(socket) => {
                    // The kernel's call will change its registration.
                    set::tell(socket);
                    socket.leave_sets();
                    descriptor::retire(fd, held);
                    plain()
                }
            });
            held.release();
            result
        }
    }
}
