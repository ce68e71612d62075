//! A bound for closing what somebody else has filled.
//!
//! The last close(2) of a TCP socket with SO_LINGER waits for its peer, in the thread that closes, O_NONBLOCK or not; so
//! does that of a Unix socket in whose queue such a socket lies. Whoever passes us one chooses how long. A look at the
//! option first proves nothing, for he can set it between the look and the close. But a signal ends that wait
//! (net/core/stream.c `sk_stream_wait_close`), and the socket lingers on without us. So a timer sends one, over and over
//! while it is armed: one that came before the wait began has done nothing.

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;
use std::time::Duration;

/// See the module. For the thread that makes it, and only there.
#[derive(Debug)]
pub(crate) struct Alarm {
    timer: libc::timer_t,
    every: libc::timespec,
    _of_this_thread: PhantomData<*const ()>,
}

extern "C" fn nothing(_signal: libc::c_int) {}

impl Alarm {
    /// A timer that interrupts this thread's waits each time that `every` (less than a second) has passed.
    ///
    /// # Errors
    ///
    /// As sigaction(2) and timer_create(2).
    pub(crate) fn new(every: Duration) -> io::Result<Self> {
        let signal = libc::SIGRTMIN();
        // SAFETY: all zeros is a valid sigaction: no flags, nothing blocked.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
        // What can be begun again is.
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: `action` is whole, and its handler, which does nothing, may run at any point.
        if unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: all zeros is a valid sigevent.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal;
        // SAFETY: gettid(2) touches no memory.
        event.sigev_notify_thread_id = unsafe { libc::gettid() };
        let mut timer = MaybeUninit::uninit();
        // SAFETY: both live for the call.
        if unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, timer.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let every = libc::timespec { tv_sec: 0, tv_nsec: every.subsec_nanos().into() };
        // SAFETY: timer_create has written it.
        Ok(Self { timer: unsafe { timer.assume_init() }, every, _of_this_thread: PhantomData })
    }

    /// From now on no wait takes much longer than the interval, until [`Self::disarm`].
    pub(crate) fn arm(&self) {
        self.set(self.every);
    }

    /// Waits are as long as they are again.
    pub(crate) fn disarm(&self) {
        self.set(libc::timespec { tv_sec: 0, tv_nsec: 0 });
    }

    fn set(&self, every: libc::timespec) {
        let times = libc::itimerspec { it_interval: every, it_value: every };
        // SAFETY: the timer is ours until it is dropped; the times are in range, so that it cannot fail.
        unsafe { libc::timer_settime(self.timer, 0, &raw const times, ptr::null_mut()) };
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        // SAFETY: it is ours, and not used after this.
        unsafe { libc::timer_delete(self.timer) };
    }
}
