//! Descriptors: closed, duplicated, asked.

use crate::types::{Fd, Ours};

/// `close(2)`. `None`: nothing of ours; close it.
pub fn close(_fd: Fd) -> Ours<()> {
    None
}

/// `close_range(2)`: what is ours in the range is let go (or marked); the answer is the kernel's.
pub fn close_range(_first: u32, _last: u32, _flags: u32) -> Ours<()> {
    None
}

/// `dup(2)`.
pub fn dup(_fd: Fd) -> Ours<Fd> {
    None
}

/// `dup2(2)`: ours when either number is.
pub fn dup2(_old: Fd, _new: Fd) -> Ours<Fd> {
    None
}

/// `dup3(2)`: ours when either number is.
pub fn dup3(_old: Fd, _new: Fd, _flags: i32) -> Ours<Fd> {
    None
}

/// `fcntl(2)`: `argument` as passed (an int, or a pointer for the lock commands, which stay the kernel's).
pub fn fcntl(_fd: Fd, _command: i32, _argument: usize) -> Ours<i32> {
    None
}
