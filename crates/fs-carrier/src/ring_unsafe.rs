//! The ring's bytes.
//!
//! 1. A ring is a power of two bytes of a [`Region`](crate::region::Region), which outlives it.
//! 2. The producer writes free space, under the send lock; the consumer reads published bytes,
//!    under the receive lock. The word's compare-exchange and the head's release store hand bytes
//!    over.
//! 3. A hostile peer may break rule 2. Then a copy has wrong bytes of its own connection; no
//!    address is ever computed from what it wrote.
#![allow(unsafe_code)]

use crate::layout::INLINE;
use crate::sync::{AtomicU64, Ordering};

#[cfg(all(loom, test))]
pub(crate) use cells::{Cells, Ring};
#[cfg(not(all(loom, test)))]
pub(crate) use memory::Ring;

#[cfg(not(all(loom, test)))]
mod memory {
    use core::marker::PhantomData;
    use core::ptr::NonNull;

    use crate::position::Position;

    /// The bytes of one direction's ring.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Ring<'a> {
        base: NonNull<u8>,
        len: usize,
        region: PhantomData<&'a [u8]>,
    }

    impl<'a> Ring<'a> {
        /// # Safety
        /// `len` bytes from `base` are mapped for reading and writing as long as `'a`, and `len` is a power of two.
        pub(crate) unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
            debug_assert!(len.is_power_of_two());
            Ring { base, len, region: PhantomData }
        }

        /// Returns the capacity in bytes.
        #[inline]
        pub(crate) fn capacity(self) -> u64 {
            self.len as u64
        }

        /// Copies `bytes`, at most the capacity, to where `at` lies.
        #[inline]
        pub(crate) fn write(self, at: Position, bytes: &[u8]) {
            let (offset, first) = self.split(at, bytes.len());
            if bytes.len() == 8 && first == 8 {
                // SAFETY: 8 bytes from the offset are inside of the ring (`split`), and `bytes` has
                // as many, in private memory.
                unsafe { copy_8(bytes.as_ptr(), self.base.add(offset).as_ptr()) };
                return;
            }
            // SAFETY: `first` bytes from the offset and the rest from 0 are inside of the ring
            // (`split`). `bytes` is private memory, so the ranges do not overlap. Concurrent
            // access: rules 2 and 3 above.
            unsafe {
                core::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.add(offset).as_ptr(), first);
                core::ptr::copy_nonoverlapping(bytes.as_ptr().add(first), self.base.as_ptr(), bytes.len() - first);
            }
        }

        /// Copies as many bytes as `into` holds, at most the capacity, from where `at` lies.
        #[inline]
        pub(crate) fn read(self, at: Position, into: &mut [u8]) {
            let (offset, first) = self.split(at, into.len());
            // SAFETY: as in `write`.
            unsafe {
                core::ptr::copy_nonoverlapping(self.base.add(offset).as_ptr(), into.as_mut_ptr(), first);
                core::ptr::copy_nonoverlapping(self.base.as_ptr(), into.as_mut_ptr().add(first), into.len() - first);
            }
        }

        /// Returns the offset of `at`, and how many of `len` bytes lie before the end of the memory.
        #[inline]
        fn split(self, at: Position, len: usize) -> (usize, usize) {
            assert!(len <= self.len, "longer than the ring");
            let offset = at.bits() as usize & (self.len - 1);
            (offset, len.min(self.len - offset))
        }
    }

    /// # Safety
    /// 8 bytes can be read at `from` and written at `to`.
    #[inline]
    unsafe fn copy_8(from: *const u8, to: *mut u8) {
        // SAFETY: by the function's contract; alignment does not matter.
        unsafe { to.cast::<u64>().write_unaligned(from.cast::<u64>().read_unaligned()) };
    }
}

/// Bytes on which loom checks every access for races.
#[cfg(all(loom, test))]
mod cells {
    use loom::cell::UnsafeCell;

    use crate::position::Position;

    #[derive(Debug)]
    pub(crate) struct Cells(Vec<UnsafeCell<u8>>);

    // SAFETY: loom fails where two threads touch a cell without order.
    unsafe impl Sync for Cells {}

    impl Cells {
        pub(crate) fn new(len: usize) -> Self {
            Cells((0..len).map(|_| UnsafeCell::new(0)).collect())
        }
    }

    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Ring<'a>(&'a Cells);

    impl<'a> Ring<'a> {
        pub(crate) fn of(cells: &'a Cells) -> Self {
            Ring(cells)
        }

        pub(crate) fn capacity(self) -> u64 {
            self.0.0.len() as u64
        }

        fn cell(self, at: Position, i: usize) -> &'a UnsafeCell<u8> {
            &self.0.0[(at.bits() as usize + i) % self.0.0.len()]
        }

        pub(crate) fn write(self, at: Position, bytes: &[u8]) {
            for (i, &byte) in bytes.iter().enumerate() {
                // SAFETY: the cell is a byte; loom checks that nobody else touches it.
                self.cell(at, i).with_mut(|place| unsafe { *place = byte });
            }
        }

        pub(crate) fn read(self, at: Position, into: &mut [u8]) {
            for (i, byte) in into.iter_mut().enumerate() {
                // SAFETY: as above.
                *byte = self.cell(at, i).with(|place| unsafe { *place });
            }
        }
    }
}

/// Asks for a line that is about to be written, while the caller does something else: 100 to 150 ns
/// if another processor has it.
#[inline]
pub(crate) fn prefetch_for_write<T>(place: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint; it changes nothing, and processors without it take it for no operation.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) place, options(nostack, preserves_flags, readonly));
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("prfm pstl1keep, [{}]", in(reg) place, options(nostack, preserves_flags, readonly));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _place = place;
}

/// Stores a message of 1 to [`INLINE`] bytes in the word's line.
#[inline]
pub(crate) fn store_inline(line: &[AtomicU64; INLINE / 8], bytes: &[u8]) {
    if let Ok(word) = bytes.try_into() {
        line[0].store(u64::from_ne_bytes(word), Ordering::Relaxed);
        return;
    }
    for (word, piece) in line.iter().zip(bytes.chunks(8)) {
        let mut padded = [0; 8];
        padded[..piece.len()].copy_from_slice(piece);
        word.store(u64::from_ne_bytes(padded), Ordering::Relaxed);
    }
}

/// Copies the bytes from `skip` on; `skip` and the length of `into` together are at most [`INLINE`].
#[inline]
pub(crate) fn load_inline(line: &[AtomicU64; INLINE / 8], skip: usize, into: &mut [u8]) {
    if skip == 0 && into.len() == 8 {
        into.copy_from_slice(&line[0].load(Ordering::Relaxed).to_ne_bytes());
        return;
    }
    let mut all = [0; INLINE];
    for (word, piece) in line.iter().zip(all.chunks_mut(8)).take((skip + into.len()).div_ceil(8)) {
        piece.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
    let n = into.len();
    into.copy_from_slice(&all[skip..skip + n]);
}
