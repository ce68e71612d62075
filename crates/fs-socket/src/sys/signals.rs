//! What signal handlers have done; signals held back for the length of a critical section that cannot be re-entered.

use core::{
    cell::Cell,
    sync::atomic::{
        AtomicU8, AtomicU32, AtomicUsize,
        Ordering::{Relaxed, SeqCst},
        compiler_fence,
    },
};

use rustix::io::Errno;

use super::call::call;

#[cfg(target_arch = "x86_64")]
const RT_SIGPROCMASK: usize = 14;
#[cfg(target_arch = "aarch64")]
const RT_SIGPROCMASK: usize = 135;
const SIG_SETMASK: usize = 2;

#[cfg(target_arch = "x86_64")]
const TGKILL: usize = 234;
#[cfg(target_arch = "aarch64")]
const TGKILL: usize = 131;
#[cfg(target_arch = "x86_64")]
const RT_TGSIGQUEUEINFO: usize = 297;
#[cfg(target_arch = "aarch64")]
const RT_TGSIGQUEUEINFO: usize = 240;

#[cfg(target_arch = "x86_64")]
const RT_SIGACTION: usize = 13;
#[cfg(target_arch = "aarch64")]
const RT_SIGACTION: usize = 134;
const SA_RESTART: u64 = 0x1000_0000;

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Default)]
struct Action {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

thread_local! {
    /// Handlers that have run in this thread, and of those the ones that are installed without SA_RESTART.
    static ALL: Cell<u32> = const { Cell::new(0) };
    static ENDING: Cell<u32> = const { Cell::new(0) };
    /// Handlers that this thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// The function that calls [`handler_begins`] for handlers without SA_RESTART, as the kernel has it.
static ENDING_RUNNER: AtomicUsize = AtomicUsize::new(0);

/// Handlers without SA_RESTART are run by this function from here on, which tells of each ([`handler_begins`]).
pub fn runs_handlers(ending: usize) {
    ENDING_RUNNER.store(ending, Relaxed);
}

/// No handler runs in the middle of a request to the daemon, from here on.
pub(crate) fn put_off_in_requests() {
    fs_shm::control::make_requests_within(begin_section, end_section);
}

/// A handler of the application's begins in this thread: one that is installed with SA_RESTART, or one that is not. Answers what
/// [`handler_ends`] is to be given.
pub fn handler_begins(restarts: bool) -> u32 {
    ALL.set(ALL.get().wrapping_add(1));
    if !restarts {
        ENDING.set(ENDING.get().wrapping_add(1));
    }
    let depth = DEPTH.get();
    DEPTH.set(depth + 1);
    depth
}

/// It has returned.
pub fn handler_ends(depth: u32) {
    DEPTH.set(depth);
}

/// Whether this thread is in one.
pub(crate) fn in_handler() -> bool {
    DEPTH.get() != 0
}

/// This thread jumps. Whether out of handlers.
pub(crate) fn leave_handlers() -> bool {
    let left = DEPTH.replace(0) != 0;
    if left {
        SECTIONS.set(0);
    }
    left
}

/// What was held by the calls that it has jumped out of is let go: what came in the middle of those comes now.
pub(crate) fn after_jump() {
    deliver();
}

/// Signals that one section can put off; the next one's handler runs in the middle of it.
const LATE_MOST: usize = 4;
/// A `siginfo_t` as words.
type Info = [u64; 16];

/// Signals that were put off. A handler may come in the middle of each step: who has set a bit of `claimed` has that place, who has taken
/// one out of `ready` has what lies there.
struct Late {
    claimed: AtomicU32,
    ready: AtomicU32,
    /// Number of each, and whose it is: a forked child has its parent's here too.
    of: [Cell<(i32, u32)>; LATE_MOST],
    /// What its handler is given.
    info: [Cell<Option<Info>>; LATE_MOST],
}

impl Late {
    fn is_ready(&self, place: usize) -> bool {
        self.ready.load(Relaxed) & 1 << place != 0
    }

    fn put(&self, signal: i32, info: Option<Info>) -> bool {
        let free = |place: &usize| self.claimed.fetch_or(1 << place, Relaxed) & 1 << place == 0;
        let Some(place) = (0..LATE_MOST).find(free) else { return false };
        compiler_fence(SeqCst);
        self.of[place].set((signal, process()));
        self.info[place].set(info);
        compiler_fence(SeqCst);
        self.ready.fetch_or(1 << place, Relaxed);
        true
    }

    fn take(&self, place: usize) -> Option<(i32, u32, Option<Info>)> {
        if self.ready.fetch_and(!(1 << place), Relaxed) & 1 << place == 0 {
            return None;
        }
        compiler_fence(SeqCst);
        let ((signal, process), info) = (self.of[place].get(), self.info[place].get());
        compiler_fence(SeqCst);
        self.claimed.fetch_and(!(1 << place), Relaxed);
        Some((signal, process, info))
    }
}

/// This process's id. (The C library's getpid(2) is a system call too.)
fn process() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get().cast_unsigned()
}

thread_local! {
    /// Sections that this thread is in.
    static SECTIONS: Cell<u32> = const { Cell::new(0) };
    /// What came in the middle of one.
    static LATE: Late = const {
        Late {
            claimed: AtomicU32::new(0),
            ready: AtomicU32::new(0),
            of: [const { Cell::new((0, 0)) }; LATE_MOST],
            info: [const { Cell::new(None) }; LATE_MOST],
        }
    };
}

/// From here to [`end_section`] handlers of this thread wait, those that are run by [`handler_begins`]: what is changed cannot be
/// left half done by a jump, nor met half done by a handler's calls. Without a system call, which blocking signals would be.
#[inline]
pub(crate) fn begin_section() {
    SECTIONS.set(SECTIONS.get() + 1);
    compiler_fence(SeqCst);
}

/// The section is over; what came meanwhile comes now.
#[inline]
pub(crate) fn end_section() {
    compiler_fence(SeqCst);
    let left = SECTIONS.get().saturating_sub(1);
    SECTIONS.set(left);
    if left == 0 {
        deliver();
    }
}

/// A section for as long as it stands.
#[derive(Debug)]
#[must_use]
pub(crate) struct Section(());

impl Section {
    #[inline]
    pub(crate) fn begin() -> Self {
        begin_section();
        Section(())
    }
}

impl Drop for Section {
    #[inline]
    fn drop(&mut self) {
        end_section();
    }
}

/// The same in a forked child, with all sections of the thread that has forked: what came to the child comes now, what came to its parent
/// is that one's.
pub(crate) fn end_sections_in_child() {
    SECTIONS.set(0);
    deliver();
}

/// A handler is about to run: true if it is to be left alone, as the signal comes again at the section's end. `info`: what
/// the handler is given, if it is one with SA_SIGINFO.
pub fn defer(signal: i32, info: Option<Info>) -> bool {
    // A confined process may not be allowed to have it come again.
    if SECTIONS.get() == 0 || fs_shm::wait::is_confined() {
        return false;
    }
    LATE.with(|late| {
        // Of one that waits already no other waits, but for those of SIGRTMIN and above (signal(7)).
        const RTMIN: i32 = 32;
        let is_same = |place: usize| late.is_ready(place) && late.of[place].get() == (signal, process());
        signal < RTMIN && (0..LATE_MOST).any(is_same) || late.put(signal, info)
    })
}

fn deliver() {
    LATE.with(|late| {
        if late.ready.load(Relaxed) == 0 {
            return;
        }
        // They come together as it ends. Another's handler that jumped in the middle would leave a place taken for good, or lose what was
        // taken out of one.
        let _blocked = Blocked::new();
        for (signal, of, info) in (0..LATE_MOST).filter_map(|place| late.take(place)) {
            let process = process();
            if of != process {
                continue;
            }
            let thread = rustix::thread::gettid().as_raw_nonzero().get() as usize;

            let (number, info) = match &info {
                Some(info) => (RT_TGSIGQUEUEINFO, info.as_ptr() as usize),
                None => (TGKILL, 0),
            };
            // SAFETY: numbers, and a `siginfo_t` that the kernel has written. A process may send itself any.
            // EAGAIN: as many signals wait as may: it is lost, as it would have been on its way here.
            let _ = unsafe { call(number, [process as usize, thread, signal as usize, info, 0, 0]) };
        }
    });
}

/// What handlers had done in this thread at some time.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    all: u32,
    ending: u32,
}

impl Seen {
    /// By now.
    pub fn now() -> Self {
        Seen { all: ALL.get(), ending: ENDING.get() }
    }

    /// Any has run since.
    pub(crate) fn has_any(self) -> bool {
        ALL.get() != self.all
    }

    /// One without SA_RESTART has run since.
    pub fn has_ended(self) -> bool {
        ENDING.get() != self.ending
    }

    /// After a handler interrupted a wait: whether the call is to be restarted, as the kernel does for SA_RESTART.
    ///
    /// Where no handler is known to have run it was a stop and SIGCONT, which restarts most calls, or one that was installed by a
    /// system call of the program's own: it is restarted if every such handler asks for it (32 and 33 are the C library's; those of
    /// faults, which every Rust program has, are for what the thread does itself); in a confined process, as it was when that began,
    /// for rt_sigaction(2) may be forbidden.
    pub fn restarted(self) -> bool {
        if self.has_any() {
            return !self.has_ended();
        }
        if LATE.with(|late| late.ready.load(Relaxed) != 0) {
            return false;
        }
        match REMEMBERED.load(Relaxed) {
            0 => restart_now(),
            known => known == 1,
        }
    }
}

/// 0: not confined; 1: all handlers restart; 2: not all.
static REMEMBERED: AtomicU8 = AtomicU8::new(0);

/// This process is about to confine itself.
pub fn remember() {
    REMEMBERED.store(if restart_now() { 1 } else { 2 }, Relaxed);
}

fn restart_now() -> bool {
    // SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGSYS; the C library's own.
    let is_asked = |signal: &usize| !matches!(signal, 4..=8 | 11 | 31 | 32 | 33);
    (1..=64_usize).filter(is_asked).all(|signal| {
        let mut action = Action::default();
        let arguments = [signal, 0, &raw mut action as usize, 8, 0, 0];
        // SAFETY: the kernel writes one `struct sigaction`, with masks of eight bytes.
        let known = unsafe { call(RT_SIGACTION, arguments) };
        // 0: SIG_DFL, 1: SIG_IGN.
        let is_told_of = action.handler <= 1 || action.handler == ENDING_RUNNER.load(Relaxed);
        known.is_err() || is_told_of || action.flags & SA_RESTART != 0
    })
}

/// All signals are blocked in this thread while it stands.
#[derive(Debug)]
pub struct Blocked {
    before: u64,
}

impl Blocked {
    /// Blocks all that can be blocked.
    pub fn new() -> Self {
        Blocked { before: set(u64::MAX).unwrap_or(0) }
    }
}

impl Default for Blocked {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // It has no way to fail with a mask of the right size.
        let _ = set(self.before);
    }
}

fn set(mask: u64) -> Result<u64, Errno> {
    let mut before = 0_u64;
    let arguments = [SIG_SETMASK, &raw const mask as usize, &raw mut before as usize, 8, 0, 0];
    // SAFETY: both masks are the kernel's eight bytes and live through the call.
    unsafe { call(RT_SIGPROCMASK, arguments) }?;
    Ok(before)
}
