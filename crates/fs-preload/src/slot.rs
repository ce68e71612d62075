//! The library's state of one descriptor number.

use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use fs_carrier::exact::Carried;

use crate::object::Reference;
use crate::process;

/// Rounds of [`std::hint::spin_loop`] or yields in which a thread waits for another one's promotion
/// of the same socket. A promotion takes some 10 µs. More: a promotion that was jumped out of
/// blocks for longer; fewer: promotions are lost to a busy processor.
const ROUNDS: u32 = 10_000;
/// The kind of file that a number refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A file that the library does not handle.
    Plain = 0,
    /// A new socket whose data calls are counted.
    Watched,
    /// A watched socket that was offered to the match service.
    Offered,
    /// A thread is promoting the socket.
    Promoting,
    /// The object is a promoted socket.
    Socket,
    /// The object is an epoll set.
    Set,
}

/// One reading of a slot's state.
///
/// ```text
///  bit 63      40 39  32 31      0
/// |  generation  |  kind | users  |
/// ```
/// The generation changes whenever the number starts to refer to another file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State(u64);

const KIND_SHIFT: u32 = 32;
const GENERATION_SHIFT: u32 = 40;

impl State {
    #[inline]
    pub(crate) fn kind(self) -> Kind {
        match (self.0 >> KIND_SHIFT) as u8 {
            1 => Kind::Watched,
            2 => Kind::Offered,
            3 => Kind::Promoting,
            4 => Kind::Socket,
            5 => Kind::Set,
            _ => Kind::Plain,
        }
    }

    fn users(self) -> u32 {
        self.0 as u32
    }

    pub(crate) fn generation(self) -> u64 {
        self.0 >> GENERATION_SHIFT
    }

    fn with(self, kind: Kind) -> State {
        State(self.0 & !(0xff << KIND_SHIFT) | (kind as u64) << KIND_SHIFT)
    }

    /// Returns the state of the number's next file.
    fn next(self, kind: Kind) -> State {
        State((self.generation() + 1) << GENERATION_SHIFT | (kind as u64) << KIND_SHIFT)
    }
}

/// A call on a watched socket, from [`Slot::enter`] to [`Slot::leave`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) struct Visit(u64);

impl Visit {
    pub(crate) fn generation(self) -> u64 {
        self.0
    }
}

/// The direction of a data call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Send,
    Receive,
}

/// Bytes and calls by this library in one direction.
#[derive(Debug, Default)]
struct Tally {
    bytes: AtomicU64,
    calls: AtomicU32,
}

/// The epoll set that a watched socket is in.
#[derive(Debug, Default)]
struct Registration {
    /// The set's identity ([`crate::set::Polled::id`]); 0: none.
    set: AtomicU64,
    number: AtomicI32,
    events: AtomicU32,
    data: AtomicU64,
}

/// A copy of a [`Registration`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registered {
    pub(crate) set: u64,
    pub(crate) number: i32,
    pub(crate) events: u32,
    pub(crate) data: u64,
}

/// Calls in one direction alone that count as one in each, on a connection within this host. Fewer: connections
/// that carry one large response pay for a ring. More: a stream in one direction gets its ring later.
const ONE_WAY: u32 = 16;

/// The state of one descriptor number. All zeros: a plain one.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Slot {
    state: AtomicU64,
    /// The promoted socket or the set. See `object`.
    pub(crate) object: Reference,
    tallies: [Tally; 2],
    /// [`crate::process::forks`] at the socket's birth.
    forks: AtomicU32,
    /// Calls at which the next offer is due.
    due: AtomicU32,
    /// The offer's number.
    pub(crate) offer: AtomicU64,
    registration: Registration,
}

impl Slot {
    #[inline]
    pub(crate) fn state(&self) -> State {
        State(self.state.load(Ordering::Acquire))
    }

    fn swap(&self, from: State, to: State) -> bool {
        self.state.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Sets the number's file: a new socket of this process, or any other file that is not a
    /// promoted one.
    pub(crate) fn begin(&self, kind: Kind, forks: u32) {
        for tally in &self.tallies {
            tally.bytes.store(0, Ordering::Relaxed);
            tally.calls.store(0, Ordering::Relaxed);
        }
        self.forks.store(forks, Ordering::Relaxed);
        self.due.store(process::calls_before_offer(), Ordering::Relaxed);
        self.offer.store(0, Ordering::Relaxed);
        self.registration.set.store(0, Ordering::Relaxed);
        while !{
            let seen = self.state();
            self.swap(seen, seen.next(kind))
        } {}
    }

    /// Resets the slot, because the number is closed. Returns its former kind.
    pub(crate) fn end(&self) -> Kind {
        loop {
            let seen = self.state();
            if seen.kind() == Kind::Plain || self.swap(seen, seen.next(Kind::Plain)) {
                return seen.kind();
            }
        }
    }

    /// Begins a call on a watched socket. Returns `None` if it is not watched any more.
    pub(crate) fn enter(&self) -> Option<Visit> {
        let mut rounds = 0;
        loop {
            let seen = self.state();
            match seen.kind() {
                Kind::Watched | Kind::Offered => {
                    if self.swap(seen, State(seen.0 + 1)) {
                        return Some(Visit(seen.generation()));
                    }
                }
                Kind::Promoting => {
                    rounds += 1;
                    if rounds % 64 == 0 {
                        rustix::thread::sched_yield();
                    }
                    std::hint::spin_loop();
                    // The promoting thread has jumped out, or this is a signal handler in it. The
                    // promotion's last step then fails.
                    if rounds == ROUNDS {
                        self.swap(seen, seen.with(Kind::Plain));
                    }
                }
                Kind::Plain | Kind::Socket | Kind::Set => return None,
            }
        }
    }

    /// Ends a call.
    pub(crate) fn leave(&self, visit: Visit) {
        loop {
            let seen = self.state();
            if seen.generation() != visit.0 || seen.users() == 0 || self.swap(seen, State(seen.0 - 1)) {
                return;
            }
        }
    }

    /// Returns whether one call at most is on the socket.
    pub(crate) fn is_alone(&self) -> bool {
        self.state().users() <= 1
    }

    /// Counts a call that has moved `n` bytes.
    pub(crate) fn count(&self, direction: Direction, n: u64) {
        let tally = &self.tallies[direction as usize];
        tally.bytes.fetch_add(n, Ordering::Relaxed);
        tally.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether enough calls were made since the last attempt, in each direction or in one.
    pub(crate) fn is_offer_due(&self) -> bool {
        let due = self.due.load(Ordering::Relaxed);
        let [sent, taken] = self.tallies.each_ref().map(|tally| tally.calls.load(Ordering::Relaxed));
        sent.min(taken) >= due || sent.max(taken) / ONE_WAY >= due
    }

    /// Returns whether the connection is in its first receives.
    #[inline]
    pub(crate) fn is_young(&self) -> bool {
        self.tallies[Direction::Receive as usize].calls.load(Ordering::Relaxed) < process::calls_before_offer()
    }

    /// Returns whether an offer is due only because of the calls in one direction.
    pub(crate) fn is_one_way(&self) -> bool {
        let due = self.due.load(Ordering::Relaxed);
        self.tallies.iter().any(|tally| tally.calls.load(Ordering::Relaxed) < due)
    }

    /// Postpones the next offer after one that could not be made, to twice as many calls. A missing
    /// service then costs almost nothing.
    pub(crate) fn postpone_offer(&self) {
        self.due.store(self.due.load(Ordering::Relaxed).saturating_mul(2).max(1), Ordering::Relaxed);
    }

    /// Retries after a few calls, because too many sockets are being offered. Both ends have to
    /// offer within the service's time limit, so an end with ever longer intervals would miss the
    /// other.
    pub(crate) fn retry_offer(&self) {
        let more = process::calls_before_offer().max(1);
        self.due.store(self.due.load(Ordering::Relaxed).saturating_add(more), Ordering::Relaxed);
    }

    /// Returns the bytes that this library's calls have moved.
    pub(crate) fn carried(&self) -> Carried {
        let [sent, taken] = self.tallies.each_ref().map(|tally| tally.bytes.load(Ordering::Relaxed));
        Carried { sent, taken }
    }

    /// Returns [`crate::process::forks`] at the socket's birth.
    pub(crate) fn forks(&self) -> u32 {
        self.forks.load(Ordering::Relaxed)
    }

    /// Changes the kind within a generation. Returns false if the number was reused.
    pub(crate) fn change(&self, generation: u64, from: &[Kind], to: Kind) -> bool {
        loop {
            let seen = self.state();
            if seen.generation() != generation || !from.contains(&seen.kind()) {
                return false;
            }
            if self.swap(seen, seen.with(to)) {
                return true;
            }
        }
    }

    /// Promotes the socket if the calling thread is the only one in a call on it. Otherwise returns
    /// false.
    pub(crate) fn begin_promotion(&self, generation: u64) -> bool {
        let seen = self.state();
        seen.kind() == Kind::Offered
            && seen.users() == 1
            && seen.generation() == generation
            && self.swap(seen, seen.with(Kind::Promoting))
    }

    /// Records that the socket is in a set. Returns false if it was in one already.
    pub(crate) fn register(&self, to: Registered) -> bool {
        let at = &self.registration;
        let is_first = matches!(at.set.load(Ordering::Relaxed), 0) || at.set.load(Ordering::Relaxed) == to.set;
        at.number.store(to.number, Ordering::Relaxed);
        at.events.store(to.events, Ordering::Relaxed);
        at.data.store(to.data, Ordering::Relaxed);
        at.set.store(to.set, Ordering::Release);
        is_first
    }

    pub(crate) fn deregister(&self) {
        self.registration.set.store(0, Ordering::Relaxed);
    }

    /// Like [`Slot::deregister`], if the socket is in this set. Another thread may be adding it to a different one.
    pub(crate) fn deregister_from(&self, set: u64) {
        let _other = self.registration.set.compare_exchange(set, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub(crate) fn registered(&self) -> Option<Registered> {
        let at = &self.registration;
        let set = at.set.load(Ordering::Acquire);
        (set != 0).then(|| Registered {
            set,
            number: at.number.load(Ordering::Relaxed),
            events: at.events.load(Ordering::Relaxed),
            data: at.data.load(Ordering::Relaxed),
        })
    }
}
