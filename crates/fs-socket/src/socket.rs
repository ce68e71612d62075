//! One socket of this process.

/// What is ready, in the bits of `poll(2)`/`epoll(7)` (`EPOLLIN` 1, `PRI` 2, `OUT` 4, `ERR` 8, `HUP` 0x10, `RDHUP` 0x2000).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness(pub u32);

impl Readiness {
    /// Bytes, a connection, an end or an error to read.
    pub const IN: u32 = 0x1;
    /// Urgent data.
    pub const PRI: u32 = 0x2;
    /// Room to write (or an error).
    pub const OUT: u32 = 0x4;
    /// A pending error.
    pub const ERR: u32 = 0x8;
    /// Both directions are over.
    pub const HUP: u32 = 0x10;
    /// The peer has shut its sending side down.
    pub const RDHUP: u32 = 0x2000;
}

/// What a poller has to watch to learn of a socket's changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// The kernel only: put the descriptor into a kernel epoll/poll.
    Kernel,
    /// A channel only: nothing happens on the placeholder.
    Channel,
    /// A listener: our inboxes and the kernel's queue, both.
    Listener,
}

/// One socket as this process knows it, shared by all its descriptors here; never moves, memory is reused for other sockets only.
#[derive(Debug)]
pub struct Socket {
    _private: (),
}

impl Socket {
    /// Which open socket this is, never repeated in this process (what epoll's key of file and number needs).
    pub fn identity(&self) -> u64 {
        0
    }

    /// What is ready now; wait-free, no system call, except that a [`Watch::Listener`]'s kernel queue is not asked.
    pub fn readiness(&self) -> Readiness {
        Readiness::default()
    }

    /// What to watch.
    pub fn watch(&self) -> Watch {
        Watch::Kernel
    }
}
