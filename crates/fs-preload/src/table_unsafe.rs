//! Slots by descriptor number.
//!
//! A look-up takes no lock: two loads for a number that the library does not handle.
#![allow(unsafe_code)]

use core::ffi::c_int;
use core::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::slot::{Kind, Slot};
use crate::sys::heap::{map_zeros, unmap};

/// Slots that are made together: 32 KiB, of which the kernel makes the pages that are used.
const CHUNK: usize = 256;
/// The library does not handle numbers from `CHUNK * CHUNKS` on. It is the kernel's default for the
/// highest limit (fs.nr_open).
const CHUNKS: usize = 4096;

static TABLE: [AtomicPtr<Slot>; CHUNKS] = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS];

/// Returns the slot of a number, if its chunk was made.
#[inline]
pub(crate) fn slot(fd: c_int) -> Option<&'static Slot> {
    let fd = fd as usize;
    let chunk = TABLE.get(fd / CHUNK)?.load(Ordering::Acquire);
    if chunk.is_null() {
        return None;
    }
    // SAFETY: a chunk has CHUNK slots of zeros, which are valid, and is never unmapped.
    Some(unsafe { &*chunk.add(fd % CHUNK) })
}

/// Returns the slot of a number, and makes it if necessary. Returns `None` if the number is too
/// high, or without memory.
pub(crate) fn make_slot(fd: c_int) -> Option<&'static Slot> {
    let place = TABLE.get(fd as usize / CHUNK)?;
    if place.load(Ordering::Acquire).is_null() {
        let bytes = CHUNK * size_of::<Slot>();
        let chunk = map_zeros(bytes)?;
        if place.compare_exchange(ptr::null_mut(), chunk.cast(), Ordering::AcqRel, Ordering::Relaxed).is_err() {
            // Another thread was faster. This mapping is unused and was never touched.
            unmap(chunk, bytes);
        }
    }
    slot(fd)
}

/// Calls `work` for each slot that is not plain.
pub(crate) fn for_each(mut work: impl FnMut(c_int, &'static Slot)) {
    for (i, chunk) in TABLE.iter().enumerate() {
        if chunk.load(Ordering::Acquire).is_null() {
            continue;
        }
        for j in 0..CHUNK {
            let fd = (i * CHUNK + j) as c_int;
            if let Some(slot) = slot(fd).filter(|slot| slot.state().kind() != Kind::Plain) {
                work(fd, slot);
            }
        }
    }
}
