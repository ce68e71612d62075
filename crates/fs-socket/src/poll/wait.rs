//! epoll_wait.
//!
//! What is ready of ours is answered without a system call. The kernel's set is looked at when it wakes the sleeper, and
//! besides every [`WAITS`] calls or [`LOOK_NS`], and as long as it has something: a busy channel must not starve a kernel
//! descriptor.

use core::{
    cell::Cell,
    ops::Range,
    sync::atomic::{
        AtomicU32,
        Ordering::{Acquire, Relaxed},
    },
    time::Duration,
};

use rustix::io::Errno;

use super::{
    EpollEvent, PollFd,
    interest::{Entry, ONESHOT, Source},
    set::{CONTROL, Inner, KERNEL, KICK, Set},
    sources::{is_watched, pass_on_of_closed},
    sys::kernel,
    sys::lock::Guard,
};
use crate::{
    process::{self, now},
    slice,
    stream::channel::{CANCELLED, CANCELS, is_cancelled},
    sys::signals::Seen,
    types::Fd,
};

/// Calls between two looks at the kernel's set. More: kernel descriptors wait longer behind busy channels. Fewer: a
/// system call for each.
const WAITS: u32 = 32;
/// Longest time between two looks at the kernel's set, in nanoseconds, while channels are busy.
const LOOK_NS: u64 = 50_000;
/// In place of the number of calls: the kernel's set has something.
pub(super) const LOOK: u32 = u32::MAX;
/// Counts changes of the kernel's descriptors that are known of: each set looks at the kernel's after one.
pub(super) static KERNEL_CHANGES: AtomicU32 = AtomicU32::new(0);
/// How often entries are asked whose arena has no lane left: at first, and when for long nothing was there.
const ASK: Duration = Duration::from_millis(1);
const ASK_IDLE: Duration = Duration::from_millis(16);
/// Looks in vain before they become half as many, and again. Fewer: a pause of the peer makes its next message late. More:
/// a set that is idle takes longer to let its CPU alone.
const ASK_PATIENCE: u32 = 64;

/// How long such a set sleeps after so many looks in vain.
pub(super) fn ask_again(asked: u32) -> Duration {
    (ASK * (1 << (asked / ASK_PATIENCE).min(8))).min(ASK_IDLE)
}

/// When a wait ends. The clock is read when that is first asked: what is ready at once costs no look at it.
pub(super) struct Deadline {
    timeout: Option<Duration>,
    at: Cell<Option<u64>>,
}

impl Deadline {
    pub(super) fn new(timeout: Option<Duration>) -> Self {
        Deadline { timeout, at: Cell::new(None) }
    }

    /// Not to wait at all.
    pub(super) fn is_now(&self) -> bool {
        self.timeout == Some(Duration::ZERO)
    }

    /// On the clock of [`now`]; `None`: no end.
    pub(super) fn at(&self) -> Option<u64> {
        let timeout = self.timeout?;
        if self.at.get().is_none() {
            let nanoseconds = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
            self.at.set(Some(now().saturating_add(nanoseconds)));
        }
        self.at.get()
    }

    /// Whether the time is over.
    pub(super) fn is_over(&self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }

    /// The same without a look at the clock where nothing has waited yet.
    pub(super) fn left_of(&self, timeout: Option<Duration>) -> Option<Duration> {
        if self.at.get().is_none() { timeout } else { self.left() }
    }

    /// What is left; `None`: no end.
    pub(super) fn left(&self) -> Option<Duration> {
        self.at().map(|at| Duration::from_nanos(at.saturating_sub(now())))
    }
}

/// Not an errno of the kernel's: the application has closed the set that is waited in.
const CLOSED: Errno = Errno::from_raw_os_error(4094);

/// epoll_wait(2) on an active set, in the life that it has for the caller.
pub(super) fn wait(
    fd: Fd,
    set: &'static Set,
    life: u32,
    events: &mut [EpollEvent],
    timeout: Option<Duration>,
    mask: Option<u64>,
) -> Result<usize, Errno> {
    let deadline = Deadline::new(timeout);
    let handlers = Seen::now();
    match wait_in(fd, set, life, events, &deadline, &handlers, mask) {
        Err(CLOSED) => wait_in_closed(&deadline, &handlers, mask),
        answer => answer,
    }
}

/// The rest of a wait in a set that was closed by another thread. The kernel's goes on, on a file that nobody else has.
#[cold]
fn wait_in_closed(deadline: &Deadline, handlers: &Seen, mask: Option<u64>) -> Result<usize, Errno> {
    loop {
        if handlers.has_any() {
            return Err(Errno::INTR);
        }
        kernel::ppoll(&mut [], slice::timeout(slice::of(slice::UNTOLD), deadline.left()), mask)?;
        if deadline.is_over() {
            return Ok(0);
        }
        if is_cancelled() {
            return Err(CANCELLED);
        }
    }
}

fn wait_in(
    fd: Fd,
    set: &'static Set,
    life: u32,
    events: &mut [EpollEvent],
    deadline: &Deadline,
    handlers: &Seen,
    mask: Option<u64>,
) -> Result<usize, Errno> {
    loop {
        let now = now();
        set.turn.give(now);
        let mut inner = lock(set, life)?;
        inner.used_as(fd);
        let mut n = fill(&mut inner, events, deadline.is_now(), now)?;
        if n == 0 && deadline.is_now() && inner.follow_all() {
            n = inner.gather(events);
        }
        if n > 0 && set.asked.load(Relaxed) != 0 {
            set.asked.store(0, Relaxed);
        }
        if n > 0 || deadline.is_now() {
            return Ok(n);
        }
        drop(inner);
        let dirty = || lock(set, life).map_or(true, |inner| inner.any_dirty());
        if set.spin.look(deadline.at(), Some(&set.turn), dirty) {
            continue;
        }
        if handlers.has_any() {
            // One that came before the sleep does not interrupt that.
            return Err(Errno::INTR);
        }
        if !sleep(set, life, deadline, mask)? {
            // The time is over: a last look at everything.
            let mut inner = lock(set, life)?;
            inner.waits = LOOK;
            return fill(&mut inner, events, true, now);
        }
    }
}

/// A handler on top of its own thread's wait finds the set held: it cannot wait for it. [`CLOSED`]: it is another set now.
fn lock(set: &'static Set, life: u32) -> Result<Guard<'static, Inner>, Errno> {
    let inner = set.lock().ok_or(Errno::INTR)?;
    if set.life() == life { Ok(inner) } else { Err(CLOSED) }
}

/// Fills in what is ready: ours, and the kernel's if it is time to look or nothing of ours is there. Ours that were ready before the
/// kernel's come first, once: what was reported is ready anew. So neither starves the other.
fn fill(inner: &mut Inner, events: &mut [EpollEvent], now_only: bool, now: u64) -> Result<usize, Errno> {
    // What was ready there probably is still, level-triggered.
    let due = inner.busy
        || inner.waits >= WAITS
        || inner.changes != KERNEL_CHANGES.load(Relaxed)
        || now.saturating_sub(inner.looked) >= LOOK_NS;
    if !due {
        inner.waits += 1;
        let n = inner.gather(events);
        if n > 0 || !now_only {
            return Ok(n);
        }
    }
    inner.collect();
    let all = inner.ready.len();
    let mut first = match core::mem::take(&mut inner.filled) {
        0 => inner.in_front(inner.quiet, false),
        filled => inner.in_front(filled, true),
    };
    let mut rest = all - first;
    let mut n = inner.take(events, &mut first);
    if n == events.len() {
        return Ok(n);
    }
    // The kernel's set is asked once: what is level-triggered there it would report again.
    let kernels = n..n + from_kernel(inner, &mut events[n..])?;
    // Who has something with every wait never sleeps, where it would be rung.
    if (kernels.end != 0 || rest != 0) && inner.has_unshared_news() {
        rest += inner.follow_all_behind(rest);
    }
    n = kernels.end + inner.take(&mut events[kernels.end..], &mut rest);
    Ok(told_once(inner, &mut events[..n], kernels))
}

/// A listener's connections wait in two queues, and it has one registration: what both have said of it is told once, where it was
/// said first. Of a one-shot only one says something, but where our half has no number to put the kernel's to sleep by: another event with
/// its data is another descriptor's. Answers how many events are left, in front.
fn told_once(inner: &Inner, events: &mut [EpollEvent], mut kernels: Range<usize>) -> usize {
    let mut n = events.len();
    for &at in &inner.special {
        if kernels.is_empty() {
            break;
        }
        let may_say_twice = |entry: &&Entry| {
            entry.source == Source::Listener && (entry.event.events & ONESHOT == 0 || !entry.has_its_number())
        };
        let Some(entry) = inner.interest.get(at).filter(may_say_twice) else { continue };
        let said = |i: &usize| { events[*i].data } == { entry.event.data };
        let theirs = kernels.clone().find(said);
        let ours = (0..n).filter(|i| !kernels.contains(i)).find(said);
        let Some((theirs, ours)) = theirs.zip(ours) else { continue };
        if { events[theirs].events } != { events[ours].events } {
            continue;
        }
        events.copy_within(theirs.max(ours) + 1..n, theirs.max(ours));
        n -= 1;
        if ours < theirs {
            kernels.end -= 1;
        }
    }
    n
}

/// What the application's kernel set has.
fn from_kernel(inner: &mut Inner, events: &mut [EpollEvent]) -> Result<usize, Errno> {
    inner.waits = 0;
    inner.changes = KERNEL_CHANGES.load(Acquire);
    inner.looked = now();
    let before = fs_shm::now();
    let muted = inner.mute_kick();
    let answer = kernel::epoll_wait(inner.number, events, Some(Duration::ZERO), None);
    if muted {
        inner.unmute_kick();
    }
    let got = answer?;
    if got == events.len() {
        inner.filled = before;
    } else {
        // All was reported, and what is level-triggered is at the end of the kernel's list since.
        inner.quiet = before;
    }
    let mut left = strip(inner, &mut events[..got]);
    if left == 0 && got != 0 && got == events.len() {
        // A parent's kicks had the places of events. (Where there was one, the kernel has it at the end of its list, and would tell of it
        // twice.)
        let more = kernel::epoll_wait(inner.number, &mut events[left..], Some(Duration::ZERO), None).unwrap_or(0);
        let events = without_kicks(&mut events[left..left + more]);
        if events < more {
            // The next one, which is for another thread.
            inner.rearm_kick(super::set::MOD);
        }
        left += events;
    }
    let got = left;
    inner.delivered(&events[..got]);
    inner.busy = got > 0;
    Ok(got)
}

/// Takes the events of kicks out (a set that was inherited has the parent's too); answers how many are left, in front.
pub(super) fn strip(inner: &mut Inner, events: &mut [EpollEvent]) -> usize {
    let n = without_kicks(events);
    if n < events.len() {
        inner.kicked();
    }
    n
}

/// Takes the events of kicks out; answers how many are left, in front.
pub(super) fn without_kicks(events: &mut [EpollEvent]) -> usize {
    let mut n = 0;
    for i in 0..events.len() {
        if { events[i].data } != KICK {
            events[n] = events[i];
            n += 1;
        }
    }
    n
}

/// Sleeps until something may be there. False: the time is over.
fn sleep(set: &'static Set, life: u32, deadline: &Deadline, mask: Option<u64>) -> Result<bool, Errno> {
    // A server that makes no other call has to find the next daemon from here: its listeners are announced by that.
    let orphaned = process::is_orphaned() && process::attached().is_none();
    let mut inner = lock(set, life)?;
    // Nothing of it is ours any more where it is not live: the kernel's set alone says what is there.
    let outer = inner.live.as_ref().and_then(super::set::Live::outer);
    let number = inner.number;
    if !inner.is_idle() || !inner.arm() {
        // What comes again and again and is no event to the caller must not keep it beyond its time.
        return Ok(!deadline.is_over());
    }
    inner.sleepers += 1;
    let ask = inner.must_ask();
    drop(inner);
    let left = deadline.left();
    let slice = slice::of(if ask {
        ask_again(set.asked.load(Relaxed))
    } else if orphaned {
        Duration::from_nanos(process::RETRY_NS)
    } else {
        slice::ENDLESS
    });
    let time = slice::timeout(slice, left);
    let mut woken = [EpollEvent::default(); 8];
    let answer = match outer {
        Some(outer) => kernel::epoll_wait(outer, &mut woken, time, mask),
        None => {
            let mut one = [PollFd { fd: number, events: 1, revents: 0 }];
            woken[0].data = KERNEL;
            kernel::ppoll(&mut one, time, mask)
        }
    };
    if set.life() == life {
        set.turn.slept(process::now());
    }
    let mut inner = match lock(set, life) {
        // The number that was slept on may have been another set's by then: what has woken this thread is told to all.
        Err(CLOSED) => {
            let n = answer?;
            if n > 0 {
                super::ring_sleepers();
            }
            woken[..n].iter().for_each(|event| pass_on_of_closed(event.data));
            return Err(CLOSED);
        }
        answer => answer?,
    };
    inner.sleepers = inner.sleepers.saturating_sub(1);
    inner.disarm();
    let n = answer?;
    if ask && n == 0 && set.asked.fetch_add(1, Relaxed).is_multiple_of(ASK_PATIENCE) {
        inner.try_again();
    }
    for event in &woken[..n] {
        let what = event.data;
        match what {
            KERNEL => inner.waits = LOOK,
            CONTROL => {
                if let Some(attachment) = process::current() {
                    drop(inner);
                    attachment.check();
                    inner = lock(set, life)?;
                }
            }
            entry if is_watched(entry) => inner.told_of(entry),
            _ => {}
        }
    }
    let recalled = slice == slice::ENDLESS && inner.sleepers > 0 && CANCELS.load(Relaxed);
    if inner.others_needed() || recalled {
        inner.ring();
    }
    drop(inner);
    if n == 0 && is_cancelled() {
        return Err(CANCELLED);
    }
    Ok(n > 0 || !deadline.is_over())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_must_ask_asks_less_and_less() {
        assert_eq!((ask_again(0), ask_again(ASK_PATIENCE - 1)), (ASK, ASK));
        assert_eq!((ask_again(ASK_PATIENCE), ask_again(4 * ASK_PATIENCE)), (ASK * 2, ASK_IDLE));
        assert_eq!(ask_again(u32::MAX), ASK_IDLE);
    }
}
