//! The library's state of one epoll set.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use fs_carrier::set::Set;

use crate::process;
use crate::sys::current::Current;
use crate::sys::kernel::Fd;

/// The last identity that was given.
static LAST: AtomicU64 = AtomicU64::new(0);

/// An epoll set.
pub(crate) struct Polled {
    pub(super) id: u64,
    pub(super) set: Current<Set<Fd>>,
    /// The process's generation in which `set` was made.
    pub(super) generation: AtomicU32,
    /// [`process::forks`] when it was made.
    pub(super) forks: u32,
    /// Another process may have the set, so the kernel must have each registration at once.
    pub(super) is_shared: AtomicBool,
    /// The set is in another set, or a call of poll(2) waits for it. Only the kernel knows such
    /// sleepers, so the set's sockets are pinned.
    pub(super) kernel_only: AtomicBool,
    /// A connection was added to the set, so its end concerns connections.
    pub(super) had_sockets: AtomicBool,
}

impl Polled {
    /// Makes a new set.
    pub(crate) fn new() -> Self {
        Polled {
            id: LAST.fetch_add(1, Ordering::Relaxed) + 1,
            set: Current::new(Set::new(process::pacing())),
            generation: AtomicU32::new(process::generation()),
            forks: process::forks(),
            is_shared: AtomicBool::new(false),
            kernel_only: AtomicBool::new(false),
            had_sockets: AtomicBool::new(false),
        }
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Returns whether this process alone has the set.
    pub(super) fn is_own(&self) -> bool {
        self.forks == process::forks() && !self.is_shared.load(Ordering::Relaxed) && !self.is_kernel_only()
    }

    /// Called before a connection is added.
    pub(crate) fn gets_socket(&self) {
        self.had_sockets.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_kernel_only(&self) -> bool {
        self.kernel_only.load(Ordering::Relaxed)
    }
}
