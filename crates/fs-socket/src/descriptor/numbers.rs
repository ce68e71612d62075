//! Numbers of descriptors that are this library's.
//!
//! A program's numbers are the lowest free ones, and it has as many as its soft RLIMIT_NOFILE says: ours lie at or above that. The
//! kernel gives those out only while the limit is higher, so it is raised for a moment ([`Room`]), as far as the hard one allows.

use core::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use fs_shm::{
    addresses::Limit,
    control::{Error, Fd as OwnedFd},
};
use libc::F_DUPFD_CLOEXEC;
use rustix::{
    fd::{AsRawFd, IntoRawFd},
    io::Errno,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};

use crate::{
    descriptor::{kept, table},
    sys::{call, signals::Section, thread},
    types::Fd,
};

/// Highest soft limit at or above which our numbers lie. Higher: the kernel's descriptor table, which a fork copies, grows.
pub(crate) const USUAL: u64 = 1024;
/// Where they lie with a higher limit: that table has 1,024 places for a program that needs fewer.
const HIGH: Fd = 960;
/// Of the numbers below the limit the last one in so many is the program's, where ours have to be below it too: one that refuses who
/// gets the highest (memcached, with `maxconns_fast`) never comes to where there is none. More: less is left to it. Fewer: sooner are
/// ours where they came.
const LAST: u64 = 8;
/// So many of ours find room before that, fewer under a small limit: the connection to the daemon and two for each of a few epoll sets.
const OURS: u64 = 16;

/// 0, 1 and 2 are never ours: a program may start with them closed.
const STREAMS: u64 = 3;

/// The thread whose turn it is to raise the limit, to fork or to exec; 0: none.
static HOLDER: AtomicUsize = AtomicUsize::new(0);
/// The soft limit as the program has it while it is raised, + 1; 0: it is not.
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
    if let Some(current) = programs() {
        SOFT.store(0, Relaxed);
        // Raised by another thread, whose turn was waited for in vain.
        let _ = setrlimit(Resource::Nofile, Rlimit { current, ..getrlimit(Resource::Nofile) });
    }
}

/// The program's soft limit, if it is raised now.
fn programs() -> Option<Option<u64>> {
    let soft = SOFT.load(Relaxed).checked_sub(1)?;
    Some((soft != u64::MAX - 1).then_some(soft))
}

/// RLIMIT_NOFILE as the program has it, and sets it if `new` is something: what is raised for a moment is not seen, and does not
/// undo what is set meanwhile.
///
/// # Errors
/// As setrlimit(2).
pub fn exchange_limit(new: Option<Limit>) -> Result<Limit, Errno> {
    if new.is_none() {
        return exchange(None);
    }
    // Numbers that were out of the program's way may be in it from now on; also those that another thread has taken meanwhile.
    kept::let_all_go();
    let answer = exchange(new);
    kept::let_all_go();
    answer
}

fn exchange(new: Option<Limit>) -> Result<Limit, Errno> {
    // A handler that jumps would keep the turn. Where it is waited for in vain the limit may be raised, and stays so.
    let (_section, _turn) = (Section::begin(), Turn::begin());
    let now = getrlimit(Resource::Nofile);
    let raised = programs();
    if let Some(new) = new {
        let limit = Rlimit { current: new.soft, maximum: new.hard };
        match raised {
            None => setrlimit(Resource::Nofile, limit)?,
            Some(_) if new.soft.unwrap_or(u64::MAX) > new.hard.unwrap_or(u64::MAX) => return Err(Errno::INVAL),
            Some(_) => {
                setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
                SOFT.store(new.soft.unwrap_or(u64::MAX).saturating_add(1), Relaxed);
            }
        }
    }
    Ok(Limit { soft: raised.unwrap_or(now.current), hard: now.maximum })
}

/// The soft limit is raised while it stands. Another thread that opens something just then, and has no number left below the limit,
/// gets one beyond it, which works as any other.
#[derive(Debug)]
pub(crate) struct Room {
    /// False: it was raised already.
    raised: bool,
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
            return Some(Room { raised: false, _turn: turn, _section: section });
        }
        if limit.maximum == limit.current {
            return None;
        }
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).ok()?;
        SOFT.store(soft.saturating_add(1), Relaxed);
        Some(Room { raised: true, _turn: turn, _section: section })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let Some(current) = programs().filter(|_| self.raised) else { return };
        SOFT.store(0, Relaxed);
        let now = getrlimit(Resource::Nofile);
        // Somebody may have set it past this library meanwhile.
        if now.current == now.maximum {
            // What was in force a moment ago, or has been asked for since.
            let _ = setrlimit(Resource::Nofile, Rlimit { current, ..now });
        }
    }
}

/// The first number that may be ours, as the limit is now.
pub(crate) fn first() -> Fd {
    match programs() {
        None => first_below(soft()),
        Some(Some(soft)) if soft <= USUAL => soft as Fd,
        Some(_) => HIGH,
    }
}

/// The same below a limit.
fn first_below(soft: u64) -> Fd {
    let before_last = lasts(soft).saturating_sub(OURS.min(soft / 5 * 2));
    let usual = if soft > USUAL { HIGH as u64 } else { soft / 4 * 3 };
    before_last.min(usual).clamp(STREAMS, HIGH as u64) as Fd
}

fn soft() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// The first of the numbers that ours leave to the program.
fn lasts(soft: u64) -> u64 {
    soft - soft / LAST
}

/// How many numbers the program has, if this is one of them.
pub(crate) fn of_programs(number: Fd) -> Option<u64> {
    let soft = programs().map_or_else(soft, |soft| soft.unwrap_or(u64::MAX));
    ((number as u64) < soft).then_some(soft)
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

/// Whether it is one of those that ours leave to the program.
pub(crate) fn is_last(number: Fd) -> bool {
    of_programs(number).is_some_and(|soft| number as u64 >= lasts(soft))
}

/// A duplicate that stays: not one of the program's last numbers.
pub(crate) fn duplicate_to_stay(fd: Fd) -> Result<Fd, Errno> {
    let number = duplicate(fd)?;
    if is_last(number) {
        // Made above.
        let _ = call::close(number);
        return Err(Errno::MFILE);
    }
    Ok(number)
}

/// A duplicate that stays, for what can be done without: the limit is not raised for it, which is waited for, and what is put behind such a
/// number later on needs it to be below. `None`: the program has fewer numbers than is usual, or its last ones are free only.
pub(crate) fn duplicate_below(fd: Fd) -> Option<Fd> {
    let soft = programs().map_or_else(soft, |soft| soft.unwrap_or(u64::MAX));
    if soft < USUAL {
        return None;
    }
    let number = call::fcntl(fd, F_DUPFD_CLOEXEC, first_below(soft) as usize).ok()?;
    if number as u64 >= lasts(soft) {
        // Made above.
        let _ = call::close(number);
        return None;
    }
    Some(number)
}

/// Moves a descriptor of ours up and keeps the application's close and dup2 away from it.
pub(crate) fn keep(fd: OwnedFd) -> Fd {
    // Without a number for that it stays where it is.
    let number = duplicate_to_stay(fd.as_raw_fd()).unwrap_or_else(|_| fd.into_raw_fd());
    table::set_internal(number);
    number
}

/// The same for what can be done without. `None`: only the program's last numbers are free.
pub(crate) fn keep_unless_last(fd: OwnedFd) -> Option<Fd> {
    let is_there = is_last(fd.as_raw_fd());
    let number = match duplicate_to_stay(fd.as_raw_fd()) {
        Ok(number) => number,
        Err(_) if is_there => return None,
        Err(_) => fd.into_raw_fd(),
    };
    table::set_internal(number);
    Some(number)
}

/// Whether [`keep_unless_last`] would find a number below the limit, shown by one more of this descriptor.
pub(crate) fn has_room_to_stay(fd: Fd) -> bool {
    let Ok(free) = call::fcntl(fd, F_DUPFD_CLOEXEC, 0) else { return false };
    // Made above.
    let _ = call::close(free);
    !is_last(free)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn below_any_limit_some_of_ours_come_before_the_programs_last() {
        for soft in (8..5000).chain([65_536, 1 << 20, u64::MAX]) {
            let first = first_below(soft) as u64;
            let room = lasts(soft).saturating_sub(first);
            assert!(first >= STREAMS && room >= OURS.min(soft / 4), "{soft}: from {first} on, {room}");
        }
    }
}
