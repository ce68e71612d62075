//! Waiting on one channel, or on an inbox: spin a little, then sleep on a futex.
//!
//! Spinning is worth it while the peer runs on another CPU, and if it has paid lately: where more threads want to run than there are
//! CPUs it keeps the peer from answering. If the peer last waited on this CPU, that is given up at
//! once: the peer cannot answer before. Sleeps are cut into slices of at most a second, so that a daemon that died without
//! waking us is noticed by the caller's next look; one that has lasted a slice goes on without, if the daemon's death
//! would end it ([`Ends`]).

use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::{Duration, Instant};

use crate::arena::Arena;
use crate::channel::state::{Phase, State};
use crate::channel::{CUT, Channel, OOB_INLINE, RESET_SEEN, Readiness, SND_SHUT};
use crate::futex::{self, Woken};
use crate::pages::is_held;
use crate::sleep;

/// What to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Something to read: data, end, error.
    Read,
    /// More than so many unread bytes, or no more to come: end, error (a peek for all that it has room for).
    More(usize),
    /// As `Read`, or an urgent byte (poll(2) with POLLPRI).
    Urgent,
    /// Room to write, or an error.
    Write,
    /// As `Write`, without a large ring ([`Channel::send_near`]).
    Room,
    /// No longer connecting.
    Connected,
}

/// How to wait.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    /// When to give up.
    pub deadline: Option<Instant>,
    /// How long to spin before sleeping.
    pub spin: Duration,
    /// The longest sleep before [`WaitEnd::Slice`]; capped at a second.
    pub slice: Duration,
    /// Without a deadline: sleep on these too, in place of slices. A call that slept for a slice is idle, and one more
    /// system call cheaper than a wake-up each second.
    pub ends: Option<Ends>,
}

/// What else ends a sleep.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// The daemon's death; see [`crate::pages::DirectoryPage::life`].
    pub daemon: &'static AtomicU32,
    /// Not 0: sleep in slices. Who sets it calls [`Ends::recall`].
    pub recalled: &'static AtomicU32,
}

impl Ends {
    /// All sleeps of this process that look at `recalled` are over, and sleep in slices from now on.
    pub fn recall(recalled: &AtomicU32) {
        recalled.store(1, SeqCst);
        futex::wake_all(recalled);
    }

    /// Sleeps on these and a channel's word; `None`: it has to be slices.
    fn sleep(self, word: &AtomicU32, seen: u32) -> Option<Woken> {
        let daemon = self.daemon.load(Acquire);
        if !is_held(daemon) || self.recalled.load(Acquire) != 0 || is_confined() {
            return None;
        }
        let woken = futex::wait_any([(word, seen), (self.daemon, daemon), (self.recalled, 0)], LONG)?;
        // As if the time were over: the caller has to look.
        let ended = self.daemon.load(Acquire) != daemon || self.recalled.load(Acquire) != 0;
        Some(if matches!(woken, Woken::Wake) && ended { Woken::Timeout } else { woken })
    }
}

impl Default for Wait {
    fn default() -> Self {
        Wait { deadline: None, spin: Wait::SPIN, slice: Duration::from_secs(1), ends: None }
    }
}

impl Wait {
    /// Longer than a peer on another CPU takes to answer a short request (some µs), about what a sleep and a wake-up
    /// cost together. Too low: a system call for each message. Too high: CPU burned before every sleep.
    pub const SPIN: Duration = Duration::from_micros(20);
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitEnd {
    /// Ready, or perhaps ready: try again.
    Ready,
    /// The deadline has passed.
    TimedOut,
    /// A slice is over: check that peer and daemon live, then wait on.
    Slice,
    /// A signal handler ran. (The kernel does not restart a timed futex wait; whether to is the caller's to know.)
    Interrupted,
}

/// Longest sleep that the daemon's death ends: the kernel wakes one sleeper, which tells the others, but may have been killed
/// with the daemon. Shorter: idle threads cost CPU. Longer: after that they hang.
const LONG: Duration = Duration::from_secs(30);
/// Spin rounds between two looks at the clock.
const ROUNDS: u32 = 64;
/// About half a microsecond: what a stream's reader lets the producer run on for. Too low: the producer's line moves for
/// each message. Too high: latency of messages that nobody answers.
const STREAM_PAUSES: u32 = 16;
/// Yields to a peer on the same CPU before sleeping.
const YIELDS: u32 = 4;
/// A yield that takes longer has not only run the peer: somebody else uses this CPU, and gets a time slice (some ms) for
/// each yield, while a sleeper is woken at once.
const LONG_YIELD: Duration = Duration::from_micros(300);
/// Waits without yields after one, until it is tried again: at some µs each, a try in a hundred ms.
const CROWDED_WAITS: u32 = 10_000;
/// Waits that are left of those.
static CROWDED: AtomicU32 = AtomicU32::new(0);

impl Channel<'_> {
    /// Waits until `interest` holds.
    pub fn wait(&self, interest: Interest, how: Wait) -> WaitEnd {
        let ready = || self.is_ready(interest);
        if ready() {
            return WaitEnd::Ready;
        }
        let is_found =
            if self.meet(this_cpu()) { yield_until(ready) } else { PAID.spin(how, self.pace(interest), ready) };
        if is_found {
            return WaitEnd::Ready;
        }
        let wake = &self.block().inn[self.side().index()].wake;
        let (flag, word) = match interest {
            Interest::Read | Interest::More(_) | Interest::Urgent => (&wake.rx_sleep, &wake.rx_word),
            Interest::Write | Interest::Room | Interest::Connected => (&wake.tx_sleep, &wake.tx_word),
        };
        doze(flag, word, how, ready)
    }

    /// Tells the peer which CPU we wait on; answers whether it last waited on that one.
    fn meet(&self, cpu: u32) -> bool {
        let (me, peer) = (self.side().index(), self.side().other().index());
        let own = &self.block().inn[me].wake.cpu;
        // The peer reads this line after each message: not written without need.
        if own.load(Relaxed) != cpu {
            own.store(cpu, Relaxed);
        }
        self.block().inn[peer].wake.cpu.load(Relaxed) == cpu
    }

    /// Gives the CPU to a reader that last waited on it, before what it has not read goes into a large ring. True: it has read.
    pub(crate) fn let_reader_run(&self) -> bool {
        let peer = &self.block().inn[self.side().other().index()].wake;
        let tx = self.tx();
        peer.cpu.load(Relaxed) == this_cpu() && tx.rare.large.load(Relaxed) == 0 && yield_until(|| tx.is_near_room())
    }

    /// Pauses between two looks. A side that only receives looks seldom: each look takes the producer's line away from
    /// it, and a stream goes faster in batches; a side that answers looks all the time.
    fn pace(&self, interest: Interest) -> u32 {
        if interest != Interest::Read {
            return 1;
        }
        let tail = self.tx().out.tail.load(Relaxed);
        let before = &self.rx().inn.sent_before;
        let only_receives = before.load(Relaxed) == tail;
        before.store(tail, Relaxed);
        if only_receives { STREAM_PAUSES } else { 1 }
    }

    /// A cheap look, for spinning; `true` also when the call that follows will find an end or an error.
    #[inline]
    pub fn is_ready(&self, interest: Interest) -> bool {
        match interest {
            Interest::Read => self.is_readable(),
            Interest::More(seen) => {
                self.queued_in() > seen || self.readiness().intersects(Readiness::RDHUP | Readiness::ERR)
            }
            Interest::Urgent => {
                let marked = self.rx().rare.urgent.load(Relaxed) != 0;
                self.is_ready(Interest::Read) || marked && self.readiness().contains(Readiness::PRI)
            }
            Interest::Write => self.readiness().intersects(Readiness::OUT | Readiness::ERR | Readiness::HUP),
            Interest::Room => {
                // An error, or the end. Not what a flag alone says that means neither (TCP_CORK): where there is room for a large ring it
                // can be written to, and who asks for less would ask for ever.
                let state = self.state();
                let is_over = |channel: &Self| match state {
                    Some(state) if state.is_plain() => {
                        let flags = channel.own().flags.load(Relaxed);
                        flags & (SND_SHUT | RESET_SEEN) != 0 || channel.own().error.load(Relaxed) != 0
                    }
                    _ => channel.is_ready(Interest::Write),
                };
                !self.is_plain(state) && is_over(self) || self.tx().writable(false).unwrap_or(true)
            }
            Interest::Connected => self.state().is_none_or(|state| state.phase() != Phase::Connecting),
        }
    }

    /// [`Interest::Read`]. Most looks of a spin find nothing, by seven loads.
    #[inline]
    fn is_readable(&self) -> bool {
        let (me, peer) = (self.side().index(), self.side().other().index());
        let (out, inn) = (&self.block().out[peer], &self.block().inn[me].hot);
        let has_some = out.hot.tail.load(Acquire) != inn.head.load(Relaxed);
        has_some && self.has_enough()
            || !self.is_plain(self.state()) && self.readiness().intersects(Readiness::IN | Readiness::ERR)
            || out.rare.fin.load(Acquire) != 0
            || out.rare.urgent.load(Relaxed) != 0 && self.readiness().contains(Readiness::IN)
    }

    /// Of what is unread.
    fn has_enough(&self) -> bool {
        let rx = self.rx();
        match rx.unread() {
            // An urgent byte alone is not readable.
            Ok((_, 1)) if rx.rare.urgent.load(Relaxed) != 0 => false,
            Ok((_, unread)) => self.is_enough(unread),
            Err(_) => true,
        }
    }

    /// Open, nobody closed or reset, nothing shut, no error pending. That a call had no room for all it had is nothing that a look
    /// finds: each of a spin would ask the peer to tell of room.
    fn is_plain(&self, state: Option<State>) -> bool {
        let own = self.own();
        let is_unmarked = own.flags.load(Relaxed) & !(OOB_INLINE | CUT) == 0;
        state.is_some_and(State::is_plain) && is_unmarked && own.error.load(Relaxed) == 0
    }
}

impl Arena {
    /// Waits until a connection waits for accept, or the arena is closed (side B). For a listener that has one arena
    /// only; otherwise use a poller.
    pub fn wait_inbox(&self, how: Wait) -> WaitEnd {
        let ready = || self.pending() != 0 || self.is_closed();
        if ready() || spin(how, 1, ready) {
            return WaitEnd::Ready;
        }
        doze(&self.head().inbox_sleep, &self.head().inbox_word, how, ready)
    }
}

/// Where the peers of one who waits on several channels last waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// All of them on this very CPU.
    Here,
    /// At least one on another, or it is not known.
    Elsewhere,
}

/// Tells the peers of `channels` which CPU this thread waits on, and answers where they are; `None`: there is no channel.
pub fn place<'a>(channels: impl Iterator<Item = Channel<'a>>) -> Option<Place> {
    let cpu = this_cpu();
    channels.fold(None, |place, channel| {
        let is_here = channel.meet(cpu) && place != Some(Place::Elsewhere);
        Some(if is_here { Place::Here } else { Place::Elsewhere })
    })
}

/// For who is about to sleep on channels and something else: looks until `ready`, for as long as that has paid lately. A look at `many`
/// takes so many times as long as one at a channel. To peers on this CPU it is given up, if the caller `may_yield`. True: something is
/// ready.
pub fn look_around(
    place: Place,
    many: u32,
    may_yield: bool,
    deadline: Option<Instant>,
    ready: impl Fn() -> bool,
) -> bool {
    match place {
        Place::Here => may_yield && yield_until(ready),
        Place::Elsewhere => PAID_AROUND.spin(Wait { deadline, ..Wait::default() }, many.max(1), ready),
    }
}

static CONFINED: AtomicBool = AtomicBool::new(false);

/// This process is about to confine itself to few system calls (seccomp), from now on: those without which waiting
/// works are not made any more. sshd's filter, for one, kills who calls sched_yield.
pub fn confine() {
    CONFINED.store(true, Relaxed);
}

/// Whether it is.
pub fn is_confined() -> bool {
    CONFINED.load(Relaxed)
}

/// The CPU that this thread is on, + 1; 0: not known (Miri has none).
pub(crate) fn this_cpu() -> u32 {
    if cfg!(miri) { 0 } else { rustix::thread::sched_getcpu() as u32 + 1 }
}

/// Gives the CPU to another thread (sched_yield(2)). False: not in a confined process.
#[inline]
pub fn give_way() -> bool {
    let may = !CONFINED.load(Relaxed);
    if may {
        rustix::thread::sched_yield();
    }
    may
}

/// Gives the CPU to a peer that waits for it, a few times, unless others take it instead.
fn yield_until(ready: impl Fn() -> bool) -> bool {
    // Two threads that count one wait twice do no harm.
    let crowded = CROWDED.load(Relaxed);
    if crowded != 0 {
        CROWDED.store(crowded - 1, Relaxed);
        return false;
    }
    let mut before = Instant::now();
    for _ in 0..YIELDS {
        if !give_way() {
            return false;
        }
        let now = Instant::now();
        if now - before > LONG_YIELD {
            CROWDED.store(CROWDED_WAITS, Relaxed);
            return ready();
        }
        if ready() {
            return true;
        }
        before = now;
    }
    false
}

/// Spins in vain in a row after which waits sleep at once; each of them halves the time. More: on a host with more threads that want to run
/// than CPUs the peer, which may want this very CPU, waits for it. Fewer: a peer that was late a few times is no longer waited for.
const VAIN: u32 = 4;
/// Then one wait in so many tries again, for the whole time: a peer whose answers take half of it would not be found by less.
const RETRY: u32 = 32;
/// What spins have come to lately.
struct Paid {
    /// How often the time is halved now.
    halved: AtomicU32,
    /// Waits that did not spin.
    skipped: AtomicU32,
}

/// Of all connections of this process: one that is made for each request waits once or twice.
static PAID: Paid = Paid::new();
/// Of waits on several: those end by a time-out or something of the kernel's as well, which says nothing of peers' answers.
static PAID_AROUND: Paid = Paid::new();

impl Paid {
    const fn new() -> Self {
        Paid { halved: AtomicU32::new(0), skipped: AtomicU32::new(0) }
    }

    /// How often the time of the next wait is halved; `None`: it sleeps at once. (Threads that count at once lose a count, which does no
    /// harm; who spins as before writes nothing.)
    fn halved(&self) -> Option<u32> {
        let halved = self.halved.load(Relaxed);
        if halved < VAIN {
            return Some(halved);
        }
        let skipped = self.skipped.load(Relaxed).wrapping_add(1);
        self.skipped.store(skipped, Relaxed);
        skipped.is_multiple_of(RETRY).then_some(0)
    }

    /// Spins for as long as that has paid lately.
    fn spin(&self, how: Wait, pace: u32, ready: impl Fn() -> bool) -> bool {
        let seen = self.halved.load(Relaxed);
        let Some(halved) = self.halved() else { return false };
        let found = spin(Wait { spin: how.spin / (1 << halved), ..how }, pace, ready);
        let next = if found { halved.saturating_sub(1) } else { (halved + 1).max(seen).min(VAIN) };
        if next != seen && !how.spin.is_zero() {
            self.halved.store(next, Relaxed);
        }
        found
    }
}

/// Spins for `how.spin`, not past the deadline.
fn spin(how: Wait, pace: u32, ready: impl Fn() -> bool) -> bool {
    if how.spin.is_zero() {
        return false;
    }
    let mut end = None;
    loop {
        for _ in 0..(ROUNDS / pace).max(1) {
            if ready() {
                return true;
            }
            for _ in 0..pace {
                std::hint::spin_loop();
            }
        }
        let now = Instant::now();
        let end =
            *end.get_or_insert_with(|| how.deadline.map_or(now + how.spin, |deadline| deadline.min(now + how.spin)));
        if now >= end {
            return false;
        }
    }
}

/// Sleeps one slice (`sleep.rs` has the protocol).
fn doze(flag: &crate::word::AtomicU32, word: &AtomicU32, how: Wait, ready: impl Fn() -> bool) -> WaitEnd {
    let mut slice = how.slice.min(Duration::from_secs(1));
    if let Some(deadline) = how.deadline {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return WaitEnd::TimedOut;
        }
        slice = slice.min(left);
    }
    let seen = word.load(SeqCst);
    if !sleep::announce(flag, &ready) {
        return WaitEnd::Ready;
    }
    let ends = how.ends.filter(|_| how.deadline.is_none());
    let woken = ends.and_then(|ends| ends.sleep(word, seen)).unwrap_or_else(|| futex::wait(word, seen, slice));
    match woken {
        Woken::Wake => WaitEnd::Ready,
        Woken::Signal => WaitEnd::Interrupted,
        Woken::Timeout if ready() => WaitEnd::Ready,
        Woken::Timeout if how.deadline.is_some_and(|deadline| Instant::now() >= deadline) => WaitEnd::TimedOut,
        Woken::Timeout => WaitEnd::Slice,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn who_spins_in_vain_stops_and_tries_now_and_then() {
        let paid = Paid::new();
        // Looks of a wait, of which the `at`th finds something, or none.
        let looks = |at: Option<u32>| {
            let count = Cell::new(0);
            paid.spin(Wait::default(), 1, || {
                count.set(count.get() + 1);
                Some(count.get()) == at
            });
            count.get()
        };
        assert_eq!(looks(Some(3)), 3);
        (0..VAIN).for_each(|_| assert!(looks(None) >= ROUNDS));
        let tries = (0..RETRY).filter(|_| looks(None) > 0).count();
        assert_eq!(tries, 1, "of {RETRY}");
        // For the whole time: whoever answers within it is found again.
        let tries: Vec<u32> = (0..RETRY).filter_map(|_| paid.halved()).collect();
        assert_eq!(tries, [0]);
        // A try that ends with something, and all spin again.
        while looks(Some(1)) == 0 {}
        (0..VAIN).for_each(|_| assert!(looks(None) >= ROUNDS));
        assert_eq!(looks(None), 0);
    }
}
