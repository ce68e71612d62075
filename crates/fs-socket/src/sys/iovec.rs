//! The application's pieces of memory as std's.

use core::slice;
use std::io::{IoSlice, IoSliceMut};

use rustix::io::Errno;

use crate::types::{IoVec, IoVecMut};

/// writev(2): more is EINVAL.
pub const IOV_MAX: usize = 1024;
/// One call moves at most this (MAX_RW_COUNT of the kernel).
const MOVED_MAX: usize = 0x7fff_f000;

const _: () = assert!(size_of::<IoVec<'_>>() == size_of::<IoSlice<'_>>());

/// To send, and the sum of the lengths.
///
/// # Errors
/// `EFAULT`: a pointer into the first page with a length. `EMSGSIZE`/`EINVAL` as the kernel: too many pieces, a sum beyond isize.
pub fn to_send<'a>(pieces: &'a [IoVec<'_>]) -> Result<(&'a [IoSlice<'a>], usize), Errno> {
    let total = check(pieces.iter().map(|piece| (piece.base().cast_mut(), piece.len())), pieces.len())?;
    // SAFETY: `IoVec` is laid out as iovec, as std promises of `IoSlice`; null pointers were refused.
    Ok((unsafe { slice::from_raw_parts(pieces.as_ptr().cast(), pieces.len()) }, total))
}

/// To receive into, and the sum of the lengths. `dropped`: nothing will be written (MSG_TRUNC), so any address will do.
///
/// # Errors
/// As [`to_send`].
pub fn to_receive<'a>(
    pieces: &'a mut [IoVecMut<'_>],
    dropped: bool,
) -> Result<(&'a mut [IoSliceMut<'a>], usize), Errno> {
    let base = |piece: &IoVecMut<'_>| if dropped { core::ptr::without_provenance_mut(4096) } else { piece.base() };
    let total = check(pieces.iter().map(|piece| (base(piece), piece.len())), pieces.len())?;
    // SAFETY: as in `to_send`; the caller's borrow is unique.
    Ok((unsafe { slice::from_raw_parts_mut(pieces.as_mut_ptr().cast(), pieces.len()) }, total))
}

fn check(pieces: impl Iterator<Item = (*mut u8, usize)>, count: usize) -> Result<usize, Errno> {
    if count > IOV_MAX {
        return Err(Errno::INVAL);
    }
    let mut total = 0_usize;
    for (base, len) in pieces {
        // The first page is never mapped: what programs pass by mistake is null or a small number.
        if (base as usize) < 4096 && len != 0 {
            return Err(Errno::FAULT);
        }
        if len > isize::MAX as usize {
            return Err(Errno::INVAL);
        }
        total = total.saturating_add(len);
    }
    Ok(total.min(MOVED_MAX))
}
