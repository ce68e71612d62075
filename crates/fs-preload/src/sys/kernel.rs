//! The kernel behind a promoted socket: the application's own descriptor.
//!
//! Calls that may sleep are the C library's, so that cancellation, time-outs and restarts are native. Calls that do not sleep are made
//! directly: they are made with a lock held, where a thread must not be cancelled.

use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd};

use fs_carrier::kernel::{Errno, Event, Events, Kernel, KernelSet, Machine, RecvMode, Registration, TcpInfo};
use fs_carrier::sys::Socket as Real;
use libc::{epoll_event, sigset_t, timespec};
use rustix::event::{EventfdFlags, eventfd};

use super::errno::checked;
use super::real;

/// A descriptor number of the application.
#[derive(Debug)]
pub(crate) struct Fd(AtomicI32);

impl Fd {
    pub(crate) fn new(number: c_int) -> Self {
        Fd(AtomicI32::new(number))
    }

    #[inline]
    fn number(&self) -> c_int {
        self.0.load(Ordering::Relaxed)
    }

    /// The socket has another number, and the old one may be closed.
    pub(crate) fn renumber(&self, number: c_int) {
        self.0.store(number, Ordering::Relaxed);
    }

    /// Returns the number as rustix takes it.
    pub(crate) fn borrow(&self) -> BorrowedFd<'_> {
        // SAFETY: a number that the application has closed behind the library's back is EBADF, or its mistake. It is not -1, which is never
        // in the table.
        unsafe { BorrowedFd::borrow_raw(self.number()) }
    }

    fn real(&self) -> Real<BorrowedFd<'_>> {
        Real(self.borrow())
    }
}

impl Kernel for Fd {
    fn send(&self, bytes: &[u8], dont_wait: bool) -> Result<usize, Errno> {
        let flags = libc::MSG_NOSIGNAL | if dont_wait { libc::MSG_DONTWAIT } else { 0 };
        // SAFETY: readable memory of that length.
        checked(unsafe { real::send(self.number(), bytes.as_ptr().cast(), bytes.len(), flags) })
    }

    fn recv(&self, into: &mut [u8], mode: RecvMode) -> Result<usize, Errno> {
        if mode.dont_wait {
            return self.real().recv(into, mode);
        }
        let flags = if mode.peek { libc::MSG_PEEK } else { 0 };
        // SAFETY: writable memory of that length.
        checked(unsafe { real::recv(self.number(), into.as_mut_ptr().cast(), into.len(), flags) })
    }

    fn unread(&self) -> Result<u64, Errno> {
        self.real().unread()
    }

    fn tcp_info(&self) -> Result<TcpInfo, Errno> {
        self.real().tcp_info()
    }

    fn events(&self) -> Events {
        self.real().events()
    }

    fn wait_readable(&self, ms: u32) {
        self.real().wait_readable(ms);
    }
}

macro_rules! machine {
    ($($type:ty),*) => {
        $(impl Machine for $type {
            #[inline]
            fn now_ns(&self) -> u64 {
                fs_carrier::sys::now_ns()
            }

            #[inline]
            fn pause(&self) {
                core::hint::spin_loop();
            }

            fn yield_now(&self) {
                rustix::thread::sched_yield();
            }

            #[inline]
            fn thread(&self) -> u32 {
                Real(()).thread()
            }

            fn is_gone(&self, thread: u32) -> bool {
                Real(()).is_gone(thread)
            }
        })*
    };
}

machine! { Fd, SetCall, ThisThread }

/// The calling thread, where no descriptor matters.
pub(crate) struct ThisThread;

/// One call of epoll_wait(2) and its like, or of epoll_ctl(2).
#[derive(Clone, Copy)]
pub(crate) struct SetCall {
    pub(crate) number: c_int,
    /// The caller's signal mask, or null.
    pub(crate) mask: *const sigset_t,
}

/// The descriptor that is always readable, and what the kernel reports for it (E5).
static INTERRUPTION: AtomicI32 = AtomicI32::new(-1);
/// Its address is the data: no other data of the application is this address.
static INTERRUPTION_DATA: AtomicU32 = AtomicU32::new(0);

impl SetCall {
    /// For calls that do not ask the kernel.
    pub(crate) const NONE: SetCall = SetCall { number: -1, mask: ptr::null() };

    pub(crate) fn new(number: c_int) -> Self {
        SetCall { number, mask: ptr::null() }
    }

    fn data() -> u64 {
        (&raw const INTERRUPTION_DATA).addr() as u64
    }

    fn control(self, operation: c_int, fd: c_int) -> Result<(), Errno> {
        let mut event = epoll_event { events: libc::EPOLLIN as u32, u64: Self::data() };
        // SAFETY: an event that the kernel reads.
        checked(unsafe { real::epoll_ctl(self.number, operation, fd, &raw mut event) } as isize).map(|_| ())
    }
}

impl KernelSet for SetCall {
    fn wait(&self, into: &mut [Event], timeout_ns: Option<u64>) -> Result<usize, Errno> {
        let n = c_int::try_from(into.len()).unwrap_or(c_int::MAX);
        let events = into.as_mut_ptr().cast::<epoll_event>();
        let ms = match timeout_ns {
            None => -1,
            Some(0) => 0,
            Some(ns) => {
                let time = timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
                // SAFETY: `Event` is laid out as `epoll_event`; there are `n` of them; the mask is the caller's.
                let got = unsafe { real::epoll_pwait2(self.number, events, n, &raw const time, self.mask) };
                match checked(got as isize) {
                    // Before Linux 5.11.
                    Err(Errno::NOSYS) => c_int::try_from(ns.div_ceil(1_000_000)).unwrap_or(c_int::MAX),
                    result => return result,
                }
            }
        };
        // SAFETY: as above.
        checked(unsafe { real::epoll_pwait(self.number, events, n, ms, self.mask) } as isize)
    }

    fn interrupt(&self) -> Result<(), Errno> {
        let mut number = INTERRUPTION.load(Ordering::Relaxed);
        if number < 0 {
            let new = eventfd(1, EventfdFlags::CLOEXEC)?;
            // A high number: programs expect the lowest ones for their own files.
            let new = rustix::io::fcntl_dupfd_cloexec(&new, 900).unwrap_or(new);
            match INTERRUPTION.compare_exchange(-1, new.as_raw_fd(), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => number = new.into_raw_fd(),
                Err(other) => number = other,
            }
        }
        match self.control(libc::EPOLL_CTL_ADD, number) {
            Err(Errno::EXIST) => Ok(()),
            result => result,
        }
    }

    fn end_interrupt(&self) {
        // ENOENT: it is gone already.
        let _removed = self.control(libc::EPOLL_CTL_DEL, INTERRUPTION.load(Ordering::Relaxed));
    }

    fn register(&self, registration: Registration) {
        let Registration { fd, event } = registration;
        let operation = if event.is_some() { libc::EPOLL_CTL_MOD } else { libc::EPOLL_CTL_DEL };
        let event = event.unwrap_or_default();
        let mut event = epoll_event { events: event.events, u64: event.data };
        // SAFETY: an event that the kernel reads. An error: the descriptor is closed, and the kernel has forgotten it.
        let _told = unsafe { real::epoll_ctl(self.number, operation, fd, &raw mut event) };
    }

    fn is_interrupt(&self, data: u64) -> bool {
        data == Self::data()
    }
}
