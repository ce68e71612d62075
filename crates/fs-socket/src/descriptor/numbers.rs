//! Numbers of descriptors that are this library's.
//!
//! A program's numbers are the lowest free ones, and it has as many as its soft RLIMIT_NOFILE says: ours lie at or above that. The
//! kernel gives those out only while the limit is higher, so it is raised for a moment ([`Room`]), as far as the hard one allows.

use core::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use fs_shm::control::{Error, Fd as OwnedFd};
use libc::F_DUPFD_CLOEXEC;
use rustix::{
    fd::{AsRawFd, IntoRawFd},
    io::Errno,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};

use crate::{
    descriptor::table,
    sys::{call, signals::Section, thread},
    types::Fd,
};

/// Highest soft limit at or above which our numbers lie. Higher: the kernel's descriptor table, which a fork copies, grows.
const USUAL: u64 = 1024;
/// Where they lie with a higher limit: that table has 1,024 places for a program that needs fewer.
const HIGH: Fd = 960;

/// The thread whose turn it is to raise the limit, to fork or to exec; 0: none.
static HOLDER: AtomicUsize = AtomicUsize::new(0);
/// The soft limit that is raised now; 0: it is not.
static SOFT: AtomicU64 = AtomicU64::new(0);

/// The limit does not change while it stands: what is forked or executed meanwhile has the program's own.
#[derive(Debug)]
pub(crate) struct Turn {
    /// False: this very thread had it already.
    taken: bool,
}

impl Turn {
    /// `None`: the one who has it is stopped, or dead.
    pub(crate) fn begin() -> Option<Self> {
        const ROUNDS: u32 = 20_000;
        let me = thread::me();
        for rounds in 0..ROUNDS {
            match HOLDER.compare_exchange(0, me, AcqRel, Acquire) {
                Ok(_) => return Some(Turn { taken: true }),
                Err(holder) if holder == me => return Some(Turn { taken: false }),
                Err(_) => table::pause(rounds),
            }
        }
        None
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.taken {
            HOLDER.store(0, Release);
        }
    }
}

/// This thread has jumped out of what it was in the middle of: never while the limit is raised, see [`Room`].
pub(crate) fn jumped() {
    // Lost: it was not its turn.
    let _ = HOLDER.compare_exchange(thread::me(), 0, AcqRel, Relaxed);
}

/// In a forked child: whoever had the turn is its parent's.
pub(crate) fn forked() {
    HOLDER.store(0, Relaxed);
    fs_shm::addresses::forked();
    let soft = SOFT.swap(0, Relaxed);
    if soft != 0 {
        // Raised by another thread, whose turn was waited for in vain.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(soft), ..getrlimit(Resource::Nofile) });
    }
}

/// The soft limit is raised while it stands. Another thread that opens something just then, and has no number left below the limit,
/// gets one beyond it, which works as any other.
#[derive(Debug)]
pub(crate) struct Room {
    before: Option<Rlimit>,
    _turn: Turn,
    /// A handler that jumps would leave the limit raised.
    _section: Section,
}

impl Room {
    /// `None`: it cannot be raised.
    pub(crate) fn open() -> Option<Self> {
        if fs_shm::wait::is_confined() {
            return None;
        }
        let (section, turn) = (Section::begin(), Turn::begin()?);
        let limit = getrlimit(Resource::Nofile);
        let soft = limit.current?;
        if SOFT.load(Relaxed) != 0 {
            return Some(Room { before: None, _turn: turn, _section: section });
        }
        if limit.maximum == limit.current {
            return None;
        }
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).ok()?;
        SOFT.store(soft.max(1), Relaxed);
        Some(Room { before: Some(limit), _turn: turn, _section: section })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let Some(before) = self.before else { return };
        SOFT.store(0, Relaxed);
        let now = getrlimit(Resource::Nofile);
        // Another thread of the program may have set it meanwhile.
        if (now.current, now.maximum) == (before.maximum, before.maximum) {
            // What was in force a moment ago.
            let _ = setrlimit(Resource::Nofile, before);
        }
    }
}

/// The first number that may be ours, as the limit is now.
pub(crate) fn first() -> Fd {
    match SOFT.load(Relaxed) {
        0 => {
            let soft = soft();
            if soft > USUAL { HIGH } else { (soft / 4 * 3).min(HIGH as u64) as Fd }
        }
        soft if soft > USUAL => HIGH,
        soft => soft as Fd,
    }
}

fn soft() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// A duplicate out of the program's way, close-on-exec; not known as ours yet.
pub(crate) fn duplicate(fd: Fd) -> Result<Fd, Errno> {
    let duplicate = || call::fcntl(fd, F_DUPFD_CLOEXEC, first() as usize);
    if soft() > USUAL
        && let Ok(number) = duplicate()
    {
        return Ok(number);
    }
    let _room = Room::open();
    duplicate()
}

/// Moves a descriptor of ours up and keeps the application's close and dup2 away from it.
pub(crate) fn keep(fd: OwnedFd) -> Fd {
    // Without a number for that it stays where it is.
    let number = duplicate(fd.as_raw_fd()).unwrap_or_else(|_| fd.into_raw_fd());
    table::set_internal(number);
    number
}

/// Makes descriptors, or asks the daemon for some, which needs numbers for a moment.
pub(crate) fn make<T>(mut make: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    if soft() > USUAL {
        match make() {
            Err(Error::System(Errno::MFILE | Errno::MSGSIZE)) => {}
            answer => return answer,
        }
    }
    let _room = Room::open();
    make()
}
