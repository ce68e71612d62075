//! Sleeps on two descriptors until a time in nanoseconds.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Tells the kernel not to delay this thread's timers to combine them with others (by default up to
/// 50 µs).
pub(crate) fn wake_on_time() {
    // SAFETY: prctl with this option takes a plain number; a refusal leaves things as they were.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}

/// Returns when a descriptor is readable or the time has passed.
pub(crate) fn sleep(fds: [BorrowedFd<'_>; 2], wait: Duration) -> io::Result<()> {
    let mut polled = fds.map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 });
    let wait = libc::timespec { tv_sec: wait.as_secs() as libc::time_t, tv_nsec: wait.subsec_nanos().into() };
    // SAFETY: both pointers are to live values, the count is the array's, and no signal mask is
    // given.
    let result = unsafe { libc::ppoll(polled.as_mut_ptr(), 2, &wait, std::ptr::null()) };
    match result {
        -1 => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            error => Err(error),
        },
        _ => Ok(()),
    }
}
