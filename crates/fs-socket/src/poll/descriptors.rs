//! poll: sockets of ours beside kernel descriptors.
//!
//! Ours are asked without a system call. A thread that has to sleep takes a poller from a pool, puts it into a lane of
//! every arena concerned, asks again, and sleeps in the kernel's poll on the kernel descriptors and the poller's
//! eventfd. With one channel and nothing else it sleeps on the channel's futex instead. Nothing here allocates from the
//! heap: poll may be called in a signal handler (signal-safety(7)).

use core::{sync::atomic::Ordering::SeqCst, time::Duration};
use std::time::Instant;

use fs_shm::{Arena, Channel, Interest, Wait, WaitEnd, lanes::Lane};
use rustix::{fd::AsRawFd, io::Errno};

use super::{
    PollFd, expand, orphan, registry,
    rest::{Endless, give_poller, take_poller},
    set::Set,
    sys::kernel::{self, Entries},
    wait::{Deadline, ask_again},
};
use crate::{
    descriptor::table,
    listen,
    process::{
        self, Poller,
        held::{Held, Note},
    },
    slice,
    socket::{Kind, Socket, Watch},
    stream::channel::{CANCELLED, CANCELS, is_cancelled},
    sys::signals::{Section, Seen},
    types::{Fd, Ours},
};

/// poll(2)'s bits.
const IN: i16 = 0x1;
/// IN and RDNORM, which are one.
const READ: i16 = IN | 0x40;
const ERR: i16 = 0x8;
const HUP: i16 = 0x10;
/// The end of the control connection: it is readable as well for as long as another thread has not read an answer.
const RDHUP: i16 = 0x2000;
/// Entries of the kernel's poll that are ours: doorbell and control connection.
const OWN: usize = 2;
/// Arenas that one poll can watch; more are asked at short intervals.
const ARENAS: usize = 32;
/// Listeners that one poll can sleep on; more are asked at short intervals.
const DOZES: usize = 16;
/// Epoll sets that one poll can sleep on; with more, all are asked at short intervals.
const SETS: usize = 8;
/// Without a mapping: as many kernel descriptors as fit here.
const FEW: usize = 64;
/// With more, a look at all takes about as long as a peer's answer.
const AROUND: usize = 16;

/// What one entry is.
enum What {
    /// The kernel's.
    Kernel,
    /// A socket of ours.
    Ours(table::SocketRef),
    /// An epoll set of ours.
    Set(&'static Set),
}

/// Within a section, as all that holds what this answers.
fn what(fd: Fd) -> What {
    let Some(socket) = table::socket_in_section(fd) else { return What::Kernel };
    match socket.kind() {
        Kind::Epoll => match registry::find(socket.epoll_index()) {
            Some(set) if set.is_active() => What::Set(set),
            Some(set) => {
                // Nothing of ours is in it, but perhaps what has woken those who slept in it before, which is no event.
                if let Some(mut inner) = set.lock() {
                    inner.end_kick();
                }
                What::Kernel
            }
            None => What::Kernel,
        },
        _ if socket.watch() == Watch::Kernel => What::Kernel,
        _ => What::Ours(socket),
    }
}

/// Whether the kernel has to be asked about it (too).
fn needs_kernel(what: &What) -> bool {
    match what {
        What::Kernel => true,
        What::Ours(socket) => socket.watch() == Watch::Listener,
        What::Set(_) => false,
    }
}

/// POLLNVAL.
pub(super) const NVAL: i16 = 0x20;
/// In `revents` of an entry whose number was closed since the poll began: that ends no wait, but is told with what does (do_poll(),
/// do_select(), fs/select.c). No bit of poll(2)'s answers.
pub(super) const GONE: i16 = 0x4000;

/// Whether an entry is one to look at.
fn is_watched(entry: &PollFd) -> bool {
    entry.fd >= 0 && entry.revents & GONE == 0
}

/// Whether an entry asks for what a listener or an epoll set has to tell. Neither tells of errors or of an end unasked, so for who does
/// not ask, what waits there is no reason to look again.
fn asks_for_arrivals(entry: &PollFd) -> bool {
    expand(u32::from(IN as u16)) & u32::from(entry.events as u16) != 0
}

/// What an entry would report now.
fn now(what: &What, events: i16) -> i16 {
    let ready = match what {
        What::Kernel => 0,
        What::Ours(socket) => expand(socket.readiness().0),
        What::Set(set) if set.lock().is_some_and(|mut inner| inner.is_ready()) => expand(1),
        What::Set(_) => 0,
    };
    let asked = match what {
        // The kernel's queue reports its own errors.
        What::Ours(socket) if socket.watch() == Watch::Listener => events,
        _ => events | ERR | HUP,
    };
    // The bits of poll(2) are those of epoll(7) below 2^15.
    ready as i16 & asked
}

/// poll(2). `None`: nothing of ours is among them. With [`GONE`] in the answers.
pub(super) fn poll(fds: &mut [PollFd], timeout: Option<Duration>, mask: Option<u64>) -> Ours<usize> {
    let section = Section::begin();
    let ours = fds.iter().filter(|entry| entry.fd >= 0).filter(|entry| !matches!(what(entry.fd), What::Kernel)).count();
    drop(section);
    if ours == 0 {
        let deadline = Deadline::new(timeout);
        if deadline.is_now() || !process::may_be_attached() || !orphan::has_listener(fds) {
            return None;
        }
        let answer = orphan::poll(fds, &deadline, mask);
        return Some(answer.unwrap_or_else(|| waited(fds, deadline.left(), mask)));
    }
    Some(waited(fds, timeout, mask))
}

fn waited(fds: &mut [PollFd], timeout: Option<Duration>, mask: Option<u64>) -> Result<usize, Errno> {
    fds.iter_mut().for_each(|entry| entry.revents = 0);
    let deadline = Deadline::new(timeout);
    let handlers = Seen::now();
    let mut few = [PollFd::default(); 2 * FEW + OWN];
    let mut many = None;
    let room: &mut [PollFd] = if fds.len() <= FEW {
        &mut few
    } else {
        many.insert(Entries::new(2 * fds.len() + OWN).ok_or(Errno::NOMEM)?).as_mut()
    };
    let mut over = deadline.is_now();
    let mut asked = 0_u32;
    // A lone channel that has been slept on for a slice and whose arena has a lane for that.
    let mut is_idle = false;
    let mut has_lane = true;
    let mut has_looked = false;
    // All numbers were open once.
    let mut has_begun = false;
    loop {
        if !over && process::may_be_attached() {
            // The next daemon has what listens here announced, perhaps by others too.
            process::attached();
        }
        let n = look(fds);
        // What the kernel has, too: at once, if something of ours is there.
        let kernel = kernel_part(fds, room);
        if n > 0 || over {
            // A signal that the mask lets through ends a poll in vain, also one that does not wait (do_poll()).
            let mask = mask.filter(|_| n == 0);
            if kernel > 0 || mask.is_some() {
                kernel::ppoll(&mut room[..kernel], Some(Duration::ZERO), mask)?;
                if has_begun {
                    leave_closed(fds, &mut room[..kernel]);
                }
            }
            return Ok(merge(fds, &room[..kernel]));
        }
        let alone = single(fds, kernel, mask);
        // Once before each sleep: what it finds may be less than what is asked for.
        if alone.is_none() && !std::mem::replace(&mut has_looked, true) && look_around(fds, kernel, &deadline) {
            continue;
        }
        if handlers.has_any() {
            // One that came before the sleep does not interrupt that.
            return Err(Errno::INTR);
        }
        asked = asked.saturating_add(1);
        // What is ours in the list woke the kernel's poll, which has looked at all numbers once more then.
        let mut had_begun = has_begun;
        over = match alone {
            Some((socket, interest)) if !is_idle || !has_lane => {
                has_begun = true;
                match doze(&socket, interest, &deadline)? {
                    Dozed::Over => true,
                    Dozed::Woken => false,
                    Dozed::Slice => {
                        is_idle = true;
                        false
                    }
                }
            }
            alone => {
                let slept = sleep(fds, room, kernel, &deadline, mask, (asked, alone.is_some(), has_begun))?;
                has_begun |= matches!(slept, Slept::Woken | Slept::Rung | Slept::Over);
                had_begun |= matches!(slept, Slept::Rung);
                match slept {
                    Slept::Woken | Slept::Rung | Slept::Before => deadline.is_over(),
                    Slept::Over => true,
                    Slept::NoLane => {
                        has_lane = false;
                        false
                    }
                }
            }
        };
        has_looked = false;
        if had_begun {
            leave_closed(fds, &mut room[..kernel]);
        }
        if room[..kernel].iter().any(|entry| entry.revents != 0) {
            look(fds);
            return Ok(merge(fds, &room[..kernel]));
        }
    }
}

/// Before a sleep on a channel and something else: a peer on another CPU answers a short request sooner than a sleep and a wake-up are
/// over. (One alone does so in its own sleep.) Only bytes to read are looked for. Whether there is room to write cannot be looked at without
/// asking the peer to tell of it, nor can a listener or an epoll set without a system call; what of the kernel's is in the list waits as long.
fn look_around(fds: &[PollFd], kernel: usize, deadline: &Deadline) -> bool {
    if fds.len() > AROUND || fs_shm::wait::is_confined() {
        return false;
    }
    // Each look is a section of its own, and holds nothing when a signal handler jumps out of it.
    let reads = |entry: &&PollFd| is_watched(entry) && entry.events & READ != 0;
    let channel = |entry: &PollFd| {
        let _section = Section::begin();
        match what(entry.fd) {
            What::Ours(socket) => socket.channel(),
            _ => None,
        }
    };
    let readers = || fds.iter().filter(reads).filter_map(channel);
    let Some(place) = fs_shm::wait::place(readers()) else { return false };
    let until = deadline.left().and_then(|left| Instant::now().checked_add(left));
    let is_ready = || readers().any(|channel| channel.is_ready(Interest::Read));
    fs_shm::wait::look_around(place, fds.len() as u32, kernel == 0, until, is_ready)
}

/// Asks ours; answers how many have something.
fn look(fds: &mut [PollFd]) -> usize {
    let _section = Section::begin();
    let mut n = 0;
    for entry in fds.iter_mut().filter(|entry| is_watched(entry)) {
        entry.revents = now(&what(entry.fd), entry.events);
        n += usize::from(entry.revents != 0);
    }
    n
}

/// Numbers that were closed since the poll began are left alone from here on.
fn leave_closed(fds: &mut [PollFd], kernel: &mut [PollFd]) {
    for answer in kernel.iter_mut().filter(|answer| answer.revents & NVAL != 0) {
        answer.revents = 0;
        fds.iter_mut().filter(|entry| entry.fd == answer.fd).for_each(|entry| entry.revents = GONE);
    }
}

/// Copies the entries that the kernel is asked about to the front of `room`.
fn kernel_part(fds: &[PollFd], room: &mut [PollFd]) -> usize {
    let _section = Section::begin();
    let mut n = 0;
    for entry in fds.iter().filter(|entry| is_watched(entry) && needs_kernel(&what(entry.fd))) {
        room[n] = PollFd { revents: 0, ..*entry };
        n += 1;
    }
    n
}

/// Adds the kernel's answers, which stand in the order of `fds`; answers how many have something.
fn merge(fds: &mut [PollFd], kernel: &[PollFd]) -> usize {
    let mut kernel = kernel.iter().peekable();
    let mut n = 0;
    for entry in fds {
        // Each entry of the kernel's part has its descriptor in `fds`, in order; what became ours meanwhile is passed.
        if let Some(answer) = kernel.next_if(|answer| answer.fd == entry.fd) {
            entry.revents |= answer.revents;
        }
        if entry.revents & GONE != 0 {
            entry.revents |= NVAL;
        }
        n += usize::from(entry.revents != 0);
    }
    n
}

/// When one channel is all there is: the channel, and what to wait for on it.
fn single(fds: &[PollFd], kernel: usize, mask: Option<u64>) -> Option<(table::SocketRef, Interest)> {
    let [entry] = fds else { return None };
    if !is_watched(entry) {
        return None;
    }
    let _section = Section::begin();
    let What::Ours(socket) = what(entry.fd) else { return None };
    if kernel != 0 || mask.is_some() || socket.watch() != Watch::Channel {
        return None;
    }
    // IN and RDNORM are one, so are OUT and WRNORM; RDHUP comes with IN; TCP has neither RDBAND nor WRBAND.
    let asked = entry.events as u32 & 0x23c7;
    let socket = socket.keep();
    let all_in = |bits: u32| asked & !bits == 0;
    match (asked & 0x41 != 0, asked & 0x104 != 0) {
        (true, false) if all_in(0x2000 | 0x80 | 0x41) => Some((socket, Interest::Read)),
        (true, false) if all_in(0x2000 | 0x80 | 0x41 | 0x2) => Some((socket, Interest::Urgent)),
        (false, true) if all_in(0x200 | 0x104) => Some((socket, Interest::Write)),
        _ => None,
    }
}

/// What [`doze`] answers.
enum Dozed {
    Woken,
    /// The call's time is over.
    Over,
    /// A slice of it is.
    Slice,
}

/// Sleeps on a channel's futex.
fn doze(socket: &Socket, interest: Interest, deadline: &Deadline) -> Result<Dozed, Errno> {
    let Some(channel) = socket.channel() else { return Ok(Dozed::Woken) };
    let left = deadline.left();
    if left.is_some_and(|left| left.is_zero()) {
        return Ok(Dozed::Over);
    }
    let deadline = left.and_then(|left| Instant::now().checked_add(left));
    let how = Wait { deadline, slice: slice::of(slice::UNTOLD), ..Wait::default() };
    match channel.wait(interest, how) {
        WaitEnd::Ready => Ok(Dozed::Woken),
        WaitEnd::TimedOut => Ok(Dozed::Over),
        WaitEnd::Interrupted => Err(Errno::INTR),
        WaitEnd::Slice => {
            if let Some(attachment) = process::current() {
                attachment.check();
            }
            if is_cancelled() { Err(CANCELLED) } else { Ok(Dozed::Slice) }
        }
    }
}

/// Sleeps until something may be there. `room`: twice as many entries as `fds` and [`OWN`], of which `kernel` are the
/// kernel's part. `alone`: one channel is all there is, which needs a lane or is not slept on. `has_begun`: all numbers were open once.
fn sleep(
    fds: &[PollFd],
    room: &mut [PollFd],
    kernel: usize,
    deadline: &Deadline,
    mask: Option<u64>,
    (asked, alone, has_begun): (u32, bool, bool),
) -> Result<Slept, Errno> {
    let section = Section::begin();
    let poller = match take_poller() {
        Some(poller) => poller,
        None if alone => return Ok(Slept::NoLane),
        // No descriptor number is free: poll(2) needs none.
        None => Poller::none(0),
    };
    let note = Note::new(Held::Poller(poller));
    let mut watching = Watching {
        fds,
        poller,
        arenas: [const { None }; ARENAS],
        n: 0,
        ask: false,
        asked,
        has_begun,
        sets: [None; SETS],
        dozes: [const { None }; DOZES],
    };
    watching.begin();
    drop(section);
    let no_lane = alone && watching.ask;
    let answer = if no_lane { Ok(Slept::NoLane) } else { watching.sleep(room, kernel, deadline, mask) };
    let _section = Section::begin();
    watching.disarm_sets();
    watching.end();
    drop(note);
    if !poller.is_none() {
        give_poller(poller);
    }
    answer
}

/// Sleeps on one channel until it may be ready or the time is over; any signal handler ends it (`EINTR`). `None`: it has to be
/// done otherwise, as poll(2) is not to be had (a confined process), or no lane.
pub(crate) fn sleep_on_channel(
    channel: &Channel<'static>,
    interest: Interest,
    deadline: Option<Instant>,
) -> Option<Result<(), Errno>> {
    if fs_shm::wait::is_confined() {
        return None;
    }
    let section = Section::begin();
    let poller = take_poller()?;
    let note = Note::new(Held::Poller(poller));
    drop(section);
    let arena = channel.arena();
    let answer = arena.join(poller.id).and_then(|lane| {
        channel.watch(lane);
        let slept = sleep_on_lane(channel, interest, lane, poller, deadline);
        channel.unwatch(lane);
        arena.awake(lane);
        arena.leave(lane);
        slept
    });
    let _section = Section::begin();
    drop(note);
    give_poller(poller);
    answer
}

fn sleep_on_lane(
    channel: &Channel<'static>,
    interest: Interest,
    lane: Lane,
    poller: Poller,
    deadline: Option<Instant>,
) -> Option<Result<(), Errno>> {
    let attachment = process::current()?;
    let _endless = Endless::begin(poller)?;
    if CANCELS.load(SeqCst) {
        return None;
    }
    // What happened before the lane was joined is not told.
    if channel.is_ready(interest) || !channel.arena().prepare_sleep(lane) {
        return Some(Ok(()));
    }
    let control = attachment.client().fd().as_raw_fd();
    let mut room = [(poller.fd, IN), (control, RDHUP)].map(|(fd, events)| PollFd { fd, events, revents: 0 });
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let answer = kernel::ppoll(&mut room, left, None).map(|_| ());
    if room[0].revents != 0 {
        poller.take();
    }
    if room[1].revents != 0 {
        attachment.check();
    }
    Some(answer)
}

/// What [`sleep`] answers.
enum Slept {
    /// Something was there before the kernel was asked.
    Before,
    Woken,
    /// Woken by what is the library's, or a slice of the time is over.
    Rung,
    /// The time is over.
    Over,
    /// A channel that is alone has none.
    NoLane,
}

/// A poll's lanes while it sleeps.
struct Watching<'a> {
    fds: &'a [PollFd],
    poller: Poller,
    arenas: [Option<(&'static Arena, Lane)>; ARENAS],
    n: usize,
    ask: bool,
    /// How often this poll has looked in vain.
    asked: u32,
    has_begun: bool,
    /// Epoll sets among the entries that have been told of our sleep.
    sets: [Option<&'static Set>; SETS],
    /// Listeners among the entries, by their numbers.
    dozes: [Option<(Fd, listen::Doze)>; DOZES],
}

impl Watching<'_> {
    fn begin(&mut self) {
        let _section = Section::begin();
        for entry in self.fds.iter().filter(|entry| is_watched(entry)) {
            let What::Ours(socket) = what(entry.fd) else { continue };
            if let Some(channel) = socket.channel() {
                if let Some(lane) = self.join(channel.arena()) {
                    channel.watch(lane);
                }
                continue;
            }
            if !fs_shm::wait::is_confined() {
                // See `doze_on_listeners`.
                continue;
            }
            for i in 0..listen::refresh(&socket) {
                if let Some(arena) = listen::arena(&socket, i)
                    && let Some(lane) = self.join(arena)
                {
                    arena.watch_inbox(lane, true);
                }
            }
        }
    }

    fn join(&mut self, arena: &'static Arena) -> Option<Lane> {
        let known = self.arenas[..self.n].iter().flatten().find(|(joined, _)| core::ptr::eq(*joined, arena));
        if let Some(&(_, lane)) = known {
            return Some(lane);
        }
        let lane = if self.n < ARENAS { arena.join(self.poller.id) } else { None };
        let Some(lane) = lane else {
            self.ask = true;
            return None;
        };
        self.arenas[self.n] = Some((arena, lane));
        self.n += 1;
        Some(lane)
    }

    fn sleep(
        &mut self,
        room: &mut [PollFd],
        kernel: usize,
        deadline: &Deadline,
        mask: Option<u64>,
    ) -> Result<Slept, Errno> {
        let section = Section::begin();
        // What happened before the lanes were joined is not told.
        if self.fds.iter().any(|entry| is_watched(entry) && now(&what(entry.fd), entry.events) != 0) {
            return Ok(Slept::Before);
        }
        let quiet = self.arenas[..self.n].iter().flatten().all(|(arena, lane)| arena.prepare_sleep(*lane));
        if !quiet {
            return Ok(Slept::Before);
        }
        let Some(sets) = self.arm_sets(&mut room[kernel + OWN..]) else { return Ok(Slept::Before) };
        let first = kernel + OWN + sets;
        let Some(dozes) = self.doze_on_listeners(&mut room[first..]) else { return Ok(Slept::Before) };
        let room = &mut room[..first + dozes];
        let control = process::current().map_or(-1, |attachment| attachment.client().fd().as_raw_fd());
        room[kernel] = PollFd { fd: self.poller.fd, events: IN, revents: 0 };
        room[kernel + 1] = PollFd { fd: control, events: RDHUP, revents: 0 };
        let left = deadline.left();
        let endless = Endless::begin(self.poller);
        let slice = slice::of(if self.ask {
            ask_again(self.asked)
        } else if process::may_be_attached() {
            slice::UNTOLD
        } else if endless.is_some() {
            slice::ENDLESS
        } else {
            // As many as have a place are woken by a recall.
            slice::UNTOLD
        });
        let time = slice::timeout(slice, left);
        drop(section);
        // At the end of a slice the kernel looks at all numbers once more: what is closed by then is not for the caller, what is now is.
        let is_sliced = slice != slice::ENDLESS;
        if is_sliced && !self.has_begun && kernel::ppoll(&mut room[..kernel], Some(Duration::ZERO), None)? > 0 {
            return Ok(Slept::Before);
        }
        let answer = kernel::ppoll(room, time, mask);
        let _section = Section::begin();
        drop(endless);
        let n = answer?;
        if room[kernel].revents != 0 && !self.poller.is_none() {
            self.poller.take();
        }
        for ((fd, doze), _) in self.dozes.iter().flatten().zip(&room[first..]).filter(|(_, entry)| entry.revents != 0) {
            doze.take(*fd);
        }
        if room[kernel + 1].revents != 0
            && let Some(attachment) = process::current()
        {
            attachment.check();
        }
        if n == 0 && is_cancelled() {
            return Err(CANCELLED);
        }
        // The kernel's poll may be woken by what another thread has taken by the time that it looks: a listener was open as this began.
        let was_open = |fd| self.dozes.iter().flatten().any(|&(listener, _)| listener == fd);
        let is_closed = room[..kernel].iter().any(|entry| entry.revents & NVAL != 0 && was_open(entry.fd));
        Ok(match n {
            0 if deadline.is_over() => Slept::Over,
            _ if is_sliced || is_closed || room[kernel..].iter().any(|entry| entry.revents != 0) => Slept::Rung,
            _ => Slept::Woken,
        })
    }

    /// Announces our sleep to the peers of the epoll sets among the entries, and lays out in `room` what those sets sleep
    /// on; answers how many. `None`: something is there, look again.
    fn arm_sets(&mut self, room: &mut [PollFd]) -> Option<usize> {
        let mut n = 0;
        for entry in self.fds.iter().filter(|entry| is_watched(entry) && asks_for_arrivals(entry)) {
            let What::Set(set) = what(entry.fd) else { continue };
            let (Some(told), Some(place)) = (self.sets.get_mut(n), room.get_mut(n)) else {
                self.ask = true;
                break;
            };
            // Held by this very thread: this is a signal handler.
            let Some(mut inner) = set.lock() else {
                self.ask = true;
                continue;
            };
            inner.sleepers += 1;
            *told = Some(set);
            n += 1;
            let outer = inner.live.as_ref().and_then(super::set::Live::outer);
            if !inner.is_idle() || !inner.arm() {
                return None;
            }
            self.ask |= inner.must_ask();
            let fd = outer.unwrap_or(inner.number);
            *place = PollFd { fd, events: IN, revents: 0 };
        }
        Some(n)
    }

    /// The same for listeners, in a process that may call epoll_wait(2).
    fn doze_on_listeners(&mut self, room: &mut [PollFd]) -> Option<usize> {
        if fs_shm::wait::is_confined() {
            return Some(0);
        }
        let mut n = 0;
        for entry in self.fds.iter().filter(|entry| is_watched(entry) && asks_for_arrivals(entry)) {
            let What::Ours(socket) = what(entry.fd) else { continue };
            if socket.watch() != Watch::Listener {
                continue;
            }
            let doze = listen::Doze::begin(&socket).ok()?;
            let (Some(doze), Some(kept), Some(place)) = (doze, self.dozes.get_mut(n), room.get_mut(n)) else {
                self.ask = true;
                continue;
            };
            *place = PollFd { fd: doze.fd(), events: IN, revents: 0 };
            *kept = Some((entry.fd, doze));
            n += 1;
        }
        Some(n)
    }

    /// Ends what [`Watching::arm_sets`] began.
    fn disarm_sets(&mut self) {
        for set in self.sets.iter().flatten() {
            if let Some(mut inner) = set.lock_unread() {
                inner.end_sleep();
            }
        }
    }

    fn end(&mut self) {
        let _section = Section::begin();
        for entry in self.fds.iter().filter(|entry| entry.fd >= 0) {
            let What::Ours(socket) = what(entry.fd) else { continue };
            if let Some(channel) = socket.channel()
                && let Some(&(_, lane)) =
                    self.arenas[..self.n].iter().flatten().find(|(arena, _)| core::ptr::eq(*arena, channel.arena()))
            {
                channel.unwatch(lane);
            }
        }
        for (arena, lane) in self.arenas[..self.n].iter().flatten() {
            arena.awake(*lane);
            if arena.side() == fs_shm::Side::B {
                arena.watch_inbox(*lane, false);
            }
            arena.leave(*lane);
        }
    }
}
