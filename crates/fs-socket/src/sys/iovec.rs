//! The application's pieces of memory as std's.

use core::{mem::MaybeUninit, slice};
use std::io::{IoSlice, IoSliceMut};

use rustix::io::Errno;

use crate::types::{IoVec, IoVecMut};

/// writev(2): more is EINVAL.
pub(crate) const IOV_MAX: usize = 1024;
/// One call moves at most this (MAX_RW_COUNT of the kernel).
const MOVED_MAX: usize = 0x7fff_f000;

const _: () = assert!(size_of::<IoVec<'_>>() == size_of::<IoSlice<'_>>());

/// Room for the pieces of a call that has empty ones at no valid address, which slices must not have.
pub struct Room<T>([MaybeUninit<T>; PIECES]);

/// Pieces that are kept of such a call; what is behind them is not moved, as on a short write.
const PIECES: usize = 64;

impl<T> Room<T> {
    /// Nothing in it.
    pub const fn new() -> Self {
        Room([const { MaybeUninit::uninit() }; PIECES])
    }

    fn fill(&mut self, pieces: impl Iterator<Item = T>) -> &mut [T] {
        let mut count = 0;
        for (place, piece) in self.0.iter_mut().zip(pieces) {
            place.write(piece);
            count += 1;
        }
        // SAFETY: the first `count` were written.
        unsafe { slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), count) }
    }
}

impl<T> Default for Room<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// To send, and the sum of the lengths.
///
/// # Errors
/// `EFAULT`: a pointer into the first page with a length. `EINVAL`: too many pieces, or one too long.
#[inline]
pub fn to_send<'a>(
    pieces: &'a [IoVec<'_>],
    room: &'a mut Room<IoSlice<'a>>,
) -> Result<(&'a [IoSlice<'a>], usize), Errno> {
    let (total, whole) = check(pieces.iter().map(|piece| (piece.base() as usize, piece.len())), pieces.len())?;
    if whole {
        // SAFETY: `IoVec` is laid out as iovec, as std promises of `IoSlice`; no pointer is null.
        return Ok((unsafe { slice::from_raw_parts(pieces.as_ptr().cast(), pieces.len()) }, total));
    }
    let kept = room.fill(pieces.iter().filter(|piece| !piece.is_empty()).map(|piece| {
        // SAFETY: the caller's memory, of that length; not null, as it is not empty.
        IoSlice::new(unsafe { slice::from_raw_parts(piece.base(), piece.len()) })
    }));
    let total = kept.iter().map(|piece| piece.len()).sum();
    Ok((kept, total))
}

/// To receive into, and the sum of the lengths. `dropped`: nothing will be written (MSG_TRUNC), so any address will do;
/// then there are no slices.
///
/// # Errors
/// As [`to_send`].
#[inline]
pub(crate) fn to_receive<'a>(
    pieces: &'a mut [IoVecMut<'_>],
    dropped: bool,
    room: &'a mut Room<IoSliceMut<'a>>,
) -> Result<(&'a mut [IoSliceMut<'a>], usize), Errno> {
    let base = |piece: &IoVecMut<'_>| if dropped { usize::MAX } else { piece.base() as usize };
    let (total, whole) = check(pieces.iter().map(|piece| (base(piece), piece.len())), pieces.len())?;
    if dropped {
        return Ok((&mut [], total));
    }
    if whole {
        // SAFETY: as in `to_send`; the caller's borrow is unique.
        return Ok((unsafe { slice::from_raw_parts_mut(pieces.as_mut_ptr().cast(), pieces.len()) }, total));
    }
    let kept = room.fill(pieces.iter_mut().filter(|piece| !piece.is_empty()).map(|piece| {
        // SAFETY: as in `to_send`; the caller's borrow is unique.
        IoSliceMut::new(unsafe { slice::from_raw_parts_mut(piece.base(), piece.len()) })
    }));
    let total = kept.iter().map(|piece| piece.len()).sum();
    Ok((kept, total))
}

/// The sum of the lengths, and whether every address may be a slice's.
#[inline]
fn check(pieces: impl Iterator<Item = (usize, usize)>, count: usize) -> Result<(usize, bool), Errno> {
    if count > IOV_MAX {
        return Err(Errno::INVAL);
    }
    let mut total = 0_usize;
    let mut whole = true;
    for (base, len) in pieces {
        // The first page is never mapped: what programs pass by mistake is null or a small number.
        if base < 4096 {
            if len != 0 {
                return Err(Errno::FAULT);
            }
            whole = false;
        }
        if len > isize::MAX as usize {
            return Err(Errno::INVAL);
        }
        total = total.saturating_add(len);
    }
    Ok((total.min(MOVED_MAX), whole))
}
