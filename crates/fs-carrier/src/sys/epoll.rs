//! An epoll set of the kernel's.

use core::sync::atomic::{AtomicI32, Ordering};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd};

use super::machine::{is_gone, nap, now_ns, thread};
use super::syscall;
use crate::kernel::{Errno, Event, KernelSet, Machine, Registration};

/// Descriptors of interruptions are above those that a program expects to get next.
const FIRST_FD: i32 = 512;

/// The interruption of one set (E5): a readable eventfd in it. Its address is the event's data, so
/// it must not be moved while the set is used.
#[derive(Debug, Default)]
pub struct Interrupter {
    /// The eventfd's number plus 1. 0: there is none.
    fd: AtomicI32,
}

/// A set for the time of one call.
#[derive(Debug)]
pub struct Epoll<'a> {
    /// The application's descriptor.
    pub fd: BorrowedFd<'a>,
    /// The set's own.
    pub interrupter: &'a Interrupter,
    /// epoll_pwait(2)'s signal mask, as the kernel has it.
    pub signals: Option<&'a u64>,
}

impl Interrupter {
    fn data(&self) -> u64 {
        core::ptr::from_ref(self).addr() as u64
    }

    fn take(&self) -> Option<OwnedFd> {
        match self.fd.swap(0, Ordering::Relaxed) {
            0 => None,
            // SAFETY: it was stored by `interrupt`, which gave it up, and is taken once.
            fd => Some(unsafe { OwnedFd::from_raw_fd(fd - 1) }),
        }
    }
}

impl Drop for Interrupter {
    fn drop(&mut self) {
        drop(self.take());
    }
}

/// Returns whether an epoll set has nothing to report. It takes no edge, unlike epoll_wait(2).
#[must_use]
pub fn is_set_empty(set: BorrowedFd<'_>) -> bool {
    let mut list = [PollFd::from_borrowed_fd(set, PollFlags::IN)];
    rustix::event::poll(&mut list, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(0)
}

impl KernelSet for Epoll<'_> {
    fn wait(&self, into: &mut [Event], timeout_ns: Option<u64>) -> Result<usize, Errno> {
        syscall::epoll_wait(self.fd, into, timeout_ns, self.signals)
    }

    fn interrupt(&self) -> Result<(), Errno> {
        let fd = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let fd = rustix::io::fcntl_dupfd_cloexec(&fd, FIRST_FD).unwrap_or(fd);
        epoll::add(self.fd, &fd, epoll::EventData::new_u64(self.interrupter.data()), epoll::EventFlags::IN)?;
        drop(self.interrupter.take());
        self.interrupter.fd.store(fd.as_raw_fd() + 1, Ordering::Relaxed);
        // Closed by `take`.
        let _stored = fd.into_raw_fd();
        Ok(())
    }

    fn end_interrupt(&self) {
        // The last descriptor of an eventfd takes it out of the set.
        drop(self.interrupter.take());
    }

    fn disarm(&self, descriptor: i32, data: u64) {
        // SAFETY: the application's number; one that it has closed is EBADF, or its mistake.
        let fd = unsafe { BorrowedFd::borrow_raw(descriptor) };
        // Refused: the application has taken it out.
        let _disarmed = epoll::modify(self.fd, fd, epoll::EventData::new_u64(data), epoll::EventFlags::ONESHOT);
    }

    fn register(&self, registration: Registration) {
        syscall::epoll_register(self.fd, registration);
    }

    fn has_nothing(&self) -> bool {
        is_set_empty(self.fd)
    }

    fn is_interrupt(&self, data: u64) -> bool {
        data == self.interrupter.data()
    }
}

impl Machine for Epoll<'_> {
    #[inline]
    fn now_ns(&self) -> u64 {
        now_ns()
    }

    #[inline]
    fn pause(&self) {
        core::hint::spin_loop();
    }

    fn yield_now(&self) {
        rustix::thread::sched_yield();
    }

    fn nap(&self) {
        nap();
    }

    #[inline]
    fn thread(&self) -> u32 {
        thread()
    }

    fn is_gone(&self, thread: u32) -> bool {
        is_gone(thread)
    }
}
