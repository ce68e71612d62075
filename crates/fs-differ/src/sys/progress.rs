//! A counter of all actors' progress, in memory that they share with the runner.

use super::process;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering::SeqCst};

/// Memory shared by a runner and its actors: a counter of their progress.
static PROGRESS: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());
/// The file of [`PROGRESS`], for an actor that calls exec.
static PROGRESS_FILE: AtomicI32 = AtomicI32::new(-1);

/// Makes actors report their progress from now on. Called by the runner.
pub fn share() {
    if PROGRESS.load(SeqCst).is_null() {
        map(process::keep_text(&"\0".repeat(4096)));
    }
}

/// Maps the runner's memory after exec.
pub fn map(file: i32) {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping that is never removed, of a file with a page.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), 4096, access, kind, file, 0) };
    if page != libc::MAP_FAILED {
        PROGRESS_FILE.store(file, SeqCst);
        PROGRESS.store(page.cast(), SeqCst);
    }
}

/// Returns the file of the memory for progress.
pub fn file() -> i32 {
    PROGRESS_FILE.load(SeqCst)
}

fn counter() -> Option<&'static AtomicU32> {
    // SAFETY: null, or a page of zeros that is never removed.
    unsafe { PROGRESS.load(SeqCst).as_ref() }
}

/// Returns the progress of all actors.
pub fn total() -> u32 {
    counter().map_or(0, |count| count.load(SeqCst))
}

/// Reports progress of this actor.
pub fn report() {
    if let Some(count) = counter() {
        count.fetch_add(1, SeqCst);
    }
}
