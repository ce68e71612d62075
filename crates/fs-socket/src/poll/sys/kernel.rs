//! The kernel's waiting calls, on the structures that applications pass.

use core::{ptr, slice, time::Duration};

use rustix::{
    io::Errno,
    mm::{MapFlags, ProtFlags, mmap_anonymous, munmap},
};

use crate::poll::{EpollEvent, PollFd};
use crate::{sys::call::call, types::Fd};

/// Numbers that differ by architecture.
#[cfg(target_arch = "x86_64")]
mod nr {
    pub(super) const PPOLL: usize = 271;
    pub(super) const EPOLL_CTL: usize = 233;
    pub(super) const EVENTFD2: usize = 290;
}
#[cfg(target_arch = "aarch64")]
mod nr {
    pub(super) const PPOLL: usize = 73;
    pub(super) const EPOLL_CTL: usize = 21;
    pub(super) const EVENTFD2: usize = 19;
}
/// Linux 5.11.
const EPOLL_PWAIT2: usize = 441;

const CLOEXEC: usize = 0o2_000_000;
const NONBLOCK: usize = 0o4_000;

/// `struct timespec` of 64-bit Linux.
#[repr(C)]
struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

impl Timespec {
    fn of(time: Duration) -> Self {
        Timespec {
            seconds: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: i64::from(time.subsec_nanos()),
        }
    }
}

/// The address of an optional value; 0 for none.
fn address<T>(value: Option<&T>) -> usize {
    value.map_or(0, |value| ptr::from_ref(value) as usize)
}

/// `ppoll(2)`. The time-out is not written back: it is a copy. A look that does not wait, and lets no other signals in, does not end by one
/// (do_poll() of the kernel would have it so where nothing is ready): that is for the wait to say that it is a part of.
pub(in crate::poll) fn ppoll(fds: &mut [PollFd], timeout: Option<Duration>, mask: Option<u64>) -> Result<usize, Errno> {
    let is_look = timeout == Some(Duration::ZERO) && mask.is_none();
    let timeout = timeout.map(Timespec::of);
    let arguments = [fds.as_mut_ptr() as usize, fds.len(), address(timeout.as_ref()), address(mask.as_ref()), 8, 0];
    // SAFETY: the kernel writes into the slice, whose elements are laid out as pollfd; time and mask live through the call.
    match unsafe { call(nr::PPOLL, arguments) } {
        Err(Errno::INTR) if is_look => Ok(0),
        answer => answer,
    }
}

/// `epoll_ctl(2)`.
pub(in crate::poll) fn epoll_ctl(set: Fd, operation: i32, fd: Fd, event: Option<EpollEvent>) -> Result<(), Errno> {
    let arguments = [set as usize, operation as usize, fd as usize, address(event.as_ref()), 0, 0];
    // SAFETY: the kernel reads the event.
    unsafe { call(nr::EPOLL_CTL, arguments) }.map(drop)
}

/// `epoll_pwait2(2)`.
pub(in crate::poll) fn epoll_wait(
    set: Fd,
    events: &mut [EpollEvent],
    timeout: Option<Duration>,
    mask: Option<u64>,
) -> Result<usize, Errno> {
    if events.is_empty() {
        return Ok(0);
    }
    let timeout = timeout.map(Timespec::of);
    let n = events.len().min(i32::MAX as usize / size_of::<EpollEvent>());
    let arguments =
        [set as usize, events.as_mut_ptr() as usize, n, address(timeout.as_ref()), address(mask.as_ref()), 8];
    // SAFETY: the kernel writes at most `n` events, laid out as epoll_event; time and mask live through the call.
    unsafe { call(EPOLL_PWAIT2, arguments) }
}

/// Whether the descriptor is an epoll set; `EBADF`, `EINVAL` if not, as epoll_ctl(2) has it. Takes no event and no descriptor
/// number.
pub(in crate::poll) fn is_epoll(set: Fd) -> Result<(), Errno> {
    let timeout = Timespec::of(Duration::ZERO);
    // An address of the first page, where nothing is mapped: an event that is there stays there, and the answer is EFAULT.
    let arguments = [set as usize, 8, 1, address(Some(&timeout)), 0, 8];
    // SAFETY: the kernel has nowhere to write; the time lives through the call.
    match unsafe { call(EPOLL_PWAIT2, arguments) } {
        Ok(_) | Err(Errno::FAULT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// An eventfd with this count; close-on-exec, non-blocking.
pub(in crate::poll) fn eventfd(count: u32) -> Result<Fd, Errno> {
    // SAFETY: numbers.
    unsafe { call(nr::EVENTFD2, [count as usize, CLOEXEC | NONBLOCK, 0, 0, 0, 0]) }.map(|fd| fd as Fd)
}

/// A cleared array of poll entries in its own mapping: poll(2) may be called in a signal handler, where the heap may not
/// be used.
pub(in crate::poll) struct Entries {
    base: *mut PollFd,
    len: usize,
}

impl Entries {
    /// `len` entries; `None`: no memory.
    pub(in crate::poll) fn new(len: usize) -> Option<Self> {
        let bytes = len.max(1).checked_mul(size_of::<PollFd>())?;
        // SAFETY: a new mapping, wherever the kernel puts it.
        let base =
            unsafe { mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
        Some(Entries { base: base.ok()?.cast(), len })
    }

    /// The entries.
    pub(in crate::poll) fn as_mut(&mut self) -> &mut [PollFd] {
        // SAFETY: `len` entries are mapped; zero bytes are a valid entry.
        unsafe { slice::from_raw_parts_mut(self.base, self.len) }
    }
}

impl Drop for Entries {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`. It cannot fail with these arguments.
        let _ = unsafe { munmap(self.base.cast(), self.len.max(1) * size_of::<PollFd>()) };
    }
}
