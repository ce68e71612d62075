//! Descriptors, and helpers for all calls.

use crate::program::SLOTS;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// Descriptors in the slots of this process.
static TABLE: [AtomicI32; SLOTS] = [const { AtomicI32::new(-1) }; SLOTS];

/// Number of received signals, by signal.
static CAUGHT: [AtomicU32; 65] = [const { AtomicU32::new(0) }; 65];

/// Descriptors from here on belong to the runner.
pub const FIRST_OWN: i32 = 200;

/// Programs' descriptors are below this.
pub const LAST: i32 = 100;

/// Returns the descriptor in a slot.
pub fn slot(index: i32) -> i32 {
    TABLE.get(index as usize).map_or(-1, |slot| slot.load(Ordering::Relaxed))
}

/// Puts a descriptor into a slot.
pub fn put(index: i32, descriptor: i32) {
    if let Some(slot) = TABLE.get(index as usize) {
        slot.store(descriptor, Ordering::Relaxed);
    }
}

/// Removes and returns the descriptor in a slot: -1 if there is none.
pub fn take(index: i32) -> i32 {
    TABLE.get(index as usize).map_or(-1, |slot| slot.swap(-1, Ordering::SeqCst))
}

/// Puts a descriptor into an empty slot. Returns false if it is not empty.
pub fn put_if_empty(index: i32, descriptor: i32) -> bool {
    let put = |slot: &AtomicI32| slot.compare_exchange(-1, descriptor, Ordering::SeqCst, Ordering::SeqCst).is_ok();
    TABLE.get(index as usize).is_some_and(put)
}

/// Returns all slots, for passing them through exec.
pub fn slots() -> Vec<i32> {
    TABLE.iter().map(|slot| slot.load(Ordering::Relaxed)).collect()
}

/// Closes all descriptors that a program may have left, and forgets them.
pub fn reset() {
    for slot in &TABLE {
        slot.store(-1, Ordering::Relaxed);
    }
    for descriptor in 3..LAST {
        // SAFETY: a number; below `LAST` this process has only the program's descriptors.
        unsafe { libc::close(descriptor) };
    }
    for count in &CAUGHT {
        count.store(0, Ordering::Relaxed);
    }
}

/// Result of a call.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The return value.
    pub value: i64,
    /// Set if `value` is -1.
    pub errno: i32,
}

/// Wraps a call's return value. Must be called at once.
pub fn answer(value: impl Into<i64>) -> Answer {
    let value = value.into();
    // SAFETY: the thread's own errno.
    let errno = if value == -1 { unsafe { *libc::__errno_location() } } else { 0 };
    Answer { value, errno }
}

impl Answer {
    /// Returns true if there was no error.
    pub fn is_ok(self) -> bool {
        self.value >= 0
    }

    /// Returns the value, or the error's name.
    pub fn text(self) -> String {
        if self.value == -1 { errno_name(self.errno) } else { self.value.to_string() }
    }
}

/// Returns the error's name.
pub fn errno_name(errno: i32) -> String {
    let known = match errno {
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::EINTR => "EINTR",
        libc::EIO => "EIO",
        libc::EBADF => "EBADF",
        libc::EAGAIN => "EAGAIN",
        libc::ENOMEM => "ENOMEM",
        libc::EACCES => "EACCES",
        libc::EFAULT => "EFAULT",
        libc::EEXIST => "EEXIST",
        libc::EINVAL => "EINVAL",
        libc::EMFILE => "EMFILE",
        libc::ENOTTY => "ENOTTY",
        libc::ESPIPE => "ESPIPE",
        libc::EPIPE => "EPIPE",
        libc::ELOOP => "ELOOP",
        libc::EDOM => "EDOM",
        libc::ENOTSOCK => "ENOTSOCK",
        libc::EDESTADDRREQ => "EDESTADDRREQ",
        libc::EMSGSIZE => "EMSGSIZE",
        libc::ENOPROTOOPT => "ENOPROTOOPT",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::EAFNOSUPPORT => "EAFNOSUPPORT",
        libc::EADDRINUSE => "EADDRINUSE",
        libc::EADDRNOTAVAIL => "EADDRNOTAVAIL",
        libc::ENETUNREACH => "ENETUNREACH",
        libc::ECONNABORTED => "ECONNABORTED",
        libc::ECONNRESET => "ECONNRESET",
        libc::ENOBUFS => "ENOBUFS",
        libc::EISCONN => "EISCONN",
        libc::ENOTCONN => "ENOTCONN",
        libc::ETIMEDOUT => "ETIMEDOUT",
        libc::ECONNREFUSED => "ECONNREFUSED",
        libc::EALREADY => "EALREADY",
        libc::EINPROGRESS => "EINPROGRESS",
        libc::ENOSYS => "ENOSYS",
        _ => return format!("E{errno}"),
    };
    known.into()
}

/// A call with only numbers as arguments.
macro_rules! numbers {
    ($call:ident($($arg:expr),*)) => {{
        $(let _: i64 = i64::from($arg);)*
        // Where the macro is used unsafe code is denied.
        #[allow(unsafe_code)]
        // SAFETY: the call takes numbers only.
        let result = unsafe { libc::$call($($arg),*) };
        $crate::sys::calls::answer(result)
    }};
}
pub(crate) use numbers;

/// Puts the descriptor that a call made into a slot.
pub fn made(answer: Answer, into: i32) -> String {
    if answer.is_ok() {
        put(into, answer.value as i32);
    }
    answer.text()
}

extern "C" fn caught(signal: i32) {
    if let Some(count) = CAUGHT.get(signal as usize) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Installs a signal handler that counts (0), counts and restarts calls (1), or ignores (2).
pub fn handler(signal: i32, how: i32) -> String {
    // SAFETY: zeros are a valid sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = if how == 2 { libc::SIG_IGN } else { caught as extern "C" fn(i32) as usize };
    action.sa_flags = if how == 1 { libc::SA_RESTART } else { 0 };
    // SAFETY: a valid sigaction, whose handler accesses only an atomic number.
    answer(unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) }).text()
}

/// Returns the number of signals since the last call, by signal.
pub fn signals() -> Vec<(usize, u32)> {
    let count = |(number, count): (usize, &AtomicU32)| {
        let count = count.swap(0, Ordering::Relaxed);
        (count != 0).then_some((number, count))
    };
    CAUGHT.iter().enumerate().filter_map(count).collect()
}

/// Sets RLIMIT_NOFILE's soft limit.
pub fn limit_descriptors(number: i32) -> String {
    let limit = libc::rlimit { rlim_cur: number.clamp(0, 1024) as u64, rlim_max: 4096 };
    // SAFETY: a valid rlimit.
    answer(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }).text()
}
