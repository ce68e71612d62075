//! Locks in shared memory that name their holder, so that the daemon can break those of a process that died.
//!
//! The memory is that of one side (`Memory::locks`): its holders trust each other, and its peer has no part in it.
//!
//! A lock is a word: attachment id << 32 | thread number, 0 when free. Holders copy at most one ring's worth of bytes
//! while they hold it, and never sleep; who waits spins, yields, then naps. What a lock protects is consistent at
//! each instant (a message is published by one store), so breaking a dead holder's lock needs no repair.
//!
//! The compare-exchange is left out where nobody could be met: the process has one thread, as its C library says
//! ([`tell_threads`]), and no other process ever held the side (`Users::One`). The word is written all the same, for
//! signal handlers of that thread: what they take between the load and the store here they have given back by then.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering, compiler_fence, fence};

use rustix::io::Errno;

use crate::word::AtomicU64;

static ATTACHMENT: AtomicU32 = AtomicU32::new(1);
static NEXT_THREAD: AtomicU32 = AtomicU32::new(1);

thread_local! {
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

/// Sets the attachment id in whose name this process takes locks. Called after `Welcome`, and in the child after
/// fork (with the child's id), before the first use of a channel.
pub fn set_attachment(id: u32) {
    ATTACHMENT.store(id, Ordering::Relaxed);
}

/// The attachment id of this process; 1 before [`set_attachment`].
pub fn attachment() -> u32 {
    ATTACHMENT.load(Ordering::Relaxed)
}

/// A number of this thread below 2^31, unique in the process, never 0; not a kernel thread id. Survives fork in the forking thread.
#[inline]
pub(crate) fn thread() -> u32 {
    THREAD.with(|cell| match cell.get() {
        0 => {
            let number = (NEXT_THREAD.fetch_add(1, Ordering::Relaxed) & 0x7fff_ffff).max(1);
            cell.set(number);
            number
        }
        number => number,
    })
}

/// This thread, as the words of locks name it.
pub(crate) fn me() -> u64 {
    u64::from(attachment()) << 32 | u64::from(thread())
}

/// Not 0: this process has one thread. The C library's own variable.
static SINGLE_THREADED: OnceLock<&'static AtomicU8> = OnceLock::new();

/// `flag` says (not 0) while this process has one thread: `__libc_single_threaded` of glibc 2.32 and newer. It has to become
/// 0 before a second thread runs. Without this call no compare-exchange is left out.
pub fn tell_threads(flag: &'static AtomicU8) {
    // A second call changes nothing: there is one such variable.
    SINGLE_THREADED.get_or_init(|| flag);
}

/// Whether this process has one thread; false also where that is not known.
#[inline]
pub fn is_single_threaded() -> bool {
    // Relaxed: what another thread did that has ended was seen when it was joined.
    SINGLE_THREADED.get().is_some_and(|flag| flag.load(Ordering::Relaxed) != 0)
}

/// Who can meet at a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Users {
    /// Threads of one process.
    One,
    /// Threads of several processes, at some time.
    Several,
}

/// A lock that is not free is looked at so often in a row, then so often while other threads run, then between naps of 60 µs.
const SPINS: u32 = 200;
const YIELDS: u32 = 200;
/// About 6 s in all. A holder that is stopped (SIGSTOP, a debugger) for longer makes an error.
const NAPS: u32 = 100_000;

/// Looks until it is an error.
static PATIENCE: AtomicU32 = AtomicU32::new(SPINS + YIELDS + NAPS);

/// For the daemon: a thread that serves many waits for none of them. Who holds a lock of a core's side is the core, or the daemon's
/// control thread, for microseconds.
pub fn wait_for_nobody() {
    PATIENCE.store(SPINS + 4, Ordering::Relaxed);
}

/// A held lock; released on drop.
#[must_use]
pub(crate) struct Held<'a> {
    word: &'a AtomicU64,
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        self.word.store(0, Ordering::Release);
    }
}

/// A held lock of senders. Who only looks sees a mark meanwhile, in memory that he maps.
#[must_use]
pub(crate) struct Sending<'a> {
    mark: &'a AtomicU64,
    _held: Held<'a>,
}

impl<'a> Sending<'a> {
    #[inline]
    pub(crate) fn new(held: Held<'a>, mark: &'a AtomicU64) -> Self {
        mark.store(1, Ordering::Relaxed);
        // Before whatever is written under the lock.
        fence(Ordering::Release);
        Sending { mark, _held: held }
    }
}

impl Drop for Sending<'_> {
    #[inline]
    fn drop(&mut self) {
        // Before the lock itself: the next one marks again.
        self.mark.store(0, Ordering::Release);
    }
}

/// Takes the lock.
///
/// # Errors
/// `EINTR`: this very thread holds it: a signal handler interrupted its own thread's call on this socket.
/// `EIO`: not to be had within seconds, or in the daemon ([`wait_for_nobody`]) a millisecond: its holder is stopped.
#[inline]
pub(crate) fn lock(word: &AtomicU64, users: Users) -> Result<Held<'_>, Errno> {
    let mine = me();
    if users == Users::One && is_single_threaded() && word.load(Ordering::Relaxed) == 0 {
        word.store(mine, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        return Ok(Held { word });
    }
    match word.compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed) {
        Ok(_) => Ok(Held { word }),
        Err(_) => contended(word, mine),
    }
}

/// Takes the lock if it is free: for who must not wait.
pub(crate) fn try_lock(word: &AtomicU64) -> Option<Held<'_>> {
    let mine = me();
    word.compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed).is_ok().then_some(Held { word })
}

#[cold]
fn contended(word: &AtomicU64, mine: u64) -> Result<Held<'_>, Errno> {
    let most = PATIENCE.load(Ordering::Relaxed);
    let yields = if most < SPINS + YIELDS { 0 } else { YIELDS };
    for round in 0..most {
        match word.compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return Ok(Held { word }),
            Err(holder) if holder == mine => return Err(Errno::INTR),
            Err(_) => {}
        }
        if round < SPINS {
            std::hint::spin_loop();
        } else if round < SPINS + yields && crate::wait::give_way() {
            // Another thread has run.
        } else {
            crate::futex::nap();
        }
    }
    Err(Errno::IO)
}

/// Whether this very thread holds the lock.
pub(crate) fn is_own(word: &AtomicU64) -> bool {
    word.load(Ordering::Relaxed) == me()
}

/// Frees the lock if this very thread holds it: it has left the call that took it, by a jump.
pub(crate) fn break_own(word: &AtomicU64) {
    if is_own(word) {
        word.store(0, Ordering::Release);
    }
}

/// Whether `attachment` holds the lock.
pub(crate) fn is_of(word: &AtomicU64, attachment: u32) -> bool {
    let holder = word.load(Ordering::Acquire);
    holder >> 32 == u64::from(attachment) && holder != 0
}

/// Frees the lock if `attachment` holds it; whether it did. Only for an attachment whose threads are gone.
pub(crate) fn break_lock(word: &AtomicU64, attachment: u32) -> bool {
    let holder = word.load(Ordering::Acquire);
    let is_its = holder >> 32 == u64::from(attachment) && holder != 0;
    if is_its {
        // Lost to nobody: the holder is dead, others only take the lock from 0.
        let _lost = word.compare_exchange(holder, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
    is_its
}
