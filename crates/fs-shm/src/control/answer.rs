//! What a request of the process comes to: the daemon's answers with the descriptors that travel along, and why there is none.

use super::fd_unsafe::Fd;
use super::message::{ArenaGeometry, KernelReason};
use super::socket::Fds;
use super::wire::Malformed;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// No daemon is there, with what connect(2) said.
    NoDaemon(Errno),
    /// The connection is closed: the daemon has ended.
    Closed,
    /// No answer in time.
    TimedOut,
    /// The caller is a signal handler whose thread is in the middle of a request.
    Busy,
    /// The answer makes no sense: another version, or not our daemon.
    Malformed(Malformed),
    /// The daemon answered that it does not work.
    Failed(Errno),
    /// A system call failed.
    System(Errno),
}

impl core::fmt::Display for Error {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Error::NoDaemon(errno) => write!(f, "no daemon answers: {errno}"),
            Error::Closed => f.write_str("the daemon has closed the connection"),
            Error::TimedOut => f.write_str("the daemon does not answer"),
            Error::Busy => f.write_str("a request of this thread is under way"),
            Error::Malformed(what) => what.fmt(f),
            Error::Failed(errno) => write!(f, "the daemon answers: {errno}"),
            Error::System(errno) => errno.fmt(f),
        }
    }
}

impl core::error::Error for Error {}

impl From<Malformed> for Error {
    fn from(error: Malformed) -> Self {
        Error::Malformed(error)
    }
}

/// The answer of another request.
pub(super) const UNEXPECTED: Error = Error::Malformed(Malformed("an answer to something else"));
/// The answer has less than it says.
pub(super) const NO_FD: Error = Error::Malformed(Malformed("a descriptor is missing"));

/// What a process is told when it attaches.
#[derive(Debug)]
pub struct Welcome {
    /// The process's number.
    pub attachment: u32,
    /// Which start of the daemon this is.
    pub epoch: u64,
    /// Sizes of all arenas.
    pub geometry: ArenaGeometry,
    /// The attachment page's memory.
    pub page: Fd,
    /// The directory page's memory, read-only.
    pub directory: Fd,
}

/// Which way a connection goes. Each answer holds while the directory page shows its generation.
#[derive(Debug)]
pub struct Routed {
    /// See above.
    pub generation: u64,
    /// The way.
    pub way: Way,
}

/// See [`Routed`].
#[derive(Debug)]
pub enum Way {
    /// To another process: side A of each of these arenas in turn.
    Local {
        /// The address that the connection comes from.
        source: core::net::IpAddr,
        /// Arena numbers and their memory, in order, as many as are `Some`.
        arenas: [Option<(u32, SideMemory)>; super::GROUP_MAX],
    },
    /// Over the wire: side A of this arena.
    Wire {
        /// Its number.
        arena: u32,
        /// Its memory.
        memory: SideMemory,
        /// The core behind it.
        core: u16,
    },
    /// On the kernel.
    Kernel(KernelReason),
    /// Not at all.
    Refused(Errno),
}

/// An arena's memory as one side has it.
#[derive(Debug)]
pub struct SideMemory {
    shared: Fd,
    locks: Fd,
}

impl SideMemory {
    pub(super) fn take(fds: &mut Fds) -> Result<Self, Error> {
        Ok(Self { shared: fds.take().ok_or(NO_FD)?, locks: fds.take().ok_or(NO_FD)? })
    }

    /// What [`crate::Arena::map`] wants.
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.shared.as_fd(), self.locks.as_fd()]
    }

    /// The memory of both sides, and the locks.
    pub fn into_fds(self) -> [Fd; 2] {
        [self.shared, self.locks]
    }
}

/// The memory of what was claimed.
#[derive(Debug)]
pub enum Claimed {
    /// Of a connection.
    Arena(SideMemory),
    /// Of a listener.
    Page(Fd),
}

/// What became of [`super::Client::listen`].
#[derive(Debug)]
pub enum Listening {
    /// Announced: number and page.
    Yes(u32, Fd),
    /// The kernel alone listens.
    Kernel(KernelReason),
    /// It is forbidden.
    Refused(Errno),
}
