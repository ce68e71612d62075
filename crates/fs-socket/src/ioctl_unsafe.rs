//! ioctl: its argument is a pointer.
#![allow(unsafe_code)]

use crate::types::{Fd, Ours};

/// `ioctl(2)`: `argument` is the third argument as passed.
///
/// # Safety
/// `argument` must be what `request` asks for (as for the real call).
pub unsafe fn ioctl(_fd: Fd, _request: u64, _argument: *mut u8) -> Ours<i32> {
    None
}
