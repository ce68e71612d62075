//! Copies between payload memory and the caller's buffers, and the slices that borrows hand out.
//!
//! The ring protocol gives a byte range to one side at a time. A hostile peer that breaks it can change bytes while
//! they are copied: then the copy has wrong bytes, of its own channel, and nothing else. That is why nothing here
//! looks at the bytes, and why callers of the borrowed slices must not read a byte twice and trust it to be the same.
#![allow(unsafe_code)]

use crate::word::AtomicU64;
use std::marker::PhantomData;
use std::ptr::NonNull;

use crate::layout::INLINE;

/// A piece of payload memory: `len` bytes at `base`, inside of the mapping that `'a` borrows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk<'a> {
    base: NonNull<u8>,
    len: usize,
    region: PhantomData<&'a [u8]>,
}

impl<'a> Chunk<'a> {
    /// # Safety
    /// `len` bytes from `base` are mapped, readable and writable, as long as `'a`; the ring protocol gives them to the caller.
    pub(crate) unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        Chunk { base, len, region: PhantomData }
    }

    /// A producer's inline bytes.
    #[inline]
    pub(crate) fn inline(bytes: &'a [AtomicU64; INLINE / 8]) -> Self {
        Chunk { base: NonNull::from(bytes).cast(), len: INLINE, region: PhantomData }
    }

    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// Copies from the chunk's beginning; the shorter of both lengths. Returns the bytes copied.
    #[inline]
    pub(crate) fn copy_to(self, dst: &mut [u8]) -> usize {
        let n = self.len.min(dst.len());
        // SAFETY: both ranges are valid for n bytes; dst is private memory, so they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(self.base.as_ptr(), dst.as_mut_ptr(), n) };
        n
    }

    /// Copies to the chunk's beginning; the shorter of both lengths. Returns the bytes copied.
    #[inline]
    pub(crate) fn copy_from(self, src: &[u8]) -> usize {
        let n = self.len.min(src.len());
        // SAFETY: both ranges are valid for n bytes; src is private memory, so they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), self.base.as_ptr(), n) };
        n
    }

    /// [`Chunk::copy_to`] of few bytes, as many as fit.
    #[inline]
    pub(crate) fn copy_to_short(self, dst: &mut [u8]) {
        // SAFETY: as `copy_to`.
        unsafe { copy_short(self.base.as_ptr(), dst.as_mut_ptr(), self.len.min(dst.len())) }
    }

    /// [`Chunk::copy_from`] of few bytes, as many as fit.
    #[inline]
    pub(crate) fn copy_from_short(self, src: &[u8]) {
        // SAFETY: as `copy_from`.
        unsafe { copy_short(src.as_ptr(), self.base.as_ptr(), self.len.min(src.len())) }
    }

    /// As a slice to read. A hostile peer may change what it holds.
    pub(crate) fn as_slice(self) -> &'a [u8] {
        // SAFETY: valid for 'a; the ring protocol says that nobody writes there before it is consumed.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }

    /// As a slice to write. Crate-internal contract: called under the sender's lock for free space only, and the slice
    /// lives inside of a `&mut` borrow of the guard that holds the lock, so it is the only one.
    pub(crate) fn into_mut_slice(self) -> &'a mut [u8] {
        // SAFETY: valid for 'a, unique by the contract above; the ring protocol gives free space to the producer alone.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

/// Copies few bytes, by words that may overlap: for so few a call of memcpy costs more than the copy.
///
/// # Safety
/// Both ranges are valid for `n` bytes and do not overlap.
#[inline]
unsafe fn copy_short(src: *const u8, dst: *mut u8, n: usize) {
    /// # Safety
    /// As above, for `size_of::<T>()` bytes from `at` on.
    #[inline(always)]
    unsafe fn word<T: Copy>(src: *const u8, dst: *mut u8, at: usize) {
        // SAFETY: by the caller's word.
        unsafe { dst.add(at).cast::<T>().write_unaligned(src.add(at).cast::<T>().read_unaligned()) }
    }
    // SAFETY: every word lies within the first n bytes.
    unsafe {
        match n {
            0 => {}
            1 => word::<u8>(src, dst, 0),
            2..4 => {
                word::<u16>(src, dst, 0);
                word::<u16>(src, dst, n - 2);
            }
            4..8 => {
                word::<u32>(src, dst, 0);
                word::<u32>(src, dst, n - 4);
            }
            _ => {
                let mut at = 0;
                while at + 8 < n {
                    word::<u64>(src, dst, at);
                    at += 8;
                }
                word::<u64>(src, dst, n - 8);
            }
        }
    }
}
