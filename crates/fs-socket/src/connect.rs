//! Making a socket and connecting it.

use crate::types::{Fd, Ours};

/// `socket(2)`. `None`: a family, type or protocol that is never ours; make the real call, tell nobody.
/// `Some(Ok(fd))`: the descriptor is made (a kernel socket of that family stands behind the number).
pub fn socket(_family: i32, _kind: i32, _protocol: i32) -> Ours<Fd> {
    None
}

/// `connect(2)`; blocks as the socket's mode and SO_SNDTIMEO say. `address`: the bytes the application passed.
pub fn connect(_fd: Fd, _address: &[u8]) -> Ours<()> {
    None
}

/// `shutdown(2)`; `how` as given.
pub fn shutdown(_fd: Fd, _how: i32) -> Ours<()> {
    None
}
