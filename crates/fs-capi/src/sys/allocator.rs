//! Where this library's own memory comes from: malloc(3) of the application, but not while our handlers of pthread_atfork(3) run.
//!
//! They are registered first (`super::atfork`), so before a fork they are the last to run: behind those of the application's own
//! allocator (jemalloc), which holds all of its locks then, and in the child and the parent before those that let them go. What is
//! allocated meanwhile comes from a pool, and what is freed is freed afterwards.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::{Cell, UnsafeCell};
use core::ptr;
use core::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Relaxed},
};
use std::alloc::System;

struct Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// What a fork allocates whose handlers have changed sockets is some KiB, and a child keeps it. More: addresses. Less: of children of
/// children of children one finds it used up, and asks malloc(3).
const SIZE: usize = 1 << 20;

#[repr(C, align(4096))]
struct Pool(UnsafeCell<[u8; SIZE]>);

// SAFETY: each byte belongs to whom [`take`] has given it to.
unsafe impl Sync for Pool {}

static POOL: Pool = Pool(UnsafeCell::new([0; SIZE]));
/// Blocks in use << 32 | bytes that were given out since there were none.
static USED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// This thread is in one of our handlers.
    static HELD: Cell<bool> = const { Cell::new(false) };
    /// What is to be freed, each with the address of the next one in it.
    static LATER: Cell<*mut u8> = const { Cell::new(ptr::null_mut()) };
}

fn is_held() -> bool {
    // Gone at a thread's end, where it forks no more.
    HELD.try_with(Cell::get).unwrap_or(false)
}

/// Runs a handler.
pub(super) fn without_malloc(work: impl FnOnce()) {
    HELD.set(true);
    work();
    HELD.set(false);
}

/// In the parent, when all handlers have run: the allocator's are among them.
pub(super) fn free_left() {
    let mut next = LATER.replace(ptr::null_mut());
    while !next.is_null() {
        // SAFETY: [`Allocator::dealloc`] has put it there, into a block that is nobody's.
        let after = unsafe { next.cast::<*mut u8>().read_unaligned() };
        // SAFETY: it came from `System`, which looks at no layout.
        unsafe { System.dealloc(next, Layout::new::<*mut u8>()) };
        next = after;
    }
}

fn take(layout: Layout) -> Option<*mut u8> {
    let mut used = USED.load(Relaxed);
    loop {
        let end = (used as u32 as usize).checked_next_multiple_of(layout.align())?.checked_add(layout.size())?;
        if end > SIZE || layout.align() > 4096 {
            return None;
        }
        match USED.compare_exchange_weak(used, ((used >> 32) + 1) << 32 | end as u64, AcqRel, Relaxed) {
            Ok(_) => return Some(POOL.0.get().cast::<u8>().wrapping_add(end - layout.size())),
            Err(now) => used = now,
        }
    }
}

fn give_back() {
    let less = |used: u64| if used >> 32 <= 1 { 0 } else { used - (1 << 32) };
    // It answers always.
    let _before = USED.fetch_update(AcqRel, Relaxed, |used| Some(less(used)));
}

fn is_of_pool(block: *mut u8) -> bool {
    let begin = POOL.0.get() as usize;
    (begin..begin + SIZE).contains(&(block as usize))
}

// SAFETY: a block is of `System`, or of the pool and of nobody else until it is given back.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_held()
            && let Some(block) = take(layout)
        {
            return block;
        }
        // SAFETY: by contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if is_of_pool(block) {
            give_back();
        } else if !is_held() {
            // SAFETY: by contract; it is `System`'s.
            unsafe { System.dealloc(block, layout) };
        } else if layout.size() >= size_of::<*mut u8>() {
            let next = LATER.replace(block);
            // SAFETY: it is nobody's any more, and large enough.
            unsafe { block.cast::<*mut u8>().write_unaligned(next) };
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !is_of_pool(block) && !is_held() {
            // SAFETY: by contract; it is `System`'s.
            return unsafe { System.realloc(block, layout, size) };
        }
        // SAFETY: by contract `size` makes a layout with this alignment.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: by contract its size is not 0.
        let new = unsafe { self.alloc(wanted) };
        if !new.is_null() {
            // SAFETY: both are blocks of so many bytes at least, and different ones.
            unsafe { ptr::copy_nonoverlapping(block, new, layout.size().min(size)) };
            // SAFETY: by contract.
            unsafe { self.dealloc(block, layout) };
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_handler_allocates_is_of_the_pool_and_what_it_frees_is_freed_afterwards() {
        let before = vec![1_u8; 100];
        let mut during = Vec::new();
        without_malloc(|| {
            during = (0..50_u64).collect::<Vec<_>>();
            during.extend(50..100);
            drop(before);
        });
        assert!(is_of_pool(during.as_mut_ptr().cast()) && during.iter().copied().eq(0..100));
        assert!(!LATER.get().is_null());
        free_left();
        assert!(LATER.get().is_null());
        // Once more after the fork, it is malloc's.
        during.extend(100..10_000);
        assert!(!is_of_pool(during.as_mut_ptr().cast()) && during.iter().copied().eq(0..10_000));
        assert_eq!(USED.load(Relaxed), 0, "the pool is empty, and begins anew");
        without_malloc(|| drop(vec![0_u8; SIZE + 1]));
        free_left();
    }
}
