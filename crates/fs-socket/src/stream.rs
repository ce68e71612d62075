//! Bytes.

use crate::types::{Fd, IoVec, IoVecMut, Ours, Received};

/// The send family: `send`, `sendto` (`destination`), `sendmsg` (`control`: the raw ancillary data), `write`, `writev`.
/// `flags`: see [`crate::flags`]. Where it answers EPIPE the caller raises SIGPIPE in the calling thread unless
/// `flags::NOSIGNAL` was given.
pub fn send(_fd: Fd, _bufs: &[IoVec<'_>], _flags: u32, _destination: Option<&[u8]>, _control: &[u8]) -> Ours<usize> {
    None
}

/// The receive family: `recv`, `recvfrom`, `recvmsg`, `read`, `readv`.
pub fn recv(_fd: Fd, _bufs: &mut [IoVecMut<'_>], _flags: u32) -> Ours<Received> {
    None
}
