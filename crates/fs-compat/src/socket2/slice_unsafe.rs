//! [`MaybeUninitSlice`].
#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};

/// A `std::io::IoSliceMut` for memory that need not be initialised. It has the layout of `iovec`.
#[repr(transparent)]
pub struct MaybeUninitSlice<'a> {
    vec: libc::iovec,
    memory: PhantomData<&'a mut [MaybeUninit<u8>]>,
}

// SAFETY: it is a mutable borrow of bytes, which may move to other threads.
unsafe impl Send for MaybeUninitSlice<'_> {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for MaybeUninitSlice<'_> {}

impl<'a> MaybeUninitSlice<'a> {
    /// Wraps a buffer.
    pub fn new(buf: &'a mut [MaybeUninit<u8>]) -> MaybeUninitSlice<'a> {
        let vec = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
        MaybeUninitSlice { vec, memory: PhantomData }
    }
}

impl Deref for MaybeUninitSlice<'_> {
    type Target = [MaybeUninit<u8>];

    fn deref(&self) -> &[MaybeUninit<u8>] {
        // SAFETY: start and length of the slice that `new` borrowed for the lifetime of `self`.
        unsafe { std::slice::from_raw_parts(self.vec.iov_base.cast(), self.vec.iov_len) }
    }
}

impl DerefMut for MaybeUninitSlice<'_> {
    fn deref_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: start and length of the slice that `new` mutably borrowed for the lifetime of
        // `self`.
        unsafe { std::slice::from_raw_parts_mut(self.vec.iov_base.cast(), self.vec.iov_len) }
    }
}

impl fmt::Debug for MaybeUninitSlice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

/// Several [`MaybeUninitSlice`]s, mutably borrowed, without their own lifetimes: they can be
/// written through, but not replaced.
#[derive(Default)]
pub(crate) struct Bufs<'a> {
    slices: &'a mut [MaybeUninitSlice<'a>],
}

impl<'a> Bufs<'a> {
    pub(crate) fn new(slices: &'a mut [MaybeUninitSlice<'_>]) -> Self {
        // SAFETY: shortens the slices' lifetime to 'a. Through `&mut`, a slice with a shorter
        // lifetime could then be stored in their place. Only recvmsg(2) gets them from `as_mut`,
        // and it stores none.
        Self { slices: unsafe { std::slice::from_raw_parts_mut(slices.as_mut_ptr().cast(), slices.len()) } }
    }

    pub(crate) fn as_mut(&mut self) -> &mut [MaybeUninitSlice<'a>] {
        self.slices
    }
}
