//! Placeholders that are used again.
//!
//! Making the kernel's socket behind a number and closing it is most of what a connection between two processes costs. Where one was
//! closed that nothing but its number and its connection in shared memory ever was of, the next number has the same socket behind it
//! (`docs/decisions/0027-placeholders-are-used-again.md`).
//!
//! 1. A socket is [`mark::CLEAN`] from the call that makes it until the first one that asks the kernel for anything that stays with the
//!    socket or with its open file, shows which one it is, or makes another number, process or epoll set have it. Such a call takes the
//!    mark away ([`spoil`]) before it asks the kernel. Only a close-on-exec one is clean.
//! 2. A seat is a number of ours behind which such a socket stays when the program's number is closed. While the socket is the program's
//!    again the seat has it too; [`spoil`] takes it off. So what a program does with a socket is never done to one that has a second number.
//! 3. Whether it is still clean is looked at when its number is closed: no call can reach it by then, and all that did have told.
//! 4. It is used again within the tick of the kernel's coarse clock in which it was made only: what the kernel takes from the process or
//!    the host as a socket is made (cgroup, label, sysctls) is not older than that.
//! 5. None is left when this process forks, spawns what has sockets of it, confines itself, changes its user or namespaces, or its limit of
//!    descriptors; a child closes what it has inherited all the same.
//! 6. Seats are changed, and sockets spoiled, within [`table::Changing`]: a fork comes before it or after it.
//! 7. A seat is sure of its number only as long as the table has it as ours, and writes over it or closes it only where the socket is behind
//!    it that was left there: a program may close numbers past this library.

use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};

use libc::{
    F_DUPFD_CLOEXEC, IPPROTO_TCP, O_CLOEXEC, SO_DOMAIN, SO_LINGER, SO_PROTOCOL, SOCK_CLOEXEC, SOCK_NONBLOCK,
    SOCK_STREAM, SOL_SOCKET,
};
use rustix::{
    io::Errno,
    time::{ClockId, clock_gettime},
};

use crate::{
    descriptor::{
        numbers,
        table::{self, SocketRef},
    },
    process::exec,
    socket::{Kind, Socket, mark},
    sys::call,
    types::Fd,
};

/// So many. A program that opens one connection after the other needs one for each of its threads; more are numbers and kernel memory that
/// stay when it does something else.
const SEATS: usize = 4;

/// Nothing: no number.
const EMPTY: u32 = 0;
/// Being changed by one thread.
const BUSY: u32 = 1;
/// A clean socket that is nobody's.
const PARKED: u32 = 2;
/// A socket that a descriptor of the program's has.
const USED: u32 = 3;
/// A socket that is nobody's and not used again.
const STALE: u32 = 4;

struct Seat {
    /// State, and in the high half a count of its changes: who has it USED knows it by that.
    word: AtomicU64,
    number: AtomicI32,
    /// [`Socket::identity`] of what the table has of that number.
    entry: AtomicU64,
    /// SO_COOKIE of what is behind it; 0: none.
    cookie: AtomicU64,
    /// Address family, and flags of socket(2).
    what: AtomicU32,
    /// When its socket was made.
    tick: AtomicU32,
}

static PLACES: [Seat; SEATS] = [const {
    Seat {
        word: AtomicU64::new(0),
        number: AtomicI32::new(-1),
        entry: AtomicU64::new(0),
        cookie: AtomicU64::new(0),
        what: AtomicU32::new(0),
        tick: AtomicU32::new(0),
    }
}; SEATS];

/// No socket is used again any more.
static OFF: AtomicBool = AtomicBool::new(false);
/// Changes of the process's user or group.
static ERA: AtomicU32 = AtomicU32::new(0);
/// When a seat was last given a number: once a tick, as who empties them over and over pays for each.
static NUMBERED: AtomicU32 = AtomicU32::new(0);

/// A seat's number + 1 in the low three bits, and its count; 0: none.
pub(crate) type Ticket = u32;
const COUNTED: u32 = u32::MAX >> 3;

impl Seat {
    fn change(&self, from: u64, to: u32) -> Option<u64> {
        let new = (from >> 32).wrapping_add(1) << 32 | u64::from(to);
        self.word.compare_exchange(from, new, AcqRel, Relaxed).is_ok().then_some(new)
    }

    /// Takes it for a change if it is in this state.
    fn take(&self, state: u32) -> bool {
        let word = self.word.load(Acquire);
        word as u32 == state && self.change(word, BUSY).is_some()
    }

    /// The caller has it BUSY.
    fn put(&self, state: u32) -> u64 {
        let new = (self.word.load(Relaxed) >> 32).wrapping_add(1) << 32 | u64::from(state);
        self.word.store(new, Release);
        new
    }

    /// The caller has it BUSY: this socket's placeholder is behind its number now.
    fn begin(&self, socket: &Socket) {
        self.what.store(what(socket.family(), socket.made_flags()), Relaxed);
        self.tick.store(socket.made(), Relaxed);
    }

    /// Whether the table has its number as this seat's.
    fn is_ours(&self) -> bool {
        let entry = table::find(self.number.load(Relaxed));
        entry.is_some_and(|entry| entry.identity() == self.entry.load(Relaxed))
    }

    /// Whether what was left behind its number is there.
    fn is_there(&self) -> bool {
        let cookie = self.cookie.load(Relaxed);
        self.is_ours() && cookie != 0 && exec::cookie(self.number.load(Relaxed)) == Some(cookie)
    }

    /// The caller has it BUSY, and has put something behind its number: false if that is not what can be used again.
    fn fill(&self) -> bool {
        let number = self.number.load(Relaxed);
        let cookie = exec::cookie(number).filter(|_| is_new(number));
        self.cookie.store(cookie.unwrap_or(0), Relaxed);
        cookie.is_some()
    }

    /// The caller has it BUSY: its number goes, and is closed if what was left there is there.
    fn clear(&self) {
        let is_there = self.is_there();
        self.leave(is_there);
    }

    /// The same for who knows.
    fn leave(&self, is_there: bool) {
        if self.is_ours() {
            table::unset_internal(self.number.load(Relaxed));
        }
        let number = self.number.swap(-1, Relaxed);
        if is_there {
            // Ours until now.
            let _ = call::close(number);
        }
        self.put(EMPTY);
    }
}

fn ticket(place: usize, word: u64) -> Ticket {
    (place as u32 + 1) | ((word >> 32) as u32 & COUNTED) << 3
}

/// The seat of this ticket, BUSY now; `None`: it was cleared since.
fn claim(ticket: Ticket) -> Option<&'static Seat> {
    let seat = PLACES.get((ticket & 7).checked_sub(1)? as usize)?;
    let word = seat.word.load(Acquire);
    let same = word as u32 == USED && (word >> 32) as u32 & COUNTED == ticket >> 3;
    (same && seat.change(word, BUSY).is_some()).then_some(seat)
}

/// The tick of the kernel's coarse clock, in milliseconds, and the low bits of [`ERA`]; never 0.
fn tick() -> u32 {
    const BITS: u32 = 24;
    let now = clock_gettime(ClockId::MonotonicCoarse);
    let ms = (now.tv_sec as u64).wrapping_mul(1000).wrapping_add(now.tv_nsec as u64 / 1_000_000) as u32;
    (ms & ((1 << BITS) - 1) | ERA.load(Acquire) << BITS).max(1)
}

/// What is behind a number that socket(2) or accept(2) is about to answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    pub(crate) fd: Fd,
    ticket: Ticket,
    /// When it was made; 0: it is not to be used again.
    tick: u32,
}

/// `socket(2)`, of a TCP socket. `again`: one that is used again may do, and this one may be used again.
///
/// # Errors
/// As socket(2).
pub(crate) fn socket(family: u32, flags: i32, protocol: i32, again: bool) -> Result<Made, Errno> {
    let make = |tick| {
        let make = || call::socket(family as i32, SOCK_STREAM | flags, protocol);
        let fd = match make() {
            Err(Errno::MFILE) if gives_back() => make()?,
            answer => answer?,
        };
        Ok(Made { fd, ticket: 0, tick })
    };
    let is_usual = flags & !SOCK_NONBLOCK == SOCK_CLOEXEC;
    if !again || !is_usual || is_off() {
        return make(0);
    }
    let (now, what) = (tick(), what(family, flags));
    for (place, seat) in PLACES.iter().enumerate() {
        if seat.what.load(Relaxed) != what || !seat.take(PARKED) {
            continue;
        }
        if seat.what.load(Relaxed) != what || seat.tick.load(Relaxed) != now {
            let other = seat.tick.load(Relaxed) == now;
            seat.put(if other { PARKED } else { STALE });
            continue;
        }
        if !seat.is_ours() {
            seat.clear();
            continue;
        }
        let Ok(fd) = call::fcntl(seat.number.load(Relaxed), F_DUPFD_CLOEXEC, 0) else {
            // No number is free, which socket(2) says as well.
            seat.put(PARKED);
            break;
        };
        return Ok(Made { fd, ticket: ticket(place, seat.put(USED)), tick: now });
    }
    make(now)
}

/// No number is free: those of ours go that a program with such a limit would have. False: there are none.
#[cold]
fn gives_back() -> bool {
    let mut any = false;
    for seat in &PLACES {
        let is_programs = numbers::of_programs(seat.number.load(Relaxed)).is_some();
        if is_programs && (seat.take(PARKED) || seat.take(STALE)) {
            seat.clear();
            any = true;
        }
    }
    any
}

fn what(family: u32, flags: i32) -> u32 {
    family | ((flags & SOCK_NONBLOCK) as u32) << 8
}

fn is_off() -> bool {
    OFF.load(Relaxed) || fs_shm::wait::is_confined()
}

impl Made {
    /// A number that the kernel has made.
    pub(crate) fn plain(fd: Fd) -> Self {
        Made { fd, ticket: 0, tick: 0 }
    }

    /// The same socket, by another number.
    pub(crate) fn moved(self, fd: Fd) -> Self {
        Made { fd, ..self }
    }

    /// It is behind this socket's only number.
    pub(crate) fn enter(self, socket: &Socket) {
        socket.set_kept(self.ticket, self.tick);
        if self.tick != 0 {
            socket.mark(mark::CLEAN);
        }
    }

    /// Nobody has got the number. It is closed here.
    pub(crate) fn close(self) {
        // Made by `socket`.
        let _ = call::close(self.fd);
        self.let_go();
    }

    /// Of a number that is closed, or not to be known.
    pub(crate) fn let_go(self) {
        let_go(self.ticket);
    }

    pub(crate) fn ticket(self) -> Ticket {
        self.ticket
    }
}

/// The seat is given up.
pub(crate) fn let_go(ticket: Ticket) {
    if let Some(seat) = claim(ticket) {
        seat.clear();
    }
}

/// What the table has of a number goes, and is closed in the kernel by who says so, or is already: nothing is kept of it.
pub(crate) fn give_up(socket: &Socket) {
    if socket.marked(mark::CLEAN) {
        socket.unmark(mark::LINGERS);
        spoil_clean(socket);
    }
}

/// The kernel is about to be asked for something that a socket which is used again must not have: see rule 1.
#[inline]
pub(crate) fn spoil(socket: &Socket) {
    if socket.marked(mark::CLEAN) {
        spoil_clean(socket);
    }
}

/// The same of what is behind a number.
pub fn spoil_number(fd: Fd) {
    if let Some(socket) = table::find(fd) {
        spoil(socket);
    }
}

#[cold]
fn spoil_clean(socket: &Socket) {
    // Not in the middle of it: a child that is forked then would have the seat's number.
    let _changing = table::Changing::begin();
    if !socket.unmark(mark::CLEAN) {
        return;
    }
    // What the kernel is asked for next comes after it for who closes the number (`Closing::end`).
    fence(SeqCst);
    let Some(seat) = claim(socket.take_kept()) else { return };
    if socket.unmark(mark::LINGERS) && seat.is_ours() {
        // l_onoff 1, l_linger 0. setsockopt(2) has answered already, and it cannot fail.
        let _ = call::setsockopt(seat.number.load(Relaxed), SOL_SOCKET, SO_LINGER, &1_u64.to_le_bytes());
    }
    seat.clear();
}

/// SO_LINGER that resets, the option with which short connections are closed: as long as the socket is clean, it is noted only. True: it is.
/// It has a seat, by which it is set when somebody may see it.
pub(crate) fn notes_linger(fd: Fd, socket: &Socket, value: &[u8]) -> bool {
    let resets = value.len() == 8 && value[..4] != [0; 4] && value[4..] == [0; 4];
    if !resets || socket.kind() != Kind::Channel || !socket.marked(mark::CLEAN) {
        return false;
    }
    if !socket.is_kept() && (socket.made() != tick() || !seat(fd, socket)) {
        return false;
    }
    socket.mark(mark::LINGERS);
    // Another thread has spoiled it meanwhile, and may have seen the mark or not.
    socket.marked(mark::CLEAN) || !socket.unmark(mark::LINGERS)
}

/// Gives a seat to a socket that is the program's; false: there is none, or another thread closes it.
#[cold]
fn seat(fd: Fd, socket: &Socket) -> bool {
    let _changing = table::Changing::begin();
    let Some(held) = table::socket(fd).filter(|held| core::ptr::eq(held.unheld(), socket)) else { return false };
    // Who closes the number takes it out of the table first.
    let is_there = || table::find(fd).is_some_and(|behind| core::ptr::eq(behind, socket)) && held.marked(mark::CLEAN);
    let Some(seat) = seat_for(fd, held.made()) else { return false };
    if !is_there() {
        seat.clear();
        return false;
    }
    seat.begin(&held);
    let place = PLACES.iter().position(|place| core::ptr::eq(place, seat)).unwrap_or_default();
    let ticket = ticket(place, seat.put(USED));
    if !held.begin_kept(ticket) {
        // Another thread was faster.
        let_go(ticket);
        return true;
    }
    // Closed or spoiled since: by who did not find the seat yet, or has taken it.
    if !is_there() {
        let_go(held.take_kept());
        return false;
    }
    true
}

/// A number that is being closed, whose socket may stay.
pub(crate) struct Closing {
    socket: SocketRef,
    seat: &'static Seat,
    stays: bool,
}

impl Closing {
    /// Before the number is closed; it is taken out of the table already, where `socket` was behind it. `None`: there is nothing to keep.
    pub(crate) fn begin(fd: Fd, socket: SocketRef) -> Option<Self> {
        let is_local = || socket.channel().is_some_and(|channel| !channel.is_wire());
        if !socket.marked(mark::CLEAN) || socket.kind() != Kind::Channel || !is_local() || is_off() {
            spoil(&socket);
            return None;
        }
        let (made, now) = (socket.made(), tick());
        if let Some(seat) = claim(socket.take_kept()) {
            return Some(Closing { socket, seat, stays: made == now });
        }
        if made != now {
            return None;
        }
        let seat = seat_for(fd, now)?;
        seat.begin(&socket);
        Some(Closing { socket, seat, stays: true })
    }

    /// The number is closed.
    pub(crate) fn end(self) {
        // See `spoil_clean`.
        fence(SeqCst);
        if !self.socket.marked(mark::CLEAN) || is_off() {
            self.seat.clear();
            return;
        }
        self.seat.put(if self.stays { PARKED } else { STALE });
    }
}

/// A seat that has this number's socket, BUSY.
fn seat_for(fd: Fd, now: u32) -> Option<&'static Seat> {
    let has_ended = |seat: &Seat| seat.tick.load(Relaxed) != now;
    let free = PLACES.iter().find(|seat| seat.take(STALE) || has_ended(seat) && seat.take(PARKED));
    if let Some(seat) = free {
        if !seat.is_there() || call::dup3(fd, seat.number.load(Relaxed), O_CLOEXEC).is_err() {
            seat.clear();
            return None;
        }
        if seat.fill() {
            return Some(seat);
        }
        seat.leave(true);
        return None;
    }
    if NUMBERED.swap(now, Relaxed) == now {
        return None;
    }
    let seat = PLACES.iter().find(|seat| seat.take(EMPTY))?;
    let Some(number) = numbers::duplicate_below(fd) else {
        seat.put(EMPTY);
        return None;
    };
    table::set_internal(number);
    seat.number.store(number, Relaxed);
    seat.entry.store(table::find(number).map_or(0, Socket::identity), Relaxed);
    if seat.is_ours() && seat.fill() {
        return Some(seat);
    }
    seat.leave(true);
    None
}

/// Whether it is a TCP socket that has never been bound: who closes a number twice may have given it to something else by now.
fn is_new(number: Fd) -> bool {
    let is_ip = |family| family == Ok(libc::AF_INET) || family == Ok(libc::AF_INET6);
    call::int_option(number, SOL_SOCKET, SO_PROTOCOL) == Ok(IPPROTO_TCP)
        && is_ip(call::int_option(number, SOL_SOCKET, SO_DOMAIN))
        && call::getsockname(number).is_ok_and(|name| matches!(name.as_bytes(), [_, _, 0, 0, ..]))
}

/// Nothing is kept, and what is the program's now is not used again: others are about to have it, or to see it.
pub(crate) fn let_all_go() {
    /// One that is being changed is waited for: a few system calls, or a thread that has lost its CPU in them.
    const ROUNDS: u32 = 200;
    Socket::each(spoil);
    for seat in &PLACES {
        let _changing = table::Changing::begin();
        for rounds in 0..ROUNDS {
            if seat.take(PARKED) || seat.take(STALE) {
                seat.clear();
                break;
            }
            if matches!(seat.word.load(Acquire) as u32, EMPTY | USED) {
                break;
            }
            table::pause(rounds);
        }
    }
}

/// The process has another user or group: what was made before is not used again.
pub fn renew() {
    ERA.fetch_add(1, AcqRel);
    let_all_go();
}

/// Nothing is used again from here on: the kernel may answer otherwise, or make another socket, when a thread asks it for one.
pub fn stop() {
    if !OFF.swap(true, AcqRel) {
        let_all_go();
    }
}

/// In a forked child: what it has inherited all the same, of an accept that a handler has forked in the middle of.
pub(crate) fn forked() {
    for seat in &PLACES {
        seat.clear();
    }
}
