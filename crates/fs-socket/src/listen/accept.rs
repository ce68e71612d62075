//! accept(2): from the inboxes and from the kernel's queue, and the wait for either.

use core::sync::atomic::{
    Ordering::{Acquire, Relaxed, SeqCst},
    fence,
};
use std::time::{Duration, Instant};

use fs_shm::{
    control::{KernelReason, Object},
    holder,
    pages::ListenerPage,
    sleepers::{self, Mine, Sleepers, Turn},
};
use libc::{SOCK_CLOEXEC, SOCK_NONBLOCK};
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    fd::AsRawFd,
    io::Errno,
};

use super::{
    Listener,
    inbox::Next,
    live,
    number::{Number, beside},
    of,
    wake::Armed,
};
use crate::{
    address,
    descriptor::{is_own, kept, table},
    options::recall_timeout,
    poll,
    process::{
        self,
        arenas::{Shared, UNTRUE},
        held::{Counted, Held, Note},
    },
    slice,
    socket::{Kind, Socket, mark},
    stream::{
        channel::{self, CANCELLED, CANCELS, O_NONBLOCK, Patience},
        connect,
    },
    sys::{self, call, signals},
    types::{Address, Fd, Ours},
};

/// `accept4(2)` (and `accept(2)` with flags 0): the new descriptor and the peer's address.
/// `None` also when the listener is the kernel's alone.
pub fn accept4(fd: Fd, flags: i32) -> Ours<(Fd, Address)> {
    let held = table::socket(fd)?;
    let socket = held.unheld();
    if is_own(fd, socket) {
        return Some(Err(Errno::BADF));
    }
    if flags & !(SOCK_CLOEXEC | SOCK_NONBLOCK) != 0 {
        return Some(Err(Errno::INVAL));
    }
    if socket.kind() == Kind::Channel {
        return Some(a_number(fd).and(Err(Errno::INVAL)));
    }
    let listener = of(socket)?;
    if listener.id.load(Acquire) == 0 {
        // Attaching, if it is time to try again, announces it.
        process::attached();
        // Without a daemon it is waited for here: in the kernel it would not see what comes to its inboxes once another thread or
        // process has announced it.
        let waits = process::may_be_attached() && socket.status_of(fd) & O_NONBLOCK == 0;
        if listener.id.load(Acquire) == 0 && (!waits || socket.marked(mark::KERNEL_ONLY)) {
            return None;
        }
    }
    let mut patience = Patience::new(socket.timeout(false));
    let mut handlers = signals::Seen::now();
    let (mut waits, mut begins) = (true, true);
    // Slept, and woken by the kernel's queue.
    let (mut slept, mut edge) = (false, false);
    // Taken before the first sleep.
    let mut number = None;
    let mut waiting = None;
    // Among those who sleep, from the first sleep on.
    let mut place = None;
    // The listener's arenas as of the last sleep.
    let mut changes = 0;
    // Where the last look at the inboxes has paid, and the kernel's queue was empty just now, the first look comes before it is asked: that
    // is a system call for each connection. One in vain, and the kernel is asked first until one pays again.
    let mut looks = listener.looks_first.load(Relaxed) != 0 && listener.was_empty_lately();
    let mut looked = false;
    // Now and then the kernel's queue goes first, so that a flood of ours does not keep its clients out.
    // What is left in the inboxes of one that was left to the kernel came before all that the kernel has.
    let mut kernel_first = listener.turn.load(Relaxed).is_multiple_of(16) && !socket.marked(mark::KERNEL_ONLY);
    let answer = loop {
        // Another thread may have closed the number that this call was given.
        let Some(fd) = live(fd, socket) else { break Err(Errno::BADF) };
        if begins {
            // The kernel's call begins anew after a handler with SA_RESTART, and after SIGCONT: as the flag is by then.
            (waits, begins) = (socket.status_of(fd) & O_NONBLOCK == 0, false);
        }
        if of(socket).is_none() {
            // Or shut down; it was asleep at most when that began.
            break Err(Errno::INVAL);
        }
        // Who watches with EPOLLEXCLUSIVE leaves arenas to others that it has not been woken for.
        let is_enough = !waits && listener.has_known();
        if !is_enough {
            listener.refresh();
        }
        if !is_enough && listener.is_behind() {
            // No number for an arena's memory: none for a connection either.
            if let Err(errno) = a_number(fd) {
                break Err(errno);
            }
        }
        if !kernel_first && listener.pending() {
            match take(fd, listener, socket, flags, &mut number) {
                None => {}
                Some(answer) => break answer,
            }
        }
        if looks && !kernel_first && waits && !handlers.has_any() {
            looks = false;
            if listener.is_worth_a_look(place.as_ref()) {
                if number.is_none() {
                    match Number::take(socket.family(), flags, true) {
                        Ok(taken) => number = taken,
                        Err(errno) => break Err(errno),
                    }
                }
                looked = true;
                if listener.look() {
                    continue;
                }
            }
        }
        match from_kernel(fd, socket, flags, waits, &mut number) {
            Err(Errno::AGAIN) => {}
            answer => {
                if kernel_first {
                    // A queue of the kernel's that is never empty does not keep out ours either.
                    listener.turn.fetch_add(1, Relaxed);
                }
                if answer.is_ok() {
                    listener.record_look(false);
                }
                break answer;
            }
        }
        if kernel_first {
            kernel_first = false;
            listener.turn.fetch_add(1, Relaxed);
            continue;
        }
        if listener.pending() {
            continue;
        }
        if !waits {
            break Err(Errno::AGAIN);
        }
        // A handler that ran while this thread was awake ends the sleep that would come now.
        if handlers.has_any() {
            handlers = signals::Seen::now();
            if let Err(errno) = patience.interrupted() {
                break Err(errno);
            }
            // It may have closed the number, which outlives it then under another one.
            if live(fd, socket).is_none_or(|fd| super::is_outliving(fd, socket)) {
                break Err(Errno::BADF);
            }
            begins = true;
            continue;
        }
        listener.empty_at.store(process::now(), Relaxed);
        if !slept {
            if number.is_none() {
                match Number::take(socket.family(), flags, listener.looks_first.load(Relaxed) != 0) {
                    Ok(taken) => number = taken,
                    Err(errno) => break Err(errno),
                }
            }
            if socket.marked(mark::SHARED) {
                recall_timeout(fd, socket, false);
            }
            patience.set_timeout(socket.timeout(false));
            waiting = Some(Waiting::begin(listener));
        }
        slept = true;
        changes = listener.changes.load(Acquire);
        match wait(listener, socket, fd, &mut patience, &mut place, !core::mem::take(&mut looked)) {
            // The kernel restarts the call, with a number that is there no more.
            Ok(Woke::Handler) if live(fd, socket).is_some_and(|fd| super::is_outliving(fd, socket)) => {
                break Err(Errno::BADF);
            }
            Ok(Woke::Handler) => (handlers, begins) = (signals::Seen::now(), true),
            Ok(woke) => edge |= woke == Woke::Kernel,
            Err(errno) => break Err(errno),
        }
    };
    if slept && listener.has_others() {
        if edge {
            listener.renew_edge(fd);
        }
        listener.pass_on(changes);
    }
    // Taken, or not: the next one's turn.
    drop(place);
    drop(waiting);
    Some(answer)
}

/// Whether there is a number for a new descriptor, which accept4() of the kernel takes before it looks for a connection.
fn a_number(fd: Fd) -> Result<(), Errno> {
    if fs_shm::wait::is_confined() {
        // It may be allowed accept(2) and not dup(2).
        return Ok(());
    }
    let probe = call::dup(fd)?;
    // Made above.
    let _ = call::close(probe);
    Ok(())
}

/// One of ours; `None`: another thread or process was faster.
fn take(
    listening: Fd,
    listener: &Listener,
    socket: &'static Socket,
    flags: i32,
    number: &mut Option<Number>,
) -> Option<Result<(Fd, Address), Errno>> {
    // Asked once, while others may fork: the daemon may be late. Who takes another one than that asks again.
    let mut only_known = true;
    let (_changing, made, ahead, came, mapped, channel) = loop {
        let changing = table::Changing::begin();
        // Closed while the daemon was asked: its place may be another's.
        if !of(socket).is_some_and(|now| std::ptr::eq(now, listener)) {
            return None;
        }
        // The number first: without one the connection stays where it is (accept4() of the kernel).
        let ahead = number.as_ref().and_then(Number::socket);
        let make = || beside(number.is_some(), || kept::socket(socket.family(), flags, 0, true));
        let made = match ahead.map_or_else(make, Ok) {
            Ok(made) => made,
            Err(errno) => return Some(Err(errno)),
        };
        let came = listener.came_of_next();
        match listener.take(only_known) {
            Some(Next::Taken(mapped, channel)) => break (changing, made, ahead.is_some(), came, mapped, channel),
            next => {
                if ahead.is_none() {
                    made.close();
                }
                let Some(Next::Unknown(mapped)) = next else { return None };
                drop(changing);
                only_known = false;
                // A handler's accept on top of the question could not ask its own.
                let _section = signals::Section::begin();
                mapped.ask_for_next();
            }
        }
    };
    // The opener may have written what it likes; nobody is told that it is somebody else.
    let Ok((_, peer)) = mapped.ends_of(&channel) else {
        mapped.refused(UNTRUE);
        channel::throw_away(&channel);
        if !ahead {
            made.close();
        }
        return None;
    };
    mapped.accepted();
    let made = number.take().map_or(made, |number| made.moved(number.give_to(made.fd, flags)));
    let fd = made.fd;
    let prepare = |new: &'static Socket| {
        new.set_status(flags as u32 & O_NONBLOCK);
        new.mark(mark::ACCEPTED);
        made.enter(new);
    };
    let attachment = process::current();
    let new =
        attachment.and_then(|known| Some((known, connect::enter_after(fd, Kind::Fresh, socket.family(), prepare)?)));
    let Some((attachment, new)) = new else {
        channel::throw_away(&channel);
        made.close();
        return Some(Err(Errno::NFILE));
    };
    match listener.options_of(came) {
        Some(before) => new.inherit(before.unheld()),
        None => {
            if socket.marked(mark::SHARED) {
                recall_timeout(listening, socket, false);
                recall_timeout(listening, socket, true);
            }
            new.inherit(socket);
        }
    }
    if let Err(errno) = connect::adopt(attachment, fd, new, mapped, &channel) {
        crate::descriptor::forget(fd);
        // Made above.
        let _ = call::close(fd);
        return Some(Err(errno));
    }
    Some(Ok((fd, address::raw(peer, socket.family()))))
}

/// One of the kernel's; `EAGAIN`: none.
fn from_kernel(
    fd: Fd,
    socket: &Socket,
    flags: i32,
    waits: bool,
    number: &mut Option<Number>,
) -> Result<(Fd, Address), Errno> {
    let _changing = table::Changing::begin();
    let (new, peer) = if !waits {
        beside(number.is_some(), || call::accept4(fd, flags))?
    } else {
        let _alone = sys::family::lock(socket.listener() as usize);
        // A signal ends that look too, where nothing is there (do_poll() of the kernel): what it is to the call, the wait says.
        match sleep(fd, Duration::ZERO) {
            Ok(true) => {}
            Ok(false) | Err(Errno::INTR) => return Err(Errno::AGAIN),
            Err(errno) => return Err(errno),
        }
        beside(number.is_some(), || call::accept4(fd, flags))?
    };
    let new = number.take().map_or(new, |number| number.give_to(new, flags));
    table::displaced(new);
    if let Some(attachment) = process::current()
        && let Some(_kernels) = connect::enter(new, Kind::Kernel, socket.family())
    {
        // For lists only.
        let _ = process::enter_page(attachment, new, Object::Kernel(KernelReason::Accepted));
    }
    Ok((new, peer))
}

/// A thread that waits in accept, which the listener outlasts.
struct Waiting(&'static Listener, Option<Note>);

impl Waiting {
    fn begin(listener: &'static Listener) -> Self {
        // Counted and noted, or neither, for a handler that jumps.
        let _section = signals::Section::begin();
        listener.accepting.fetch_add(1, SeqCst);
        Waiting(listener, Some(Note::new(Held::Accepts(listener))))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _section = signals::Section::begin();
        self.1 = None;
        self.0.waits_no_more();
    }
}

/// A place among those who sleep in accept.
struct Place {
    sleepers: &'static Sleepers,
    mine: Mine,
    /// When it looks next whether the first is stopped.
    look: Duration,
    note: Option<Note>,
}

impl Place {
    /// `None`: it sleeps on the poller, in no order.
    fn of(listener: &Listener) -> Option<Self> {
        // As for `Waiting`.
        let _section = signals::Section::begin();
        let sleepers = listener.sleepers.load()?;
        let mine = sleepers.join()?;
        Some(Place { sleepers, mine, look: sleepers::LOOK, note: Some(Note::new(Held::Place(sleepers, mine))) })
    }

    fn is_first(&self) -> bool {
        self.sleepers.is_first(self.mine)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _section = signals::Section::begin();
        self.note = None;
        self.sleepers.leave(self.mine);
    }
}

/// A thread that sleeps for [`slice::TOLD`] in accept: other threads wake it before they take the listener away ([`recall`]).
struct Long(#[allow(dead_code, reason = "ends with it")] Counted);

impl Long {
    /// `None`: it has to look more often. `all`: what wakes one of those wakes all.
    fn begin(listener: &'static Listener, socket: &'static Socket, fd: Fd, all: bool) -> Option<Self> {
        // A ring wakes any of the sleepers of all processes.
        let holders = listener.page.load().map_or(1, ListenerPage::holders);
        if !all && holders > 1 && !holder::is_single_threaded() {
            return None;
        }
        let long = Long(Counted::begin(&listener.long));
        fence(SeqCst);
        // Who recalls has changed one of these first, or sees the count.
        (!CANCELS.load(SeqCst) && of(socket).is_some() && live(fd, socket).is_some()).then_some(long)
    }
}

impl Listener {
    /// Whether what comes next is for the caller, and not for who has slept longer.
    fn is_next(&self, place: Option<&Place>) -> bool {
        match place {
            Some(place) => place.is_first(),
            None => !self.sleepers.load().is_some_and(Sleepers::is_taken),
        }
    }

    /// Whether there are inboxes to look at, and what comes next is for the caller.
    fn is_worth_a_look(&self, place: Option<&Place>) -> bool {
        if self.count.load(Relaxed) == 0 {
            self.record_look(false);
            return false;
        }
        self.is_next(place)
    }

    /// Looks at the inboxes, as long as it has paid lately: who connects may need the CPU that we look with. Whether a connection is there.
    fn look(&self) -> bool {
        let paid = self.spin.look(None, None, || self.pending());
        self.record_look(paid);
        paid
    }

    fn record_look(&self, paid: bool) {
        if paid != (self.looks_first.load(Relaxed) != 0) {
            self.looks_first.store(u32::from(paid), Relaxed);
        }
    }

    /// Whether the kernel's queue had nothing when it was asked last, and that is not long ago.
    fn was_empty_lately(&self) -> bool {
        process::now().saturating_sub(self.empty_at.load(Relaxed)) < LATELY
    }

    /// What looks have paid is another listener's matter, or another process's.
    pub(super) fn forget_looks(&self) {
        self.looks_first.store(0, Relaxed);
        self.empty_at.store(0, Relaxed);
        self.spin.forget();
    }

    /// All threads that sleep for long come back, as their listener is going, or they may be cancelled from now on. Bounded:
    /// with a child that was forked since, it may be others that are woken, and ours look after [`slice::TOLD`].
    pub(super) fn recall(&self) {
        fence(SeqCst);
        let poller = self.poller.load(Acquire) as u32;
        for rounds in 0..2000 {
            if poller == 0 || self.long.load(SeqCst) == 0 {
                break;
            }
            process::bells().ring(poller);
            if let Some(sleepers) = self.sleepers.load() {
                sleepers.wake_all();
            }
            table::pause(rounds);
        }
    }
}
/// Nanoseconds for which the kernel's queue counts as empty. More: a connection of the kernel's that has come since lets more of ours pass
/// (`docs/LIMITS.md`). Fewer: it is asked for almost each connection of ours, of which 40,000 a second come at most.
const LATELY: u64 = 1_000_000;

/// How long who sleeps in accept sleeps at once where no lane is left in an arena, so that nobody can wake it.
const BLIND: Duration = Duration::from_millis(10);

/// What ended a sleep.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Woke {
    /// The kernel's queue.
    Kernel,
    /// Something else, or nothing.
    Other,
    /// A signal handler with SA_RESTART.
    Handler,
}

/// Waits for a connection, ours or the kernel's. `place`: the caller's among the sleepers, from the first sleep on. `looks`: before it sleeps.
fn wait(
    listener: &'static Listener,
    socket: &'static Socket,
    fd: Fd,
    patience: &mut Patience,
    place: &mut Option<Place>,
    looks: bool,
) -> Result<Woke, Errno> {
    let attachment = process::current();
    let announced = listener.id.load(Acquire) != 0;
    if announced && looks && listener.is_worth_a_look(place.as_ref()) && listener.look() {
        return Ok(Woke::Other);
    }
    let poller = attachment.filter(|_| announced).and_then(|attachment| listener.poller(attachment));
    let is_told =
        poller.zip(attachment).is_some_and(|(poller, attachment)| listener.enter_control(&poller, attachment));
    if poller.is_none() {
        // Others sleep elsewhere.
        *place = None;
    } else if place.is_none() {
        *place = Place::of(listener);
    }
    let behind = place.as_mut().filter(|place| !place.is_first());
    let long = if is_told { Long::begin(listener, socket, fd, behind.is_some()) } else { None };
    let mut slice = slice::of(if long.is_some() { slice::TOLD } else { slice::UNTOLD });
    if let Some(deadline) = patience.deadline() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Errno::AGAIN);
        }
        slice = slice.min(left);
    }
    if CANCELS.load(Relaxed) && listener.long.load(SeqCst) != 0 {
        // Others are being woken: a ring would find this one first, again and again.
        return match sleep(fd, Duration::from_millis(1)) {
            Ok(_) => after_sleep(false, patience).map(|()| Woke::Other),
            Err(errno) => patience.interrupted_by(errno).map(|()| Woke::Handler),
        };
    }
    let Some(poller) = poller else {
        if announced {
            slice = slice.min(BLIND);
        }
        return match sleep(fd, slice) {
            Ok(woken) => after_sleep(woken, patience).map(|()| Woke::Other),
            Err(errno) => patience.interrupted_by(errno).map(|()| Woke::Handler),
        };
    };
    listener.enter_placeholder(&poller, fd);
    if let Some(Place { sleepers, mine, look, .. }) = behind {
        // It is the first whom the daemon's end is told, and who tells the next one by leaving.
        // What the first has been told of and has not taken, too.
        let is_left = || {
            // An arena that this process does not know yet is no sign of anything: a client's that has just come, or gone.
            listener.refresh();
            listener.pending() || poll::is_readable(poller.fd) || poll::is_readable(fd)
        };
        let turn = sleepers.wait(*mine, slice, look, is_left);
        drop(long);
        return match turn {
            Turn::First | Turn::Look => after_sleep(true, patience).map(|()| Woke::Other),
            Turn::Over => after_sleep(false, patience).map(|()| Woke::Other),
            Turn::Signal => {
                *place = None;
                patience.interrupted().map(|()| Woke::Handler)
            }
        };
    }
    // Before the flags are set: see `awake`.
    let waits = Counted::begin(&listener.waiters);
    fence(SeqCst);
    let armed = listener.arm(Shared::Accept, &poller);
    if armed == Armed::Blind {
        slice = slice.min(BLIND);
    }
    let woken = if armed == Armed::Ready { Ok(Some(0)) } else { poll::sleep_on(poller.fd, slice) };
    drop((long, waits));
    listener.awake(&poller);
    if woken == Ok(Some(poll::END))
        && let Some(attachment) = attachment
        && !attachment.check()
    {
        poll::renew_end(poller.fd, attachment.client().fd().as_raw_fd());
    }
    match woken {
        Ok(Some(poll::EDGE)) => after_sleep(true, patience).map(|()| Woke::Kernel),
        Ok(woken) => after_sleep(woken.is_some(), patience).map(|()| Woke::Other),
        Err(errno) => {
            // Who goes on after a handler, or was stopped, begins anew.
            *place = None;
            patience.interrupted_by(errno).map(|()| Woke::Handler)
        }
    }
}

fn after_sleep(woken: bool, patience: &mut Patience) -> Result<(), Errno> {
    if woken {
        return Ok(());
    }
    match process::current() {
        Some(attachment) => {
            attachment.check();
        }
        None => {
            process::attached();
        }
    }
    if channel::is_cancelled() {
        return Err(CANCELLED);
    }
    match patience.deadline() {
        Some(deadline) if Instant::now() >= deadline => Err(Errno::AGAIN),
        _ => Ok(()),
    }
}

/// Sleeps until the placeholder is readable: false when `slice` is over.
fn sleep(fd: Fd, slice: Duration) -> Result<bool, Errno> {
    let placeholder = sys::borrowed(fd).ok_or(Errno::BADF)?;
    let mut fds = [PollFd::from_borrowed_fd(placeholder, PollFlags::IN)];
    let slice = Timespec { tv_sec: slice.as_secs().cast_signed(), tv_nsec: i64::from(slice.subsec_nanos()) };
    rustix::event::poll(&mut fds, Some(&slice)).map(|ready| ready != 0)
}
