//! poll and select.

use core::slice;
use core::time::Duration;
use std::time::Instant;

use fs_socket::{
    Ours,
    poll::{self, PollFd},
    stream::channel::CANCELLED,
};
use libc::{c_int, fd_set, nfds_t, pollfd, sigset_t, size_t, suseconds_t, time_t, timespec, timeval};

use crate::sys::answer::{int, is_bad};
use crate::sys::{cancel, real};

fall_through! {
    /// poll(2).
    fn poll(fds: *mut pollfd, n: nfds_t, timeout_ms: c_int) -> c_int =
        entries(fds, n).and_then(|fds| ready(timed(milliseconds(timeout_ms), |left| poll::poll(fds, left, None))));
    /// ppoll(2).
    fn ppoll(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int = {
        match (entries(fds, n), time(timeout)) {
            (Some(fds), Some(timeout)) => ready(timed(timeout, |left| poll::poll(fds, left, signals(mask)))),
            _ => None,
        }
    };
    /// select(2).
    fn select(n: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int =
        selected(n, read, write, except, timeout);
    /// pselect(2).
    fn pselect(n: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int = {
        time(timeout).and_then(|timeout| {
            let mut unused = None;
            select_sets(n, [read, write, except], timeout, signals(mask), &mut unused)
        })
    };
}

define! {
    /// The C library's other name.
    fn __poll(fds: *mut pollfd, n: nfds_t, timeout_ms: c_int) -> c_int = self::poll(fds, n, timeout_ms);
    /// The C library's other name.
    fn __select(n: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int =
        select(n, read, write, except, timeout);
    /// poll with its array's size (_FORTIFY_SOURCE): too long a count ends the process, in the C library's words.
    fn __poll_chk(fds: *mut pollfd, n: nfds_t, timeout_ms: c_int, room: size_t) -> c_int = {
        if room / size_of::<pollfd>() < n as size_t {
            real::__poll_chk(fds, n, timeout_ms, room)
        } else {
            self::poll(fds, n, timeout_ms)
        }
    };
    /// As __poll_chk.
    fn __ppoll_chk(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t) -> c_int = {
        if room / size_of::<pollfd>() < n as size_t {
            real::__ppoll_chk(fds, n, timeout, mask, room)
        } else {
            ppoll(fds, n, timeout, mask)
        }
    };
}

/// Makes a call that may wait as long as `timeout`, with its cancellation points. The clock is read only in processes
/// that cancel threads.
#[inline]
pub(super) fn timed(timeout: Option<Duration>, mut wait: impl FnMut(Option<Duration>) -> Ours<usize>) -> Ours<usize> {
    cancel::point();
    match wait(timeout) {
        Some(Err(CANCELLED)) => timed_in_slices(timeout, wait),
        answer => answer,
    }
}

/// The rest of a wait whose first slice is over.
#[cold]
fn timed_in_slices(timeout: Option<Duration>, mut wait: impl FnMut(Option<Duration>) -> Ours<usize>) -> Ours<usize> {
    let began = Instant::now();
    let timeout = timeout.map(|timeout| timeout.saturating_sub(poll::CANCEL_SLICE));
    cancel::until_done(|| wait(timeout.map(|timeout| timeout.saturating_sub(began.elapsed()))))
}

/// A number of ready descriptors.
pub(super) fn ready(answer: Ours<usize>) -> Option<c_int> {
    // At most as many as there are descriptors.
    int(answer.map(|r| r.map(|n| n as c_int)))
}

/// The array of poll. `None`: one the kernel refuses (it knows the error), or one that it ignores.
///
/// # Safety
/// As poll(2).
unsafe fn entries<'a>(fds: *mut pollfd, n: nfds_t) -> Option<&'a mut [PollFd]> {
    if is_bad(fds) || n == 0 || n > FEW && n > open_files() {
        return None;
    }
    // SAFETY: by contract; PollFd is laid out as pollfd.
    Some(unsafe { slice::from_raw_parts_mut(fds.cast(), n as usize) })
}

/// So many entries are within every limit.
const FEW: nfds_t = 64;

/// RLIMIT_NOFILE: longer arrays are EINVAL (poll(2)).
fn open_files() -> nfds_t {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // The kernel's, which for a moment may be higher than the program's: nobody waits for the end of that here.
    // SAFETY: writes the structure.
    unsafe { real::getrlimit64(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur.min(c_int::MAX as u64)
}

/// poll's time-out: negative is without end.
pub(super) fn milliseconds(timeout: c_int) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

/// ppoll's time-out: null is without end. `None`: not a time, EINVAL by the kernel.
///
/// # Safety
/// Null or valid.
pub(super) unsafe fn time(timeout: *const timespec) -> Option<Option<Duration>> {
    // SAFETY: by contract.
    let Some(timeout) = (unsafe { timeout.as_ref() }) else { return Some(None) };
    let seconds = u64::try_from(timeout.tv_sec).ok()?;
    let nanoseconds = u32::try_from(timeout.tv_nsec).ok().filter(|&n| n < 1_000_000_000)?;
    Some(Some(Duration::new(seconds, nanoseconds)))
}

/// A signal mask in the kernel's form: its first 64 bits.
///
/// # Safety
/// Null or valid.
pub(super) unsafe fn signals(mask: *const sigset_t) -> Option<u64> {
    // SAFETY: by contract; sigset_t is longer than 8 bytes and aligned for them.
    (!mask.is_null()).then(|| unsafe { mask.cast::<u64>().read() })
}

/// select, which writes the time left back (select(2), Linux).
///
/// # Safety
/// As select(2).
unsafe fn selected(
    n: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> Option<c_int> {
    // SAFETY: by contract.
    let limit = match unsafe { timeout.as_ref() } {
        None => None,
        // Microseconds of a second or more are taken as they are (kernel: poll_select_set_timeout of tv_sec + tv_usec).
        Some(&timeval { tv_sec, tv_usec }) => {
            Some(Duration::from_secs(u64::try_from(tv_sec).ok()?) + Duration::from_micros(u64::try_from(tv_usec).ok()?))
        }
    };
    let mut left = limit;
    // SAFETY: by contract.
    let answer = unsafe { select_sets(n, [read, write, except], limit, None, &mut left) }?;
    if let Some(left) = left
        && !timeout.is_null()
    {
        // SAFETY: by contract.
        unsafe {
            *timeout = timeval { tv_sec: left.as_secs() as time_t, tv_usec: left.subsec_micros() as suseconds_t }
        };
    }
    Some(answer)
}

/// So many descriptors this process has room for now: where select stops (core_sys_select(), fs/select.c).
fn descriptors() -> c_int {
    let mut text = [0; 1024];
    // SAFETY: a constant name, a buffer with its length, a number just made.
    let read = unsafe {
        let fd = libc::open(c"/proc/self/status".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        let read = real::read(fd, text.as_mut_ptr().cast(), text.len());
        real::close(fd);
        read
    };
    let text = text.get(..usize::try_from(read).unwrap_or(0)).unwrap_or(&[]);
    let found = text.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"FDSize:"));
    let number = found.and_then(|rest| core::str::from_utf8(rest).ok()).and_then(|rest| rest.trim().parse().ok());
    // Without /proc: no set of the usual kind is longer.
    number.unwrap_or(libc::FD_SETSIZE as c_int)
}

/// # Safety
/// As pselect(2).
unsafe fn select_sets(
    n: c_int,
    sets: [*mut fd_set; 3],
    timeout: Option<Duration>,
    mask: Option<u64>,
    left: &mut Option<Duration>,
) -> Option<c_int> {
    // A set is as long as the highest number asked for needs, which may be more than fd_set's 1024 (programs that
    // allocate their own). A number beyond all descriptors says nothing of its length, and the kernel ignores it.
    let n = if n > libc::FD_SETSIZE as c_int { n.min(descriptors()) } else { n };
    let words = usize::try_from(n).ok()?.div_ceil(64);
    let [read, write, except] = sets.map(|set| {
        // SAFETY: by contract.
        (!set.is_null()).then(|| unsafe { slice::from_raw_parts_mut(set.cast::<u64>(), words) })
    });
    let mut sets = [read, write, except];
    ready(timed(timeout, |time| {
        let [read, write, except] = &mut sets;
        poll::select(n as usize, [read.as_deref_mut(), write.as_deref_mut(), except.as_deref_mut()], time, mask, left)
    }))
}
