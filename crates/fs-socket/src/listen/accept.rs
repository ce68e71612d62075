//! accept(2): from the inboxes and from the kernel's queue, and the wait for either.

use core::sync::atomic::{
    Ordering::{AcqRel, Acquire, Relaxed, SeqCst},
    fence,
};
use std::time::{Duration, Instant};

use fs_shm::{
    control::{KernelReason, Object},
    holder,
    pages::ListenerPage,
};
use libc::{SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM};
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    fd::AsRawFd,
    io::Errno,
};

use super::{
    Listener, live,
    number::{Number, beside},
    of,
    wake::Armed,
};
use crate::{
    address,
    descriptor::table,
    options::recall_timeout,
    poll,
    process::{
        self,
        arenas::{Shared, UNTRUE},
        held::{Held, Note},
    },
    socket::{Kind, Socket, mark},
    stream::{
        channel::{self, CANCELLED, CANCELS, O_NONBLOCK, Patience},
        connect,
    },
    sys::{self, call},
    types::{Address, Fd, Ours},
};

/// `accept4(2)` (and `accept(2)` with flags 0): the new descriptor and the peer's address.
/// `None` also when the listener is the kernel's alone.
pub fn accept4(fd: Fd, flags: i32) -> Ours<(Fd, Address)> {
    let held = table::socket(fd)?;
    let socket = held.unheld();
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
        if listener.id.load(Acquire) == 0 {
            return None;
        }
    }
    let mut patience = Patience::new(socket.timeout(false));
    let waits = socket.status_of(fd) & O_NONBLOCK == 0;
    // Slept, and woken by the kernel's queue.
    let (mut slept, mut edge) = (false, false);
    // Taken before the first sleep.
    let mut number = None;
    // The listener's arenas as of the last sleep.
    let mut changes = 0;
    // Now and then the kernel's queue goes first, so that a flood of ours does not keep its clients out.
    // What is left in the inboxes of one that was left to the kernel came before all that the kernel has.
    let mut kernel_first = listener.turn.load(Relaxed).is_multiple_of(16) && !socket.marked(mark::KERNEL_ONLY);
    let answer = loop {
        // Another thread may have closed the number that this call was given.
        let Some(fd) = live(fd, socket) else { break Err(Errno::BADF) };
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
        match from_kernel(fd, socket, flags, waits, &mut number) {
            Err(Errno::AGAIN) => {}
            answer => break answer,
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
        if !slept {
            match Number::take() {
                Ok(taken) => number = taken,
                Err(errno) => break Err(errno),
            }
            recall_timeout(fd, socket, false);
            patience.set_timeout(socket.timeout(false));
        }
        slept = true;
        changes = listener.changes.load(Acquire);
        match wait(listener, socket, fd, &mut patience) {
            Ok(by_kernel) => edge |= by_kernel,
            Err(errno) => break Err(errno),
        }
    };
    if slept && listener.has_others() {
        if edge {
            listener.renew_edge(fd);
        }
        listener.pass_on(changes);
    }
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
    let _changing = table::Changing::begin();
    // The number first: without one the connection stays where it is (accept4() of the kernel).
    let made = beside(number.is_some(), || call::socket(socket.family() as i32, SOCK_STREAM | flags, 0));
    let fd = match made {
        Ok(fd) => fd,
        Err(errno) => return Some(Err(errno)),
    };
    let came = listener.came_of_next();
    let taken = listener.take();
    let give_up = || {
        // Made above.
        let _ = call::close(fd);
    };
    let Some((mapped, channel)) = taken else {
        give_up();
        return None;
    };
    // The opener may have written what it likes; nobody is told that it is somebody else.
    let Ok((_, peer)) = mapped.ends_of(&channel) else {
        mapped.refused(UNTRUE);
        channel::give_back(&channel, true);
        give_up();
        return None;
    };
    mapped.accepted();
    let fd = number.take().map_or(fd, |number| number.give_to(fd, flags));
    let give_up = || {
        // Made above.
        let _ = call::close(fd);
    };
    let new = process::current().zip(connect::enter(fd, Kind::Fresh, socket.family()));
    let Some((attachment, new)) = new else {
        channel::give_back(&channel, true);
        give_up();
        return Some(Err(Errno::NFILE));
    };
    new.set_status(flags as u32 & O_NONBLOCK);
    new.mark(mark::ACCEPTED);
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
        give_up();
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
        call::accept4(fd, flags)?
    } else {
        let _alone = sys::family::lock(socket.listener() as usize);
        if !sleep(fd, Duration::ZERO)? {
            return Err(Errno::AGAIN);
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

/// The longest sleep: whether a daemon has come, or another thread has done something to the listener, is looked at this often.
const SLICE: Duration = Duration::from_secs(1);
/// The same where the daemon's end wakes us, and other threads do before they take the listener away ([`recall`]). One process
/// after another is told of that end, in each of which one may be killed just then. Shorter: idle processes cost CPU. Longer:
/// after that they hang.
const LONG: Duration = Duration::from_secs(30);

/// A thread that sleeps for [`LONG`] in accept.
struct Long(&'static Listener, Option<Note>);

impl Long {
    /// `None`: it has to look more often.
    fn begin(listener: &'static Listener, socket: &'static Socket, fd: Fd) -> Option<Self> {
        // A ring wakes any of the sleepers of all processes.
        let holders = listener.page.load().map_or(1, ListenerPage::holders);
        if holders > 1 && !holder::is_single_threaded() {
            return None;
        }
        listener.long.fetch_add(1, SeqCst);
        let long = Long(listener, Some(Note::new(Held::Counted(&listener.long))));
        fence(SeqCst);
        // Who recalls has changed one of these first, or sees the count.
        (!CANCELS.load(SeqCst) && of(socket).is_some() && live(fd, socket).is_some()).then_some(long)
    }
}

impl Drop for Long {
    fn drop(&mut self) {
        self.1 = None;
        self.0.long.fetch_sub(1, SeqCst);
    }
}

impl Listener {
    /// All threads that sleep for long come back, as their listener is going, or they may be cancelled from now on. Bounded:
    /// with a child that was forked since, it may be others that are woken, and ours look after [`LONG`].
    pub(super) fn recall(&self) {
        fence(SeqCst);
        let poller = self.poller.load(Acquire) as u32;
        for rounds in 0..2000 {
            if poller == 0 || self.long.load(SeqCst) == 0 {
                break;
            }
            process::bells().ring(poller);
            table::pause(rounds);
        }
    }
}
/// The same where no lane is left in an arena, so that nobody can wake us.
const BLIND: Duration = Duration::from_millis(10);

/// Waits for a connection, ours or the kernel's: true when the kernel's queue ended a sleep.
fn wait(listener: &'static Listener, socket: &'static Socket, fd: Fd, patience: &mut Patience) -> Result<bool, Errno> {
    let attachment = process::current();
    let announced = listener.id.load(Acquire) != 0;
    if announced && listener.count.load(Relaxed) != 0 {
        // As long as it has paid lately: who connects may need the CPU that we look with.
        if listener.spin.look(None, None, || listener.pending()) {
            return Ok(false);
        }
    }
    let poller = attachment.filter(|_| announced).and_then(|attachment| listener.poller(attachment));
    let is_told =
        poller.zip(attachment).is_some_and(|(poller, attachment)| listener.enter_control(&poller, attachment));
    let long = if is_told { Long::begin(listener, socket, fd) } else { None };
    let mut slice = if long.is_some() { LONG } else { SLICE };
    if let Some(deadline) = patience.deadline() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Errno::AGAIN);
        }
        slice = slice.min(left);
    }
    if CANCELS.load(Relaxed) {
        slice = slice.min(Duration::from_millis(100));
        if listener.long.load(SeqCst) != 0 {
            // Others are being woken: a ring would find this one first, again and again.
            return match sleep(fd, Duration::from_millis(1)) {
                Ok(_) => after_sleep(false, patience).map(|()| false),
                Err(errno) => patience.interrupted_by(errno).map(|()| false),
            };
        }
    }
    let Some(poller) = poller else {
        if announced {
            slice = slice.min(BLIND);
        }
        return match sleep(fd, slice) {
            Ok(woken) => after_sleep(woken, patience).map(|()| false),
            Err(errno) => patience.interrupted_by(errno).map(|()| false),
        };
    };
    listener.enter_placeholder(&poller, fd);
    // Before the flags are set: see `awake`.
    listener.waiters.fetch_add(1, SeqCst);
    fence(SeqCst);
    let waits = Note::new(Held::Counted(&listener.waiters));
    let armed = listener.arm(Shared::Accept, &poller);
    if armed == Armed::Blind {
        slice = slice.min(BLIND);
    }
    let woken = if armed == Armed::Ready { Ok(Some(0)) } else { poll::sleep_on(poller.fd, slice) };
    drop((long, waits));
    listener.waiters.fetch_sub(1, AcqRel);
    listener.awake(&poller);
    if woken == Ok(Some(poll::END))
        && let Some(attachment) = attachment
        && !attachment.check()
    {
        poll::renew_end(poller.fd, attachment.client().fd().as_raw_fd());
    }
    match woken {
        Ok(woken) => after_sleep(woken.is_some(), patience).map(|()| woken == Some(poll::EDGE)),
        Err(errno) => patience.interrupted_by(errno).map(|()| false),
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
