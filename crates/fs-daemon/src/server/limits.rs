//! Bounds for one process, so that it cannot use up what all share.

/// Pollers of one attachment: epoll instances and waiting threads.
pub(super) const POLLERS: usize = 4096;

/// Unclaimed shares of one attachment.
pub(super) const SHARES: usize = 1024;
