//! The disposition of SIGPIPE that this process was started with.

#![allow(unsafe_code)]

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// True if SIGPIPE was ignored when this process started, as in most units of systemd.
static WAS_IGNORED: AtomicBool = AtomicBool::new(false);

/// Rust's runtime ignores SIGPIPE before `main`.
extern "C" fn record() {
    let mut before = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: `before` is writable, and no new action is set.
    if unsafe { libc::sigaction(libc::SIGPIPE, std::ptr::null(), before.as_mut_ptr()) } == 0 {
        // SAFETY: the call has written it, and zeroes are a valid value too.
        let ignored = unsafe { before.assume_init() }.sa_sigaction == libc::SIG_IGN;
        WAS_IGNORED.store(ignored, Ordering::Relaxed);
    }
}

// SAFETY: the C library calls the functions of this section before `main`, and `record` needs
// nothing of Rust's runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static RECORD: extern "C" fn() = record;

/// Makes `command` start its program with the disposition that this process was started with.
/// [`Command`] sets the default one.
pub(crate) fn inherit(command: &mut Command) {
    if WAS_IGNORED.load(Ordering::Relaxed) {
        let ignore = || {
            // SAFETY: signal(2) may be called between fork and exec.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
            Ok(())
        };
        // SAFETY: `ignore` makes one system call, and neither allocates nor locks.
        unsafe { command.pre_exec(ignore) };
    }
}
