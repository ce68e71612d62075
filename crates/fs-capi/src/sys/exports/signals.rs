//! Signal handlers: run from a function of ours, which knows that one runs and whether it has SA_RESTART. Jumps out of them.
//!
//! The kernel's action has that function in place of the application's handler, which stands here; all else of the action is as
//! it was given. Which of the two functions says whether it has SA_RESTART. Signals of the processor's own making (SIGSEGV
//! and its kin) are left alone: they do not come in the middle of a wait.

use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering::Relaxed};

use libc::{SA_RESETHAND, SA_RESTART, SA_SIGINFO, SIG_DFL, SIG_ERR, SIG_IGN, c_int, c_void, sighandler_t, siginfo_t};

use crate::sys::real;

/// Numbers of signals and one more.
const COUNT: usize = 65;
/// The application's handlers.
static HANDLERS: [AtomicUsize; COUNT] = [const { AtomicUsize::new(0) }; COUNT];

/// The flags that they were installed with.
static FLAGS: [AtomicI32; COUNT] = [const { AtomicI32::new(0) }; COUNT];

/// As the kernel calls it. One that was installed without SA_SIGINFO looks at the first argument only.
type Handler = unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void);

/// The place of a signal whose handlers are run from here.
fn place(signal: c_int) -> Option<&'static AtomicUsize> {
    match signal {
        libc::SIGILL | libc::SIGTRAP | libc::SIGABRT | libc::SIGBUS | libc::SIGFPE | libc::SIGSEGV | libc::SIGSYS => {
            None
        }
        _ => HANDLERS.get(usize::try_from(signal).ok()?),
    }
}

/// # Safety
/// As a handler of this signal.
unsafe extern "C-unwind" fn run_restarting(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: by contract.
    unsafe { run(signal, info, context, true) }
}

/// # Safety
/// As a handler of this signal.
unsafe extern "C-unwind" fn run_ending(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: by contract.
    unsafe { run(signal, info, context, false) }
}

/// # Safety
/// As a handler of this signal.
unsafe fn run(signal: c_int, info: *mut siginfo_t, context: *mut c_void, restarts: bool) {
    let handler = place(signal).map_or(0, |place| place.load(Relaxed));
    if handler <= SIG_IGN {
        return;
    }
    let flags = FLAGS.get(signal as usize).map_or(0, |flags| flags.load(Relaxed));
    // One that was installed for once is not again.
    if flags & SA_RESETHAND == 0 {
        // SAFETY: with SA_SIGINFO the kernel has written a `siginfo_t`, which is as long and aligned for words.
        let info = (flags & SA_SIGINFO != 0).then(|| unsafe { info.cast::<[u64; 16]>().read() });
        if fs_socket::defer(signal, info) {
            return;
        }
    }
    let depth = fs_socket::handler_begins(restarts);
    // SAFETY: what the application has given as this signal's handler.
    unsafe { core::mem::transmute::<usize, Handler>(handler)(signal, info, context) };
    fs_socket::handler_ends(depth);
}

/// What the kernel is told.
fn runner(flags: c_int) -> sighandler_t {
    let runner: Handler = if flags & SA_RESTART != 0 { run_restarting } else { run_ending };
    runner as sighandler_t
}

fn is_runner(handler: sighandler_t) -> bool {
    handler == runner(0) || handler == runner(SA_RESTART)
}

/// Neither a function of the application's nor one to be run from here.
fn is_plain(handler: sighandler_t) -> bool {
    matches!(handler, SIG_DFL | SIG_IGN | SIG_ERR) || is_runner(handler)
}

define! {
    /// sigaction(2).
    fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int = act(signal, new, old);
    /// The C library's other name.
    fn __sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int =
        act(signal, new, old);
    /// signal(2), with SA_RESTART unless siginterrupt(3) was called.
    fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t = set(signal, handler, |h| real::signal(signal, h));
    /// The C library's other name.
    fn bsd_signal(signal: c_int, handler: sighandler_t) -> sighandler_t = self::signal(signal, handler);
    /// The C library's other name.
    fn ssignal(signal: c_int, handler: sighandler_t) -> sighandler_t = self::signal(signal, handler);
    /// signal of System V: without SA_RESTART.
    fn __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t =
        set(signal, handler, |h| real::__sysv_signal(signal, h));
    /// The C library's other name.
    fn sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t = __sysv_signal(signal, handler);
    /// sigset(3).
    fn sigset(signal: c_int, handler: sighandler_t) -> sighandler_t = {
        /// The signal is blocked, its handler stays.
        const SIG_HOLD: sighandler_t = 2;
        if handler == SIG_HOLD {
            let before = real::sigset(signal, handler);
            if is_runner(before) { given(signal) } else { before }
        } else {
            set(signal, handler, |h| real::sigset(signal, h))
        }
    };
    /// siginterrupt(3).
    fn siginterrupt(signal: c_int, flag: c_int) -> c_int = {
        let answer = real::siginterrupt(signal, flag);
        refit(signal);
        answer
    };
}

define! {
    /// longjmp(3).
    fn longjmp(place: *mut c_void, value: c_int) -> () = {
        fs_socket::jumped();
        real::longjmp(place, value)
    };
    /// The C library's other name.
    fn _longjmp(place: *mut c_void, value: c_int) -> () = {
        fs_socket::jumped();
        real::_longjmp(place, value)
    };
    /// siglongjmp(3).
    fn siglongjmp(place: *mut c_void, value: c_int) -> () = {
        fs_socket::jumped();
        real::siglongjmp(place, value)
    };
    /// longjmp of _FORTIFY_SOURCE.
    fn __longjmp_chk(place: *mut c_void, value: c_int) -> () = {
        fs_socket::jumped();
        real::__longjmp_chk(place, value)
    };
}

fn record_flags(signal: c_int, flags: c_int) {
    if flags & SA_RESTART == 0 {
        fs_socket::runs_handlers(runner(0));
    }
    if let Some(place) = FLAGS.get(signal as usize) {
        place.store(flags, Relaxed);
    }
}

/// The handler as the application gave it.
fn given(signal: c_int) -> sighandler_t {
    place(signal).map_or(SIG_DFL, |place| place.load(Relaxed))
}

/// # Safety
/// As sigaction(2).
unsafe fn act(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    let before = given(signal);
    let mut changed = MaybeUninit::<libc::sigaction>::uninit();
    let mut new = new;
    // SAFETY: by contract.
    if let (Some(place), Some(action)) = (place(signal), unsafe { new.as_ref() })
        && !is_plain(action.sa_sigaction)
    {
        // Before the kernel knows: the old action may run the new handler for a moment, never none.
        place.store(action.sa_sigaction, Relaxed);
        record_flags(signal, action.sa_flags);
        new = changed.write(libc::sigaction { sa_sigaction: runner(action.sa_flags), ..*action });
    }
    // SAFETY: by contract, the action in place of what it was made of.
    let answer = unsafe { real::sigaction(signal, new, old) };
    if answer != 0 {
        if let Some(place) = place(signal) {
            place.store(before, Relaxed);
        }
        return answer;
    }
    // SAFETY: by contract; the C library has just written it.
    if let Some(old) = unsafe { old.as_mut() }.filter(|old| is_runner(old.sa_sigaction)) {
        old.sa_sigaction = before;
    }
    answer
}

/// The functions that take a handler and answer the one before.
fn set(signal: c_int, handler: sighandler_t, set: impl FnOnce(sighandler_t) -> sighandler_t) -> sighandler_t {
    let before = given(signal);
    let of = place(signal).filter(|_| !is_plain(handler));
    if let Some(place) = of {
        place.store(handler, Relaxed);
    }
    let answer = set(if of.is_some() { runner(SA_RESTART) } else { handler });
    match of {
        Some(place) if answer == SIG_ERR => place.store(before, Relaxed),
        Some(_) => refit(signal),
        None => {}
    }
    if is_runner(answer) { before } else { answer }
}

/// Has the kernel call the function that fits the flags, which it alone knows.
fn refit(signal: c_int) {
    let mut now = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: the C library fills the action in.
    let mut now = unsafe {
        if real::sigaction(signal, ptr::null(), now.as_mut_ptr()) != 0 {
            return;
        }
        now.assume_init()
    };
    record_flags(signal, now.sa_flags);
    let fits = runner(now.sa_flags);
    if is_runner(now.sa_sigaction) && now.sa_sigaction != fits {
        now.sa_sigaction = fits;
        // SAFETY: the action as it is, but for the function.
        unsafe { real::sigaction(signal, &raw const now, ptr::null_mut()) };
    }
}
