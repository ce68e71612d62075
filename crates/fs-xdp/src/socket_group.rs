//! The AF_XDP sockets that live on one UMEM.
//!
//! The kernel lets a socket join the registration of another bound socket (`XDP_SHARED_UMEM`), so
//! the memory is pinned and accounted once. The joining socket inherits multi-buffer, zero copy and
//! the TX metadata's length, so it must want the same. A socket that cannot join registers the
//! memory again. The only cost is that it is accounted twice.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

/// The properties that a socket inherits when it joins a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registration {
    /// The device that the first socket was bound to.
    pub device: u32,
    /// Bound with `XDP_USE_SG`.
    pub multi_buffer: bool,
    /// Bytes that stay free in front of a received packet, on top of the kernel's own.
    pub headroom: u32,
    /// Bytes reserved for TX metadata before every sent packet; 0 if the kernel has none.
    pub tx_metadata_len: u8,
    /// Bound without copies.
    pub zero_copy: bool,
}

/// The bound sockets that are still open.
#[derive(Debug, Default)]
pub(crate) struct SocketGroup {
    sockets: Vec<(Weak<OwnedFd>, Registration)>,
}

impl SocketGroup {
    /// Returns an open socket whose registration `suits`.
    pub(crate) fn find(&mut self, suits: impl Fn(&Registration) -> bool) -> Option<(Arc<OwnedFd>, Registration)> {
        self.sockets.retain(|(socket, _)| socket.strong_count() > 0);
        self.sockets
            .iter()
            .filter(|(_, registration)| suits(registration))
            .find_map(|(socket, registration)| Some((socket.upgrade()?, *registration)))
    }

    /// Adds a socket that has been bound.
    pub(crate) fn add(&mut self, socket: &Arc<OwnedFd>, registration: Registration) {
        self.sockets.push((Arc::downgrade(socket), registration));
    }
}
