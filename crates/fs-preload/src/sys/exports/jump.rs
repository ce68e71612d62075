//! longjmp(3) and similar functions: a signal handler may jump out of a call of the library.

use core::cell::Cell;
use core::ffi::c_void;

use libc::c_int;

use crate::object::Body;
use crate::sys::kernel::SetCall;
use crate::sys::real;
use crate::table;

thread_local! {
    /// Number of calls on promoted sockets and sets in which this thread is.
    static INSIDE: Cell<u32> = const { Cell::new(0) };
}

/// The thread is in a call, in which it may hold a lock.
#[inline]
pub(super) fn inside<T>(call: impl FnOnce() -> T) -> T {
    // One access to thread-local storage, which is a call in a shared library.
    INSIDE.with(|inside| {
        let before = inside.replace(inside.get() + 1);
        let result = call();
        inside.set(before);
        result
    })
}

define! {
    /// longjmp(3).
    fn longjmp(place: *mut c_void, value: c_int) -> () = {
        leave_calls();
        real::longjmp(place, value)
    };
    /// _longjmp(3).
    fn _longjmp(place: *mut c_void, value: c_int) -> () = {
        leave_calls();
        real::_longjmp(place, value)
    };
    /// siglongjmp(3).
    fn siglongjmp(place: *mut c_void, value: c_int) -> () = {
        leave_calls();
        real::siglongjmp(place, value)
    };
    /// longjmp with _FORTIFY_SOURCE.
    fn __longjmp_chk(place: *mut c_void, value: c_int) -> () = {
        leave_calls();
        real::__longjmp_chk(place, value)
    };
}

/// Frees the locks of the calls that are left behind. Most jumps leave none.
#[inline]
fn leave_calls() {
    if INSIDE.get() != 0 {
        INSIDE.set(0);
        break_locks();
    }
}

#[cold]
fn break_locks() {
    table::for_each(|_, slot| {
        let Some(held) = slot.object.hold() else { return };
        match held.body() {
            Body::Socket(socket) => socket.break_own_locks(),
            Body::Set(polled) => polled.break_own_locks(SetCall::NONE),
        }
        held.release();
    });
}
