//! The library's load, the process's forks, and its exit.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr;
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use fs_carrier::counters::Counts;
use fs_pairs::{CONTROL_VARIABLE, Client, SYSTEM_CONTROL};

use super::{heap, real, threads, wiped};
use crate::{child, confined, process, promotion, set, table, young};

/// The variable with the file to which each process appends its counters at its exit.
const REPORT_VARIABLE: &str = "FASTSOCK_REPORT";

/// Sets how many times a wait yields the processor before it sleeps, instead of spinning.
const YIELDS_VARIABLE: &str = "FASTSOCK_YIELDS";

/// Sets how many data calls in each direction precede a promotion.
const CALLS_VARIABLE: &str = "FASTSOCK_CALLS";

fn number_of(variable: &str) -> Option<u32> {
    std::env::var(variable).ok()?.parse().ok()
}

/// The dynamic loader runs this after the C library's own set-up and before main.
#[cfg_attr(test, allow(dead_code, reason = "a test is not preloaded"))]
extern "C" fn start() {
    real::resolve_all();
    threads::prepare();
    wiped::prepare();
    // SAFETY: functions that stay; there is no owner, as this library is never unloaded.
    unsafe { real::__register_atfork(Some(before_fork), Some(after_fork), Some(in_child), ptr::null_mut::<c_void>()) };
    if let Some(calls) = number_of(CALLS_VARIABLE) {
        process::set_calls_before_offer(calls);
    }
    process::set_pacing(number_of(YIELDS_VARIABLE));
    young::start();
    let path = std::env::var_os(CONTROL_VARIABLE).filter(|path| !path.is_empty());
    let path = path.unwrap_or_else(|| OsString::from(SYSTEM_CONTROL));
    // Without a service if the path is too long for a socket.
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
    // The process has reported before.
    if !confined::is_confined() {
        report();
    }
}

/// Appends the counters of this process to the file that the environment names.
pub(crate) fn report() {
    let Some(path) = std::env::var_os(REPORT_VARIABLE) else { return };
    child::notice_fork();
    let mut open = Counts::default();
    table::for_each(|_, slot| {
        let Some(held) = slot.object.hold() else { return };
        if let Some(socket) = held.socket().filter(|socket| !socket.is_inherited()) {
            open += socket.pair().counts();
        }
        held.release();
    });
    let line = crate::report::line(open);
    // One write for each line, so that lines of several processes do not mix. An error is ignored:
    // there is no other place to report it.
    let file = File::options().append(true).create(true).open(path);
    let _written = file.and_then(|mut file| file.write_all(line.as_bytes()));
}

extern "C" fn before_fork() {
    // Another thread that began the process later would free the locks that this one takes.
    child::notice_fork();
    // Counted before the calls are made, so that other threads defer no more in sets of before, and once more
    // under the locks: the child has sockets and sets that they have begun in between, too.
    process::count_fork();
    set::tell_all();
    lock();
    process::count_fork();
}

/// The signal mask of the thread that forks, guarded by the locks of [`lock`].
struct Mask(UnsafeCell<MaybeUninit<Option<libc::sigset_t>>>);

// SAFETY: only the thread that has the locks uses it.
unsafe impl Sync for Mask {}

static MASK: Mask = Mask(UnsafeCell::new(MaybeUninit::uninit()));

/// No signal handler runs until [`after_fork`]: it may fork, too.
fn lock() {
    let mask = heap::block_signals();
    promotion::lock();
    heap::lock();
    // SAFETY: the locks are held.
    unsafe { (*MASK.0.get()).write(mask) };
}

extern "C" fn after_fork() {
    // SAFETY: the locks are held, and `lock` has written it.
    let mask = unsafe { (*MASK.0.get()).assume_init() };
    heap::unlock();
    promotion::unlock();
    heap::restore_signals(&mask);
}

pub(crate) extern "C" fn in_child() {
    after_fork();
    wiped::wipe();
}

/// Other ways to fork, which call no handler. Counts as `before_fork` does.
pub(crate) fn around_fork(fork: impl FnOnce() -> c_int) -> c_int {
    before_fork();
    let pid = fork();
    if pid == 0 {
        in_child();
    } else {
        after_fork();
    }
    pid
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what `work` returns in a child.
    fn in_new_child(work: impl FnOnce() -> bool) -> bool {
        wiped::prepare();
        // SAFETY: the child calls nothing that another thread of its parent may have been in.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let result = work();
            // SAFETY: it ends the child.
            unsafe { libc::_exit(c_int::from(!result)) };
        }
        let mut status = 0;
        // SAFETY: a child of this process, and a number to write to.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        status == 0
    }

    #[test]
    fn child_that_only_executes_a_program_begins_nothing() {
        assert!(in_new_child(|| {
            let was_new = !wiped::has_begun();
            set::tell_all();
            was_new && !wiped::has_begun()
        }));
    }

    /// Otherwise another thread may begin it while the locks of the fork are held.
    #[test]
    fn child_that_forks_has_begun() {
        assert!(in_new_child(|| {
            let was_new = !wiped::has_begun();
            before_fork();
            let has_begun = wiped::has_begun();
            after_fork();
            was_new && has_begun
        }));
    }
}
