//! RLIMIT_AS, which counts addresses: an arena is 16 GiB of them, and a few pages. What this library maps does not count: the
//! limit that the kernel has is the application's and what is mapped here.
//!
//! 1. The soft limit goes up before each mapping of ours and down after it ([`take`], [`give`]), while there is one.
//! 2. So that it may go up, the hard limit that the kernel has is the application's and `RESERVE`. No process can use as
//!    much; so a new image knows what it was given ([`view`]).
//! 3. A hard limit that the process was started with by somebody else stays: what does not fit below it is not mapped, and
//!    connections are the kernel's.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What hard limits are raised by: half of the addresses that x86-64 has for a process.
const RESERVE: u64 = 1 << 46;

/// Bytes mapped by this library.
static OURS: AtomicU64 = AtomicU64::new(0);
/// There is a soft limit.
static LIMITED: AtomicBool = AtomicBool::new(false);

/// Before so many bytes are mapped.
pub fn take(bytes: usize) {
    OURS.fetch_add(bytes as u64, SeqCst);
    shift(|soft| soft.saturating_add(bytes as u64));
}

/// After so many were unmapped, or not mapped.
pub fn give(bytes: usize) {
    OURS.fetch_sub(bytes as u64, SeqCst);
    shift(|soft| soft.saturating_sub(bytes as u64));
}

fn shift(to: impl Fn(u64) -> u64) {
    if LIMITED.load(Relaxed) && !crate::wait::is_confined() {
        let now = getrlimit(Resource::As);
        if let Some(soft) = now.current {
            let current = Some(to(soft).min(now.maximum.unwrap_or(u64::MAX)));
            // Within the hard limit anyone may; if not, what is mapped does not fit.
            let _ = setrlimit(Resource::As, Rlimit { current, ..now });
        }
    }
}

/// When the program starts: whether it was given a limit.
pub fn start() {
    LIMITED.store(getrlimit(Resource::As).current.is_some(), Relaxed);
}

/// This image is about to be replaced by one that maps nothing yet.
pub fn before_exec() {
    shift(|soft| soft.saturating_sub(OURS.load(SeqCst)));
}

/// It was not.
pub fn after_exec_failed() {
    shift(|soft| soft.saturating_add(OURS.load(SeqCst)));
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
    let now = getrlimit(Resource::As);
    let hard = now.maximum.map(|hard| hard.checked_sub(RESERVE).unwrap_or(hard));
    let soft = now.current.map(|soft| soft.saturating_sub(OURS.load(SeqCst)));
    Limit { soft, hard }
}

/// Sets it.
///
/// # Errors
/// As setrlimit(2).
pub fn set(new: Limit) -> Result<(), Errno> {
    if new.soft.unwrap_or(u64::MAX) > new.hard.unwrap_or(u64::MAX) {
        return Err(Errno::INVAL);
    }
    let now = getrlimit(Resource::As);
    let mut maximum = new.hard.map(|hard| hard.saturating_add(RESERVE));
    // One of somebody else's.
    if let (Some(hard), Some(theirs)) = (new.hard, now.maximum.filter(|theirs| *theirs < RESERVE))
        && hard <= theirs
    {
        maximum = Some(hard);
    }
    // From here on mappings of other threads are counted.
    LIMITED.store(new.soft.is_some(), Relaxed);
    let with_ours = |soft: u64| soft.saturating_add(OURS.load(SeqCst)).min(maximum.unwrap_or(u64::MAX));
    let answer = setrlimit(Resource::As, Rlimit { current: new.soft.map(with_ours), maximum });
    if answer.is_err() {
        LIMITED.store(now.current.is_some(), Relaxed);
    }
    answer
}
