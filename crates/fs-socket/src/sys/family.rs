//! A page that a process shares with those that it forks: locks between them that guard what the kernel does for them.

use core::{
    ptr,
    sync::atomic::{
        AtomicPtr, AtomicU32,
        Ordering::{AcqRel, Acquire, Relaxed, Release},
    },
};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Lock words.
const WORDS: usize = 4096;
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// Maps the page, if it is not: before the first fork whose child is to share it.
pub fn prepare() {
    if !PAGE.load(Acquire).is_null() {
        return;
    }
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
    // SAFETY: a new mapping, wherever the kernel puts it.
    let Ok(new) = (unsafe { mmap_anonymous(ptr::null_mut(), WORDS * 4, prot, flags) }) else { return };
    if PAGE.compare_exchange(ptr::null_mut(), new.cast(), AcqRel, Relaxed).is_err() {
        // SAFETY: mapped above and seen by nobody.
        let _ = unsafe { munmap(new, WORDS * 4) };
    }
}

/// The lock word of `place`; `None`: no page.
pub fn word(place: usize) -> Option<&'static AtomicU32> {
    let page = PAGE.load(Acquire);
    if page.is_null() {
        return None;
    }
    // SAFETY: the page maps `WORDS` words for ever.
    Some(unsafe { &*page.add(place % WORDS) })
}

/// A held lock.
pub struct Held(Option<&'static AtomicU32>);

/// Takes the lock of `place` for some system calls that do not wait. Whoever died in the middle of them is not waited
/// for: after 20 ms it is taken nevertheless.
pub fn lock(place: usize) -> Held {
    let word = word(place);
    if let Some(word) = word {
        let mut rounds = 0;
        while word.compare_exchange(0, 1, Acquire, Relaxed).is_err() && rounds < 600 {
            rounds += 1;
            crate::descriptor::table::pause(rounds);
        }
    }
    Held(word)
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(word) = self.0 {
            word.store(0, Release);
        }
    }
}
