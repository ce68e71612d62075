//! Sockets that a program keeps as proof of its leases.

use fs_core::Protocol;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The sockets that prove a program's leases.
#[derive(Default)]
pub(super) struct LeaseProofs {
    /// Number of times that each end was leased, and a duplicate of the socket that reserves it.
    pub(super) ends: HashMap<(Protocol, SocketAddr), (u32, OwnedFd)>,
    pub(super) ephemeral: Arc<[OwnedFd]>,
}

impl LeaseProofs {
    pub(super) fn sockets(&self) -> Vec<BorrowedFd<'_>> {
        let ends = self.ends.values().map(|(_, socket)| socket.as_fd());
        ends.chain(self.ephemeral.iter().map(AsFd::as_fd)).collect()
    }
}
