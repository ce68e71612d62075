//! When the library is loaded, when the process forks, and when it ends.

use core::ffi::{c_int, c_void};
use core::ptr;
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use fs_pairs::Client;

use super::{heap, real, threads, wiped};
use crate::{process, promotion, report, set};

/// Names the daemon's control socket. The match service's is next to it.
const CONTROL_VARIABLE: &str = "FASTSOCK_CONTROL";
/// The system's daemon.
const SYSTEM_CONTROL: &str = "/run/fastsock/control.sock";
/// Names a file to which each process appends its counters at its end.
const REPORT_VARIABLE: &str = "FASTSOCK_REPORT";

/// Sets how many times a wait yields the processor before it sleeps, instead of spinning.
const YIELDS_VARIABLE: &str = "FASTSOCK_YIELDS";

/// Run by the dynamic loader: after the C library's own set-up, before main.
#[cfg_attr(test, allow(dead_code, reason = "a test is not preloaded"))]
extern "C" fn start() {
    real::resolve_all();
    threads::prepare();
    wiped::prepare();
    // SAFETY: functions that stay; there is no owner, as this library is never unloaded.
    unsafe { real::__register_atfork(Some(before_fork), Some(after_fork), Some(in_child), ptr::null_mut::<c_void>()) };
    promotion::set_pacing(std::env::var(YIELDS_VARIABLE).ok().and_then(|yields| yields.parse().ok()));
    let path = std::env::var_os(CONTROL_VARIABLE).filter(|path| !path.is_empty());
    let mut path = path.unwrap_or_else(|| OsString::from(SYSTEM_CONTROL));
    path.push(".pairs");
    // A path that is too long for a socket: there is no service.
    if let Ok(client) = Client::new(&PathBuf::from(path)) {
        promotion::start(client);
    }
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

/// Run by exit(3).
pub(crate) extern "C" fn end() {
    let Some(path) = std::env::var_os(REPORT_VARIABLE) else { return };
    process::notice_fork();
    let line = report::line();
    // One write, so that lines of several processes do not mix. No file: nobody reads it.
    let file = File::options().append(true).create(true).open(path);
    let _written = file.and_then(|mut file| file.write_all(line.as_bytes()));
}

extern "C" fn before_fork() {
    set::tell_all();
    lock();
    process::count_fork();
}

fn lock() {
    promotion::lock();
    heap::lock();
}

extern "C" fn after_fork() {
    heap::unlock();
    promotion::unlock();
}

pub(crate) extern "C" fn in_child() {
    after_fork();
    wiped::wipe();
}

/// Another way to fork, by which no handler is called.
pub(crate) fn around_fork(fork: impl FnOnce() -> c_int) -> c_int {
    process::count_fork();
    around_vfork(fork)
}

/// A fork whose child does nothing but exec(2): what exec does not close was left to the kernel, and all else keeps one holder.
pub(crate) fn around_vfork(fork: impl FnOnce() -> c_int) -> c_int {
    set::tell_all();
    lock();
    let pid = fork();
    if pid == 0 {
        in_child();
    } else {
        after_fork();
    }
    pid
}
