//! A word that the kernel changes when the thread that holds it ends, however it ends: a robust futex.
//!
//! exit(2) walks the thread's list of them (Documentation/locking/robust-futex-ABI.rst), puts FUTEX_OWNER_DIED into each word
//! that still has the thread's number, and wakes one sleeper where FUTEX_WAITERS is set.

use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use fs_shm::pages::DirectoryPage;

/// linux/futex.h `struct robust_list`.
#[repr(C)]
struct Entry {
    next: *mut Entry,
}

/// linux/futex.h `struct robust_list_head`.
#[repr(C)]
struct Head {
    list: Entry,
    futex_offset: libc::c_long,
    pending: *mut Entry,
}

/// This thread holds the word from now on. It takes the place of the C library's list of robust mutexes, of which this
/// program has none. Where the kernel does not do it the word stays 0.
pub(crate) fn hold(word: &'static AtomicU32) {
    // Read when the thread has ended, with its stack gone: kept for good.
    let entry: *mut Entry = Box::leak(Box::new(Entry { next: ptr::null_mut() }));
    let futex_offset = (word.as_ptr() as libc::c_long).wrapping_sub(entry as libc::c_long);
    let head: *mut Head =
        Box::leak(Box::new(Head { list: Entry { next: entry }, futex_offset, pending: ptr::null_mut() }));
    // SAFETY: both were made above, and nobody else knows them yet. A list of one entry that ends at its head.
    unsafe { (*entry).next = &raw mut (*head).list };
    // SAFETY: touches no memory.
    let thread = unsafe { libc::gettid() }.cast_unsigned();
    word.store(DirectoryPage::held_by(thread), Ordering::SeqCst);
    // SAFETY: head, entry and word live as long as the process; the kernel writes to the word only, an atomic.
    let done = unsafe { libc::syscall(libc::SYS_set_robust_list, head, size_of::<Head>()) };
    if done != 0 {
        word.store(0, Ordering::SeqCst);
    }
}
