//! Bounds for one process, so that it cannot use up what all share.

/// Pollers of one attachment: epoll instances and waiting threads.
pub(super) const POLLERS: usize = 4096;

/// Pollers of all: each is two descriptors of the daemon's, and half of those are for other things (processes, arenas).
pub(super) fn pollers_max() -> usize {
    quarter_of_descriptors()
}

fn quarter_of_descriptors() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| usize::try_from(limit / 4).unwrap_or(usize::MAX))
}

/// A socket whose way to a process nobody announced is looked for among this many descriptor numbers of each. Higher: a
/// process that fills its page makes such a look take longer, for everybody (0.2 ms at most with this).
pub(super) const FOUND_BELOW: usize = 1 << 16;

/// Unclaimed shares of one attachment.
pub(super) const SHARES: usize = 1024;

/// Network namespaces that one attachment has sockets in. Each is a netlink socket of the daemon's and its thread's visit there.
pub(super) const NAMESPACES: usize = 64;

/// Network namespaces together; one user has half of them at most.
pub(super) const NAMESPACES_MAX: usize = 1024;

/// Ports that are lent to connections between processes, of all namespaces together; one user has half of them at most, and of each
/// namespace half of those that its kernel chooses from are left. Each is a socket of the daemon's, of whose descriptors half are
/// for other things. Fewer: where descriptors are few (20,000) a client that has 5,000 connections has some by the kernel.
pub(super) fn lent_max() -> usize {
    (2 * quarter_of_descriptors()).min(1 << 14)
}

/// Ports that connections keep in use after their listener has gone; one user has half of them at most. Each is a socket of the
/// daemon's.
pub(super) const PORTS: usize = 1024;
