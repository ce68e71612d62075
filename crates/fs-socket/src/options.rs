//! Options and names.

use crate::types::{Address, Fd, Ours};

/// `getsockopt(2)`: writes at most `value.len()` bytes and answers the length the kernel would answer in `optlen`.
pub fn getsockopt(_fd: Fd, _level: i32, _name: i32, _value: &mut [u8]) -> Ours<usize> {
    None
}

/// `setsockopt(2)`.
pub fn setsockopt(_fd: Fd, _level: i32, _name: i32, _value: &[u8]) -> Ours<()> {
    None
}

/// `getsockname(2)`.
pub fn getsockname(_fd: Fd) -> Ours<Address> {
    None
}

/// `getpeername(2)`.
pub fn getpeername(_fd: Fd) -> Ours<Address> {
    None
}
