//! The AF_XDP sockets that live on one UMEM.
//!
//! The kernel lets a socket join the registration of another socket that is bound (`XDP_SHARED_UMEM`), so the
//! memory is pinned and accounted once. A socket that was bound with multi-buffer passes that on to those who
//! join it, and so do zero-copy and the TX metadata's length: only sockets that want the same may join. A socket that
//! cannot join registers the same memory again, which costs only that it is accounted twice.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

/// What a UMEM registration gives to every socket that joins it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registration {
    /// The device that the first socket was bound to.
    pub device: u32,
    /// Bound with `XDP_USE_SG`.
    pub multi_buffer: bool,
    /// Bytes reserved for TX metadata in front of every packet sent; 0 when the kernel has none.
    pub tx_metadata_len: u8,
    /// Bound without copies.
    pub zero_copy: bool,
}

/// The bound sockets, as far as they are still open.
#[derive(Debug, Default)]
pub(crate) struct SocketGroup {
    sockets: Vec<(Weak<OwnedFd>, Registration)>,
}

impl SocketGroup {
    /// An open socket whose registration `suits`.
    pub(crate) fn find(&mut self, suits: impl Fn(&Registration) -> bool) -> Option<(Arc<OwnedFd>, Registration)> {
        self.sockets.retain(|(socket, _)| socket.strong_count() > 0);
        self.sockets
            .iter()
            .filter(|(_, registration)| suits(registration))
            .find_map(|(socket, registration)| Some((socket.upgrade()?, *registration)))
    }

    /// Remembers a socket that has been bound.
    pub(crate) fn add(&mut self, socket: &Arc<OwnedFd>, registration: Registration) {
        self.sockets.push((Arc::downgrade(socket), registration));
    }
}
