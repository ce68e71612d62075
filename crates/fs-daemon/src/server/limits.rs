//! Bounds for one process, so that it cannot use up what all share.

/// Pollers of one attachment: epoll instances and waiting threads.
pub(super) const POLLERS: usize = 4096;

/// Pollers of all: each is two descriptors of the daemon's, and half of those are for other things (processes, arenas).
pub(super) fn pollers_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| usize::try_from(limit / 4).unwrap_or(usize::MAX))
}

/// Unclaimed shares of one attachment.
pub(super) const SHARES: usize = 1024;
