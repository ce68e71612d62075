//! A timer that wakes a call once, by a signal that only the call's own mask permits.

use super::install;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

extern "C" fn wakes(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: installed with SA_SIGINFO, and sent by the timer of [`Waker`], with a pointer to a
    // flag that is alive.
    unsafe {
        if let Some(flag) = (*info).si_value().sival_ptr.cast::<AtomicBool>().as_ref() {
            flag.store(true, SeqCst);
        }
    }
}

/// A timer that fires once, at this thread, by a blocked signal: it wakes a call whose own mask
/// permits the signal.
pub struct Waker {
    timer: libc::timer_t,
    /// It has fired.
    pub flag: Box<AtomicBool>,
    before: libc::sigset_t,
}

impl Waker {
    /// Makes a timer that is not started.
    pub fn new() -> Option<Waker> {
        install(libc::SIGUSR1, wakes as extern "C" fn(_, _, _) as usize, libc::SA_SIGINFO);
        let flag = Box::new(AtomicBool::new(false));
        // SAFETY: zeros are valid; an event whose fields are set; room for a timer and for sets.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigaddset(&raw mut set, libc::SIGUSR1);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before);
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_signo = libc::SIGUSR1;
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_notify_thread_id = libc::gettid();
            event.sigev_value.sival_ptr = (&raw const *flag).cast_mut().cast();
            let mut timer = std::ptr::null_mut();
            let made = libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer);
            (made == 0).then_some(Waker { timer, flag, before })
        }
    }

    /// Starts it with this many nanoseconds.
    pub fn set(&self, nanoseconds: i64) {
        self.flag.store(false, SeqCst);
        // SAFETY: zeros are a valid time; a timer that is not deleted.
        unsafe {
            let mut once: libc::itimerspec = std::mem::zeroed();
            once.it_value.tv_nsec = nanoseconds.clamp(1, 999_999_999);
            libc::timer_settime(self.timer, 0, &raw const once, std::ptr::null_mut());
        }
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        // SAFETY: a timer that is deleted once, and has fired or never will; a set that was read.
        unsafe {
            libc::timer_delete(self.timer);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut());
        }
    }
}

/// Returns an empty set of signals.
pub fn no_signals() -> libc::sigset_t {
    // SAFETY: zeros are an empty set.
    unsafe { std::mem::zeroed() }
}
