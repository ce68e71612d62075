//! Names and listeners.

use crate::types::{Address, Fd, Ours};

/// `bind(2)`.
pub fn bind(_fd: Fd, _address: &[u8]) -> Ours<()> {
    None
}

/// `listen(2)`: the kernel listens too; what connects over the kernel and what connects through us come out of one accept.
pub fn listen(_fd: Fd, _backlog: i32) -> Ours<()> {
    None
}

/// `accept4(2)` (and `accept(2)` with flags 0): the new descriptor and the peer's address.
/// `None` also when the listener is the kernel's alone.
pub fn accept4(_fd: Fd, _flags: i32) -> Ours<(Fd, Address)> {
    None
}
