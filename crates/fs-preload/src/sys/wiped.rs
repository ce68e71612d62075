//! A page that the kernel fills with zeros in a child of fork(2).

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::ptr;

use rustix::mm::Advice;

use super::errno;
use super::guarded::without_signals;
use super::heap::map_zeros;
use super::threads::wait_for;

/// The process has begun. 0: it is a new child.
const BEGUN: u32 = 1;
/// A thread is beginning the process.
const BEGINS: u32 = 2;

/// Zeros in a new child.
struct Page {
    state: AtomicU32,
    /// The thread of [`BEGINS`], by the address of its errno. Its number would need a system call.
    thread: AtomicUsize,
}

/// Used if no page could be mapped.
static NEVER: Page = Page { state: AtomicU32::new(BEGUN), thread: AtomicUsize::new(0) };
static PAGE: AtomicPtr<Page> = AtomicPtr::new(ptr::from_ref(&NEVER).cast_mut());

/// Makes the page. Where the kernel refuses (before 4.14), the handler of pthread_atfork(3) alone notices children.
pub(crate) fn prepare() {
    const SIZE: usize = 4096;
    let Some(mapped) = map_zeros(SIZE) else { return };
    // SAFETY: the page was mapped just now.
    if unsafe { rustix::mm::madvise(mapped.cast(), SIZE, Advice::LinuxWipeOnFork) }.is_ok() {
        PAGE.store(mapped.cast(), Ordering::Relaxed);
        page().state.store(BEGUN, Ordering::Relaxed);
    }
}

fn page() -> &'static Page {
    // SAFETY: `NEVER`, or a page that stays mapped, in which zeros are valid.
    unsafe { &*PAGE.load(Ordering::Relaxed) }
}

/// Returns false in a child that has not called [`begin`] yet, or is in it.
#[inline]
pub(crate) fn has_begun() -> bool {
    page().state.load(Ordering::Acquire) == BEGUN
}

/// Runs `work` in a new child, once. Other threads, which may make their first calls at the same time, wait for its
/// end; calls within `work` do not.
#[cold]
pub(crate) fn begin(work: impl FnOnce()) {
    let Page { state, thread } = page();
    // A handler of this thread would find the work half done.
    without_signals(|| match state.compare_exchange(0, BEGINS, Ordering::Acquire, Ordering::Acquire) {
        Ok(_) => {
            thread.store(errno::address(), Ordering::Relaxed);
            work();
            thread.store(0, Ordering::Relaxed);
            state.store(BEGUN, Ordering::Release);
        }
        Err(BEGINS) if thread.load(Ordering::Relaxed) == errno::address() => {}
        Err(_) => wait_for(has_begun),
    });
}

/// For a child whose page could not be wiped.
pub(crate) fn wipe() {
    page().thread.store(0, Ordering::Relaxed);
    page().state.store(0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicBool;
    use std::sync::Barrier;
    use std::time::Duration;

    #[test]
    fn threads_of_a_new_child_wait_until_it_has_begun() {
        static HAS_WORKED: AtomicBool = AtomicBool::new(false);
        let start = Barrier::new(4);
        wipe();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    start.wait();
                    begin(|| {
                        begin(|| panic!("twice"));
                        std::thread::sleep(Duration::from_millis(20));
                        assert!(!has_begun() && !HAS_WORKED.swap(true, Ordering::Relaxed));
                    });
                    assert!(has_begun() && HAS_WORKED.load(Ordering::Relaxed));
                });
            }
        });
    }
}
