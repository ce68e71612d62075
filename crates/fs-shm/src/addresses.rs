//! RLIMIT_AS, which counts addresses: an arena is 16 GiB of them, and a few pages. What this library maps does not count: the
//! limit that the kernel has is the application's and what is mapped here.
//!
//! 1. The soft limit goes up before each mapping of ours and down after it ([`take`], [`give`]), while there is one.
//! 2. So that it may go up, the hard limit that the kernel has is the application's and `RESERVE`. No process can use as
//!    much; so a new image knows what it was given ([`view`]).
//! 3. A hard limit that the process was started with by somebody else stays: what does not fit below it is not mapped, and
//!    connections are the kernel's.

use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What hard limits are raised by: half of the addresses that x86-64 has for a process.
const RESERVE: u64 = 1 << 46;
/// In place of a limit: there is none.
const NONE: u64 = u64::MAX;

/// Bytes mapped by this library.
static OURS: AtomicU64 = AtomicU64::new(0);
/// There is a soft limit.
static LIMITED: AtomicBool = AtomicBool::new(false);
/// The soft limit as the application knows it, what the kernel was told last, and how much of that is mapped here. Where the kernel
/// has another, somebody else has set it (prlimit(1)). All with [`Turn`].
static SOFT: AtomicU64 = AtomicU64::new(NONE);
static TOLD: AtomicU64 = AtomicU64::new(NONE);
static COUNTED: AtomicU64 = AtomicU64::new(0);

/// The thread whose turn it is to change the limit; 0: none.
static HOLDER: AtomicU32 = AtomicU32::new(0);

/// The limit is read and written while it stands: of two threads that map, none undoes what the other has added.
struct Turn {
    /// False: a handler on top of its own thread's turn, or one who has it is stopped or dead.
    taken: bool,
}

impl Turn {
    /// Some 100 ms: what stands in between are a few system calls.
    const ROUNDS: u32 = 2000;

    fn begin() -> Self {
        let me = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        for round in 0..Self::ROUNDS {
            match HOLDER.compare_exchange(0, me, Acquire, Relaxed) {
                Ok(_) => return Turn { taken: true },
                Err(holder) if holder == me => break,
                Err(_) if round < 100 && crate::wait::give_way() => {}
                Err(_) => {
                    // Cut short by a signal: it looks again anyway.
                    let _ = rustix::thread::nanosleep(&rustix::thread::Timespec { tv_sec: 0, tv_nsec: 50_000 });
                }
            }
        }
        Turn { taken: false }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.taken {
            HOLDER.store(0, Release);
        }
    }
}

/// In a forked child: whoever had the turn is its parent's.
pub fn forked() {
    HOLDER.store(0, Relaxed);
}

/// Before so many bytes are mapped.
pub fn take(bytes: usize) {
    OURS.fetch_add(bytes as u64, SeqCst);
    shift(true);
}

/// After so many were unmapped, or not mapped.
pub fn give(bytes: usize) {
    OURS.fetch_sub(bytes as u64, SeqCst);
    shift(true);
}

/// The kernel's limit is the application's, and what is mapped here if that counts.
fn shift(counts: bool) {
    if LIMITED.load(SeqCst) && !crate::wait::is_confined() {
        let _turn = Turn::begin();
        if let Some(soft) = soft() {
            let ours = if counts { OURS.load(SeqCst) } else { 0 };
            let now = getrlimit(Resource::As);
            let current = soft.saturating_add(ours).min(now.maximum.unwrap_or(NONE));
            // Within the hard limit anyone may; if not, what is mapped does not fit.
            if setrlimit(Resource::As, Rlimit { current: Some(current), ..now }).is_ok() {
                record(Some(soft), Some(current), ours);
            }
        }
    }
}

/// The application's soft limit.
fn soft() -> Option<u64> {
    let now = getrlimit(Resource::As).current?;
    let is_known = now == TOLD.load(Relaxed);
    Some(if is_known { SOFT.load(Relaxed) } else { now.saturating_sub(COUNTED.load(Relaxed)) })
}

fn record(soft: Option<u64>, told: Option<u64>, counted: u64) {
    SOFT.store(soft.unwrap_or(NONE), Relaxed);
    TOLD.store(told.unwrap_or(NONE), Relaxed);
    COUNTED.store(counted, Relaxed);
}

/// When the program starts: whether it was given a limit.
pub fn start() {
    LIMITED.store(getrlimit(Resource::As).current.is_some(), SeqCst);
}

/// This image is about to be replaced by one that maps nothing yet.
pub fn before_exec() {
    shift(false);
}

/// It was not.
pub fn after_exec_failed() {
    shift(true);
}

/// A limit as the application knows it. `None`: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The one in force.
    pub soft: Option<u64>,
    /// What the soft one may be raised to.
    pub hard: Option<u64>,
}

/// RLIMIT_AS as the application has set it, or was given it.
pub fn view() -> Limit {
    let _turn = Turn::begin();
    let hard = getrlimit(Resource::As).maximum.map(|hard| hard.checked_sub(RESERVE).unwrap_or(hard));
    Limit { soft: soft(), hard }
}

/// Sets it.
///
/// # Errors
/// As setrlimit(2).
pub fn set(new: Limit) -> Result<(), Errno> {
    if new.soft.unwrap_or(NONE) > new.hard.unwrap_or(NONE) {
        return Err(Errno::INVAL);
    }
    let _turn = Turn::begin();
    let now = getrlimit(Resource::As);
    let mut maximum = new.hard.map(|hard| hard.saturating_add(RESERVE));
    // One of somebody else's.
    if let (Some(hard), Some(theirs)) = (new.hard, now.maximum.filter(|theirs| *theirs < RESERVE))
        && hard <= theirs
    {
        maximum = Some(hard);
    }
    // From here on mappings of other threads are counted: those that are not counted below wait for this turn's end.
    LIMITED.store(new.soft.is_some(), SeqCst);
    let ours = OURS.load(SeqCst);
    let current = new.soft.map(|soft| soft.saturating_add(ours).min(maximum.unwrap_or(NONE)));
    let answer = setrlimit(Resource::As, Rlimit { current, maximum });
    if answer.is_ok() {
        record(new.soft, current, ours);
    } else {
        LIMITED.store(now.current.is_some(), SeqCst);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "no limits")]
    fn what_threads_map_at_once_does_not_change_the_applications_limit() {
        const SOFT: u64 = 1 << 44;
        // The sanitizer has mapped more than that.
        if std::env::var_os("ASAN_OPTIONS").is_some() {
            println!("skipped: the limit is below what the sanitizer maps");
            return;
        }
        if crate::emulated::is_emulated() {
            println!("skipped: QEMU's emulation takes a limit of RLIMIT_AS and has none");
            return;
        }
        let before = view();
        let mine = Limit { soft: Some(SOFT), hard: before.hard };
        set(mine).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for bytes in 1..5000 {
                        take(bytes << 12);
                        assert!(getrlimit(Resource::As).current.is_some_and(|now| now >= SOFT));
                        give(bytes << 12);
                    }
                });
            }
        });
        assert_eq!(view(), mine);
        // Another's word (prlimit(1)) stands.
        setrlimit(Resource::As, Rlimit { current: Some(SOFT / 2), ..getrlimit(Resource::As) }).unwrap();
        take(1 << 20);
        give(1 << 20);
        assert!(view().soft.is_some_and(|soft| soft <= SOFT / 2));
        set(before).unwrap();
    }
}
