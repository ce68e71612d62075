//! Writing to an eventfd of somebody else without ever waiting for him.
//!
//! Whoever has an eventfd shares its O_NONBLOCK with all who have it: a write(2) to one whose counter is full waits if its
//! maker wants it to, and rustix's or the kernel's per-call flags (RWF_NOWAIT) do not reach eventfds. What never waits is a
//! signal from inside the kernel: the completion of an asynchronous request (io_submit(2), IOCB_FLAG_RESFD), which stops
//! the counter at its end (fs/eventfd.c `eventfd_signal_mask`). The request is a read of no bytes from /dev/null, complete
//! when the call returns. 0.8 µs beside 0.3 for write(2) here, which wakes a process in several.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Completions that may lie unread; they are thrown away so often.
const UNREAD: usize = 32;

/// linux/aio_abi.h `struct iocb`.
#[repr(C)]
#[derive(Default)]
struct Request {
    data: u64,
    key_and_rw_flags: [u32; 2],
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    _reserved: u64,
    flags: u32,
    eventfd: u32,
}

const READ: u16 = 0;
const TELL_EVENTFD: u32 = 1;

/// linux/aio_abi.h `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Completion {
    _words: [u64; 4],
}

/// See the module. Made once; the calls take `&mut` because completions are counted.
#[derive(Debug)]
pub(crate) struct EventfdSignal {
    context: libc::c_ulong,
    nothing: File,
    unread: usize,
}

impl EventfdSignal {
    /// # Errors
    ///
    /// `ENOSYS` or `EPERM` where the kernel or a seccomp filter does without asynchronous requests, `EAGAIN` beyond
    /// fs.aio-max-nr.
    pub(crate) fn new() -> io::Result<Self> {
        let nothing = File::open("/dev/null")?;
        let mut context: libc::c_ulong = 0;
        // SAFETY: io_setup(2) writes one context number to a word that outlives the call.
        let done = unsafe { libc::syscall(libc::SYS_io_setup, 2 * UNREAD as libc::c_ulong, &raw mut context) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(Self { context, nothing, unread: 0 }) }
    }

    /// Adds 1 to the counter, or leaves a full one full; either way whoever sleeps on it wakes.
    ///
    /// # Errors
    ///
    /// `EINVAL`: it is no eventfd.
    pub(crate) fn ring(&mut self, eventfd: BorrowedFd<'_>) -> io::Result<()> {
        if self.unread >= UNREAD {
            self.forget();
        }
        let mut request = Request {
            opcode: READ,
            file: self.nothing.as_raw_fd().cast_unsigned(),
            flags: TELL_EVENTFD,
            eventfd: eventfd.as_raw_fd().cast_unsigned(),
            ..Request::default()
        };
        let requests = [&raw mut request];
        // SAFETY: the context is ours until the drop. The kernel reads the list and the request, and writes the request's
        // key, within the call; there is no buffer, as nothing is read.
        let taken = unsafe { libc::syscall(libc::SYS_io_submit, self.context, 1 as libc::c_long, requests.as_ptr()) };
        if taken < 0 {
            return Err(io::Error::last_os_error());
        }
        self.unread += 1;
        Ok(())
    }

    /// Throws completions away, which would else fill the context's ring.
    fn forget(&mut self) {
        let mut completions = [Completion::default(); UNREAD];
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel writes at most as many completions as there is room for, and reads the time, within the call.
        let got = unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.context,
                0 as libc::c_long,
                UNREAD as libc::c_long,
                completions.as_mut_ptr(),
                &raw const now,
            )
        };
        // An error leaves them where they are; the next submission tells (EAGAIN).
        self.unread -= usize::try_from(got).unwrap_or(0).min(self.unread);
    }
}

impl Drop for EventfdSignal {
    fn drop(&mut self) {
        // SAFETY: nobody uses the context any more. Its end cannot fail, and nothing is left to be done if it does.
        let _done = unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::os::fd::AsFd;

    #[test]
    fn a_counter_counts_and_a_full_one_keeps_nobody() {
        let mut signal = EventfdSignal::new().unwrap();
        // Blocking: a write(2) to it would wait for ever once it is full.
        let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let count = || {
            let mut value = [0; 8];
            rustix::io::read(&bell, &mut value).map(|_| u64::from_ne_bytes(value)).unwrap()
        };
        for _ in 0..10 * UNREAD {
            signal.ring(bell.as_fd()).unwrap();
        }
        assert_eq!(count(), 10 * UNREAD as u64);
        rustix::io::write(&bell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        for _ in 0..10 * UNREAD {
            signal.ring(bell.as_fd()).unwrap();
        }
        assert_eq!(count(), u64::MAX);
    }

    #[test]
    fn what_is_no_eventfd_is_refused() {
        let mut signal = EventfdSignal::new().unwrap();
        let (_read, write) = rustix::pipe::pipe().unwrap();
        for _ in 0..10 * UNREAD {
            assert_eq!(signal.ring(write.as_fd()).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        }
    }
}
