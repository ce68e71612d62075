//! Bytes between descriptors.

use crate::types::{Fd, Ours};

/// `sendfile(2)`: ours when `out` or `input` is. `offset` is read and advanced as the kernel does.
pub fn sendfile(_out: Fd, _input: Fd, _offset: Option<&mut i64>, _count: usize) -> Ours<usize> {
    None
}

/// `splice(2)`: ours when either descriptor is.
pub fn splice(
    _input: Fd,
    _input_offset: Option<&mut i64>,
    _output: Fd,
    _output_offset: Option<&mut i64>,
    _len: usize,
    _flags: u32,
) -> Ours<usize> {
    None
}
