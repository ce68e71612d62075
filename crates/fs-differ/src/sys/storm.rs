//! Signals at any instant: a timer, handlers that make calls themselves, and children that receive
//! a signal right after their start.
//!
//! Handlers run only in the steps of [`super::traffic`] and in [`brood`] ([`Open`]), which do not
//! allocate: a child forked in the middle of malloc(3) finds it locked, on the kernel too.

pub mod waker;

use super::calls::{errno_name, put_if_empty, slot, take};
use super::{process, progress};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering::SeqCst};

/// Action of the timer's handler; 0 only counts.
static DOES: AtomicI32 = AtomicI32::new(0);
/// The slot of its descriptor.
static WITH: AtomicI32 = AtomicI32::new(-1);
/// Number of running handlers.
static INSIDE: AtomicU32 = AtomicU32::new(0);
/// Number of handlers that have run since the timer was started.
static FIRED: AtomicU32 = AtomicU32::new(0);
/// Remaining number of the timer's signals.
static LEFT: AtomicI32 = AtomicI32::new(0);
/// A timer runs, and was not waited for yet.
static ARMED: AtomicBool = AtomicBool::new(false);
/// Number of bytes that handlers have sent.
static SENT: AtomicU32 = AtomicU32::new(0);
/// The first call of a handler with a result that the kernel never returns: its index in [`CALLS`],
/// and the error.
static WRONG: AtomicI32 = AtomicI32::new(-1);
static WRONG_BY: AtomicI32 = AtomicI32::new(0);
/// Number of signals that a child of [`brood`] has received.
static TOLD: AtomicI32 = AtomicI32::new(0);
/// The timer of timer_create(2); otherwise null.
static TIMER: AtomicPtr<libc::c_void> = AtomicPtr::new(std::ptr::null_mut());
/// The program has threads. Handlers then fork by `_Fork(3)`: the C library's fork(2) takes
/// malloc(3)'s locks, which the interrupted thread may hold.
static THREADS: AtomicBool = AtomicBool::new(false);

/// Calls of handlers, for [`WRONG`].
const CALLS: &[&str] =
    &["getsockname", "getsockopt", "poll", "dup", "close", "write", "send", "fork", "child", "siginfo"];

/// The slots that handlers close.
pub const SPARE: std::ops::Range<i32> = 12..16;

fn mask(how: i32) {
    // SAFETY: zeros are a valid set; a valid set.
    unsafe {
        let mut alarm: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&raw mut alarm, libc::SIGALRM);
        libc::pthread_sigmask(how, &raw const alarm, std::ptr::null_mut());
    }
}

fn shut() {
    mask(libc::SIG_BLOCK);
}

/// Blocks the timer's signal in this thread and in threads that it starts, except while an [`Open`]
/// exists.
pub fn begin(threads: bool) {
    THREADS.store(threads, SeqCst);
    shut();
}

/// While it exists, the timer's handler runs in this thread.
pub struct Open(());

impl Open {
    /// Unblocks the timer's signal.
    pub fn new() -> Open {
        mask(libc::SIG_UNBLOCK);
        Open(())
    }
}

impl Default for Open {
    fn default() -> Open {
        Open::new()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        shut();
    }
}

/// Resets the state in a forked actor: its parent's timer and running handlers are not its own.
pub fn forked() {
    INSIDE.store(0, SeqCst);
    ARMED.store(false, SeqCst);
}

/// Returns the number of handlers that have run.
pub fn fired() -> u32 {
    FIRED.load(SeqCst)
}

fn errno() -> i32 {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() }
}

fn wrong(call: i32) {
    let by = errno();
    if WRONG.compare_exchange(-1, call, SeqCst, SeqCst).is_ok() {
        WRONG_BY.store(by, SeqCst);
    }
}

fn disarm() {
    let timer = TIMER.load(SeqCst);
    // SAFETY: zeros are a time that never comes; a timer that is not deleted. Both calls are
    // async-signal-safe.
    unsafe {
        if timer.is_null() {
            let never: libc::itimerval = std::mem::zeroed();
            libc::setitimer(libc::ITIMER_REAL, &raw const never, std::ptr::null_mut());
        } else {
            let never: libc::itimerspec = std::mem::zeroed();
            libc::timer_settime(timer, 0, &raw const never, std::ptr::null_mut());
        }
    }
}

/// Waits for a child's end. Returns true if it was successful.
pub fn ended_well(child: i32) -> bool {
    ended_with(child, 0)
}

fn ended_with(child: i32, wanted: i32) -> bool {
    let mut status = 0;
    // SAFETY: room for a status.
    while unsafe { libc::waitpid(child, &raw mut status, 0) } == -1 {
        if errno() != libc::EINTR {
            return false;
        }
    }
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == wanted
}

/// posix_spawn(3) of this program, which finds no such descriptor. Returns 0, or the error.
pub fn spawn() -> i32 {
    unsafe extern "C" {
        static environ: *const *mut libc::c_char;
    }
    let words = [c"fs-differ".as_ptr(), c"probe".as_ptr(), c"--".as_ptr(), c"199".as_ptr(), std::ptr::null()];
    let mut child = 0;
    // SAFETY: zero-terminated path and arguments, null-terminated lists, no actions and no
    // attributes.
    let error = unsafe {
        libc::posix_spawn(
            &raw mut child,
            c"/proc/self/exe".as_ptr(),
            std::ptr::null(),
            std::ptr::null(),
            words.as_ptr().cast(),
            environ,
        )
    };
    if error != 0 || ended_with(child, libc::EBADF) { error } else { libc::ECHILD }
}

/// Sends or writes a byte that [`tally`] counts.
fn send_one(descriptor: i32, does: i32) -> bool {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: a byte.
    unsafe {
        match does {
            5 => libc::write(descriptor, c"x".as_ptr().cast(), 1) == 1,
            _ => libc::send(descriptor, c"x".as_ptr().cast(), 1, flags) == 1,
        }
    }
}

unsafe extern "C" {
    fn _Fork() -> libc::pid_t;
}

/// Executes an action of `values::DOES`. All calls are async-signal-safe (fork(2), too, without
/// threads and outside of malloc(3)).
fn react(does: i32, descriptor: i32) {
    match does {
        1 => {
            let mut room: libc::sockaddr_storage;
            let (mut length, mut number, mut size) = (size_of::<libc::sockaddr_storage>() as u32, 0i32, 4u32);
            // SAFETY: room for an address and for a number, and their lengths.
            unsafe {
                room = std::mem::zeroed();
                if libc::getsockname(descriptor, (&raw mut room).cast(), &raw mut length) != 0 {
                    wrong(0);
                }
                let place = (&raw mut number).cast();
                if libc::getsockopt(descriptor, libc::SOL_SOCKET, libc::SO_TYPE, place, &raw mut size) != 0 {
                    wrong(1);
                }
            }
        }
        2 => {
            let mut entry = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
            // SAFETY: one entry.
            if unsafe { libc::poll(&raw mut entry, 1, 0) } < 0 && errno() != libc::EINTR {
                wrong(2);
            }
        }
        3 => {
            // SAFETY: numbers.
            let copy = unsafe { libc::dup(descriptor) };
            if copy < 0 {
                wrong(3);
            // SAFETY: a descriptor of its own.
            } else if unsafe { libc::close(copy) } != 0 {
                wrong(4);
            }
        }
        4 => {
            for spare in SPARE.map(take).filter(|spare| *spare >= 0).take(1) {
                // SAFETY: a descriptor that is not used elsewhere.
                if unsafe { libc::close(spare) } != 0 {
                    wrong(4);
                }
            }
        }
        5 | 6 => {
            if send_one(descriptor, does) {
                SENT.fetch_add(1, SeqCst);
            } else {
                wrong(does);
            }
        }
        7..=10 => {
            // SAFETY: the child makes only async-signal-safe calls, and exits.
            let child = unsafe { if THREADS.load(SeqCst) { _Fork() } else { libc::fork() } };
            if child == 0 {
                let well = match does {
                    // SAFETY: a descriptor of the child.
                    8 => (unsafe { libc::close(descriptor) }) == 0,
                    9 => send_one(descriptor, 6),
                    _ => true,
                };
                process::exit(i32::from(!well));
            }
            if child < 0 {
                wrong(7);
            } else if does != 10 {
                if !ended_well(child) {
                    wrong(8);
                } else if does == 9 {
                    SENT.fetch_add(1, SeqCst);
                }
            }
        }
        _ => {}
    }
}

static WITH_INFO: AtomicBool = AtomicBool::new(false);

extern "C" fn alarm(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    INSIDE.fetch_add(1, SeqCst);
    let before = errno();
    // SAFETY: installed with SA_SIGINFO, so the pointer is valid.
    if WITH_INFO.load(SeqCst) && unsafe { (*info).si_signo } != signal {
        wrong(9);
    }
    let left = LEFT.fetch_sub(1, SeqCst);
    if left == 1 {
        disarm();
    }
    if left > 0 {
        react(DOES.load(SeqCst), slot(WITH.load(SeqCst)));
    }
    FIRED.fetch_add(1, SeqCst);
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() = before };
    INSIDE.fetch_sub(1, SeqCst);
}

/// Action of SIGCHLD's handler, which never forks, since the signal may arrive at any point.
static CHILD_DOES: AtomicI32 = AtomicI32::new(0);
static CHILD_WITH: AtomicI32 = AtomicI32::new(-1);

extern "C" fn child_ended(_: i32) {
    INSIDE.fetch_add(1, SeqCst);
    let before = errno();
    let does = CHILD_DOES.load(SeqCst);
    if (1..5).contains(&does) {
        react(does, slot(CHILD_WITH.load(SeqCst)));
    }
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() = before };
    INSIDE.fetch_sub(1, SeqCst);
}

/// Sets the action of SIGCHLD's handler.
pub fn set_child_reaction(does: i32, with: i32, how: i32) -> String {
    CHILD_WITH.store(with, SeqCst);
    CHILD_DOES.store(does, SeqCst);
    let flags = if how & 1 != 0 { libc::SA_RESTART } else { 0 };
    if install(libc::SIGCHLD, child_ended as extern "C" fn(_) as usize, flags) { "ok".into() } else { "failed".into() }
}

extern "C" fn told(_: i32) {
    TOLD.fetch_add(1, SeqCst);
}

fn install(signal: i32, handler: usize, flags: i32) -> bool {
    // SAFETY: zeros are a valid sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    // SAFETY: a handler that makes only async-signal-safe calls.
    unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) == 0 }
}

/// Sets the action of the timer's handler, the slot of its descriptor, and how it is installed
/// (`values::INSTALLED`).
pub fn set_reaction(does: i32, with: i32, how: i32) -> String {
    WITH.store(with, SeqCst);
    SENT.store(0, SeqCst);
    WRONG.store(-1, SeqCst);
    DOES.store(does, SeqCst);
    WITH_INFO.store(how & 2 != 0, SeqCst);
    let flags = if how & 1 != 0 { libc::SA_RESTART } else { 0 } | if how & 2 != 0 { libc::SA_SIGINFO } else { 0 };
    if install(libc::SIGALRM, alarm as extern "C" fn(_, _, _) as usize, flags) { "ok".into() } else { "failed".into() }
}

/// Starts a timer with this period in microseconds, for at most this many signals.
pub fn start(clock: i32, microseconds: i32, times: i32) -> String {
    FIRED.store(0, SeqCst);
    LEFT.store(times, SeqCst);
    if microseconds <= 0 || times <= 0 {
        return "ok".into();
    }
    let microseconds = i64::from(microseconds.max(50));
    // SAFETY: valid times; an event whose fields are set; room for a timer.
    let begun = unsafe {
        if clock == 0 {
            TIMER.store(std::ptr::null_mut(), SeqCst);
            let time = libc::timeval { tv_sec: microseconds / 1_000_000, tv_usec: microseconds % 1_000_000 };
            let often = libc::itimerval { it_interval: time, it_value: time };
            libc::setitimer(libc::ITIMER_REAL, &raw const often, std::ptr::null_mut())
        } else {
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_signo = libc::SIGALRM;
            event.sigev_notify = if clock == 1 { libc::SIGEV_SIGNAL } else { libc::SIGEV_THREAD_ID };
            event.sigev_notify_thread_id = libc::gettid();
            let mut timer = std::ptr::null_mut();
            let made = libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer);
            TIMER.store(timer, SeqCst);
            let time = libc::timespec { tv_sec: microseconds / 1_000_000, tv_nsec: microseconds % 1_000_000 * 1000 };
            let often = libc::itimerspec { it_interval: time, it_value: time };
            if made == 0 { libc::timer_settime(timer, 0, &raw const often, std::ptr::null_mut()) } else { made }
        }
    };
    ARMED.store(begun == 0, SeqCst);
    if begun == 0 { "ok".into() } else { errno_name(errno()) }
}

/// Waits until the timer has fired at least once, stops it, and waits for running handlers.
pub fn stop() -> String {
    if ARMED.swap(false, SeqCst) {
        let _open = Open::new();
        while FIRED.load(SeqCst) == 0 {
            process::pause(1);
        }
    }
    disarm();
    DOES.store(0, SeqCst);
    while INSIDE.load(SeqCst) != 0 {
        process::pause(1);
    }
    match CALLS.get(WRONG.load(SeqCst) as usize) {
        Some(call) => format!("handler:{call}:{}", errno_name(WRONG_BY.load(SeqCst))),
        None => "ok".into(),
    }
}

/// Receives the bytes that handlers have sent: exactly as many.
pub fn tally(descriptor: i32) -> String {
    let mut byte = [0u8; 1];
    for got in 0..SENT.load(SeqCst) {
        if !process::read_whole(descriptor, &mut byte) {
            return format!("end after {got}");
        }
    }
    let mut entry = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry.
    if unsafe { libc::poll(&raw mut entry, 1, 0) } == 0 { "ok".into() } else { "more".into() }
}

/// Forks children, and sends each a signal (or several of a kind that queues) at once. Each child
/// must have it when it learns by a pipe that it was sent.
pub fn brood(children: i32, signals: i32, rt: bool) -> String {
    let signal = if rt { libc::SIGRTMIN() + 5 } else { libc::SIGUSR2 };
    let signals = signals.clamp(1, 8);
    install(signal, told as extern "C" fn(_) as usize, 0);
    let (read, write) = process::own_pipe();
    let mut lost = 0;
    let mut failed = None;
    {
        let _open = Open::new();
        for _ in 0..children.clamp(0, 200) {
            progress::report();
            let child = process::fork();
            if child.value == 0 {
                let mut byte = [0];
                process::read_whole(read, &mut byte);
                let came = TOLD.load(SeqCst);
                process::exit(i32::from(if rt { came != signals } else { came == 0 }));
            }
            if !child.is_ok() {
                failed = Some(("fork", child.errno));
                break;
            }
            let child = child.value as i32;
            for _ in 0..signals {
                let sent = process::kill(child, signal);
                if !sent.is_ok() {
                    failed = Some(("kill", sent.errno));
                }
            }
            process::write_whole(write, b"x");
            lost += u32::from(!ended_well(child));
        }
    }
    process::close(read);
    process::close(write);
    match failed {
        Some((call, errno)) => format!("{call}:{}", errno_name(errno)),
        None if lost == 0 => "ok".into(),
        None => format!("lost {lost}"),
    }
}

/// Puts copies of a descriptor into the slots that handlers close.
pub fn add_spares(descriptor: i32) -> Result<(), i32> {
    for place in SPARE.filter(|place| slot(*place) < 0) {
        // SAFETY: numbers.
        let copy = unsafe { libc::dup(descriptor) };
        if copy < 0 {
            return Err(errno());
        }
        if !put_if_empty(place, copy) {
            process::close(copy);
        }
    }
    Ok(())
}
