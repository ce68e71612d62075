//! The library's own memory. malloc(3) cannot be used: a data call in a signal handler must not
//! enter it, and it may be the application's own.
//!
//! Sizes are powers of two with a free list each; memory is taken from the kernel in pieces of
//! [`PIECE`] and never given back. All of it happens under one spin lock with signals blocked. The
//! library allocates at a promotion, in epoll_ctl(2) and for long arrays of poll(2).

use core::alloc::{GlobalAlloc, Layout};
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

use super::threads::wait_for;
use crate::confined;

struct Heap;

#[global_allocator]
static HEAP: Heap = Heap;

/// The size of each request to the kernel.
const PIECE: usize = 256 << 10;
/// The smallest block.
const MIN_SHIFT: u32 = 4;
/// Blocks from this size on are mappings of their own.
const OWN_MAPPING: usize = 64 << 10;
const CLASSES: usize = 16;

static LOCK: AtomicBool = AtomicBool::new(false);
static FREE: [AtomicPtr<u8>; CLASSES] = [const { AtomicPtr::new(ptr::null_mut()) }; CLASSES];
static NEXT: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
static LEFT: AtomicUsize = AtomicUsize::new(0);
/// A piece for requests that the kernel refuses. An allocation that fails would end the program.
static SPARE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

/// Maps memory of zeros, or nothing.
pub(crate) fn map_zeros(bytes: usize) -> Option<*mut u8> {
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: a new mapping at a place of the kernel's choice.
    unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, prot, flags) }.ok().map(<*mut _>::cast)
}

/// Returns true if memory for a promotion or a new set is there, at the program's limit of address
/// space too (RLIMIT_AS, vm.overcommit_memory 2). Without it, the kernel has to carry.
pub(crate) fn has_spare() -> bool {
    if !SPARE.load(Ordering::Relaxed).is_null() {
        return true;
    }
    let Some(piece) = map_zeros(PIECE) else { return false };
    if SPARE.compare_exchange(ptr::null_mut(), piece, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        unmap(piece, PIECE);
    }
    true
}

/// Maps memory of zeros, or takes the spare piece.
fn map_or_spare(bytes: usize) -> Option<*mut u8> {
    map_zeros(bytes).or_else(|| take_spare(bytes, unmap))
}

/// Takes whole pages of the spare piece. The rest is freed by `unmap`, because the owner of the
/// pages will unmap only these.
fn take_spare(bytes: usize, unmap: impl FnOnce(*mut u8, usize)) -> Option<*mut u8> {
    let rest = PIECE.checked_sub(bytes)?;
    let spare = SPARE.swap(ptr::null_mut(), Ordering::AcqRel);
    if spare.is_null() {
        return None;
    }
    if rest > 0 {
        unmap(spare.wrapping_add(bytes), rest);
    }
    Some(spare)
}

/// Unmaps memory that [`map_zeros`] returned, and that no other thread has seen.
pub(crate) fn unmap(base: *mut u8, bytes: usize) {
    // SAFETY: by the function's contract. It fails for a wrong range only.
    let _unmapped = unsafe { rustix::mm::munmap(base.cast(), bytes) };
}

/// Runs `work` under the heap's lock, with signals blocked.
pub(crate) fn with_lock<T>(work: impl FnOnce() -> T) -> T {
    let before = block_signals();
    lock();
    let result = work();
    unlock();
    restore_signals(&before);
    result
}

/// Takes the lock around a fork, so that the child finds the lists whole.
pub(crate) fn lock() {
    wait_for(|| LOCK.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok());
}

/// Frees the lock.
pub(crate) fn unlock() {
    LOCK.store(false, Ordering::Release);
}

/// Blocks all signals, unless the process has confined itself. Returns what [`restore_signals`] needs.
pub(super) fn block_signals() -> Option<libc::sigset_t> {
    if confined::is_confined() {
        return None;
    }
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: both sets are written by these calls. The C library keeps its own signals out of it.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
        Some(before.assume_init())
    }
}

pub(super) fn restore_signals(before: &Option<libc::sigset_t>) {
    if let Some(before) = before {
        // SAFETY: a set that the C library has written.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, ptr::null_mut()) };
    }
}

/// Returns the class of a block: its size is `1 << (class + MIN_SHIFT)`.
fn class(layout: Layout) -> (usize, usize) {
    let size = layout.size().max(layout.align()).max(1 << MIN_SHIFT).next_power_of_two();
    ((size.trailing_zeros() - MIN_SHIFT) as usize, size)
}

fn take(class: usize, size: usize) -> *mut u8 {
    let Some(free) = FREE.get(class) else { return ptr::null_mut() };
    let block = free.load(Ordering::Relaxed);
    if !block.is_null() {
        // SAFETY: a free block has the address of the next one in it.
        free.store(unsafe { block.cast::<*mut u8>().read() }, Ordering::Relaxed);
        return block;
    }
    // Blocks are aligned to their size, because pieces start at pages and less than one block is
    // skipped.
    let next = NEXT.load(Ordering::Relaxed);
    let skip = next.align_offset(size);
    if next.is_null() || LEFT.load(Ordering::Relaxed) < skip.saturating_add(size) {
        let Some(piece) = map_or_spare(PIECE) else { return ptr::null_mut() };
        NEXT.store(piece, Ordering::Relaxed);
        LEFT.store(PIECE, Ordering::Relaxed);
    }
    let next = NEXT.load(Ordering::Relaxed);
    let skip = next.align_offset(size);
    let block = next.wrapping_add(skip);
    if LEFT.load(Ordering::Relaxed) < skip.saturating_add(size) {
        return ptr::null_mut();
    }
    NEXT.store(block.wrapping_add(size), Ordering::Relaxed);
    LEFT.store(LEFT.load(Ordering::Relaxed) - skip - size, Ordering::Relaxed);
    block
}

// SAFETY: a block belongs to one owner from `alloc` to `dealloc`, is as long and as aligned as its
// class, and no class is mixed up with another, since the layout is the same at both calls.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (class, size) = class(layout);
        if size >= OWN_MAPPING {
            return map_or_spare(size).unwrap_or(ptr::null_mut());
        }
        with_lock(|| take(class, size))
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let (class, size) = class(layout);
        if size >= OWN_MAPPING {
            unmap(block, size);
            return;
        }
        with_lock(|| {
            let Some(free) = FREE.get(class) else { return };
            // SAFETY: the block is nobody's any more, and at least 16 bytes long.
            unsafe { block.cast::<*mut u8>().write(free.load(Ordering::Relaxed)) };
            free.store(block, Ordering::Relaxed);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spare_is_no_larger_than_the_request() {
        for bytes in [OWN_MAPPING, 2 * OWN_MAPPING, PIECE] {
            assert!(has_spare());
            let mut freed = None;
            let block = take_spare(bytes, |rest, length| freed = Some((rest, length))).unwrap();
            let rest = (bytes < PIECE).then(|| (block.wrapping_add(bytes), PIECE - bytes));
            assert_eq!(freed, rest, "{bytes}");
            unmap(block, PIECE);
        }
        assert!(has_spare() && take_spare(2 * PIECE, |_, _| ()).is_none());
    }

    #[test]
    fn blocks_are_distinct_and_reused() {
        let blocks: Vec<Vec<u8>> = (0..5000_usize).map(|i| vec![i as u8; i % 3000 + 1]).collect();
        assert!(blocks.iter().enumerate().all(|(i, block)| block.iter().all(|&byte| byte == i as u8)));
        let first = blocks[100].as_ptr();
        drop(blocks);
        let again: Vec<Vec<u8>> = (0..5000_usize).map(|i| vec![1; i % 3000 + 1]).collect();
        assert!(again.iter().any(|block| std::ptr::eq(block.as_ptr(), first)));
    }
}
