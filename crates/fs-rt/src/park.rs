//! The reactor: a task that turns its core, and sleeps when there is nothing to do.
//!
//! It is a *spawned* task that wakes itself by reference: tokio then puts it behind the tasks that it has just
//! woken and never enters its driver in between (measured: 32 ns a turn). As the root future of `block_on`, or
//! with `yield_now`, every turn would cost an `epoll_wait`: 380 ns and more.
//!
//! Sleeping costs no timer or epoll registration each time: the descriptors are registered once (edge
//! triggered), and the timer is moved only when the next deadline is earlier than the one it is set to.

use crate::core::CoreShared;
use crate::source::Source;
use crate::spin::Spin;
use crate::sys::{Clock, Witness, exact_timers, nap, watch_readable};
use fs_core::Instant;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::time::Sleep;

/// How old the counters that other threads see may get. Publishing costs a lock, a copy of 1 KiB and the links'
/// own system calls, so a core that sleeps and wakes 30,000 times a second must not do it each time.
const PUBLISH_EVERY: Duration = Duration::from_millis(100);

/// A core that has not slept for so long takes the links' descriptors out of the epoll set until it does: with a waiter
/// there the kernel takes the wait queue's lock and asks the waiter twice a packet, when it arrives and when a sent one
/// is freed (9 % of the sender's core in a stream of full segments). Shorter: cores that sleep often pay the 2 µs of
/// putting them back in more often.
const UNWATCHED_AFTER: Duration = Duration::from_millis(1);

/// A pinned core that finds nothing for so long offers its CPU to who waits for it (sched_yield(2)), and looks again: what
/// it waits for may be what they would send (decision 0010). Nobody waits: 0.3 µs. Shorter: the answer of a peer that spins
/// as well is met later.
const YIELD_AFTER: Duration = Duration::from_micros(4);

/// Sleep when a link has no descriptor to wait on, or its send ring is full: tokio's timer knows no less.
const POLL_EVERY: Duration = Duration::from_millis(1);

/// Longest sleep: the descriptor of a device that is removed never becomes readable, so somebody has to look.
/// Some 20 µs a second; longer: a dead device is noticed later.
const LIVENESS_EVERY: Duration = Duration::from_secs(1);

pub(crate) struct Reactor {
    core: Rc<CoreShared>,
    busy_poll: bool,
    spin: Spin,
    witness: Witness,
    /// The doorbell, and those of sources.
    wakeups: Vec<AsyncFd<OwnedFd>>,
    /// The links' descriptors, while they are watched: [`UNWATCHED_AFTER`].
    links: Vec<AsyncFd<OwnedFd>>,
    /// The same while they are not. They stay open, so that a process without a descriptor left can still sleep.
    unwatched: Vec<OwnedFd>,
    /// When the core last woke up; `None` while it sleeps.
    awake_since: Option<Instant>,
    sources: Vec<Rc<dyn Source>>,
    /// Sources have been asked to ring.
    rings: bool,
    /// Some link has none.
    must_poll: bool,
    timer: Pin<Box<Sleep>>,
    timer_at: Option<Instant>,
    idle_since: Option<Instant>,
    published_at: Instant,
    /// Something was done since.
    unpublished: bool,
}

impl Reactor {
    /// In the tokio runtime of the core's thread.
    pub(crate) fn new(core: Rc<CoreShared>, busy_poll: bool, spin: Spin) -> io::Result<Self> {
        let mut wakeups = Vec::new();
        let (mut links, mut must_poll) = (Vec::new(), false);
        if busy_poll {
            core.io.borrow_mut().gather.forbid();
        } else {
            must_poll = core.io.borrow().ports.iter().any(|port| port.link.wake_fd().is_none());
            links = watch_links(&core)?;
            // Else a nap would be twice as long.
            exact_timers();
            let doorbell = &core.shared.inboxes[core.index].doorbell;
            wakeups.push(watch_readable(doorbell.bell().as_fd().try_clone_to_owned()?)?);
        }
        let now = core.clock.now();
        Ok(Self {
            core,
            busy_poll,
            spin,
            witness: Witness::new(),
            wakeups,
            links,
            unwatched: Vec::new(),
            awake_since: Some(now),
            sources: Vec::new(),
            rings: false,
            must_poll,
            timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
            timer_at: None,
            idle_since: None,
            published_at: now,
            unpublished: true,
        })
    }

    /// Arranges all wake-ups. `false` when there is work after all.
    fn lie_down(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        while let Some(fd) = self.unwatched.pop() {
            match watch_readable(fd) {
                Ok(link) => self.links.push(link),
                // The kernel has no memory for it: awake until it has.
                Err(error) => {
                    self.unwatched.push(error.into_parts().0);
                    return false;
                }
            }
        }
        for wakeup in self.links.iter().chain(&self.wakeups) {
            // What was readable until now has been looked at. Edge triggered: the next arrival is a new edge.
            loop {
                match wakeup.poll_read_ready(cx) {
                    Poll::Ready(Ok(mut guard)) => guard.clear_ready(),
                    Poll::Ready(Err(_)) => return false,
                    Poll::Pending => break,
                }
            }
        }
        let core = &*self.core;
        let inbox = &core.shared.inboxes[core.index];
        inbox.doorbell.lie_down();
        let mut io = core.io.borrow_mut();
        let mut stack = core.stack.borrow_mut();
        let backed_up = io.is_backed_up();
        self.rings = true;
        let quiet = !inbox.is_pending()
            && self.sources.iter().all(|source| source.prepare_sleep())
            && (backed_up || io.prepare_sleep(&mut stack, &core.shared));
        if !quiet {
            return false;
        }
        let soon = now + if self.must_poll || backed_up { POLL_EVERY } else { LIVENESS_EVERY };
        let mut deadline = Some(stack.next_deadline().map_or(soon, |d| d.min(soon)));
        if self.unpublished {
            let due = self.published_at + PUBLISH_EVERY;
            deadline = Some(deadline.map_or(due, |d| d.min(due)));
        }
        io.counters.sleeps += 1;
        drop((io, stack));
        self.set_timer(cx, deadline, core_clock(&self.core))
    }

    /// `false` when the deadline has passed.
    fn set_timer(&mut self, cx: &mut Context<'_>, deadline: Option<Instant>, clock: Clock) -> bool {
        let Some(deadline) = deadline else { return true };
        // A timer that fires too early finds nothing to do and is set anew: cheaper than moving it each time.
        if self.timer_at.is_none_or(|at| at > deadline) {
            self.timer.as_mut().reset(clock.to_tokio(deadline));
            self.timer_at = Some(deadline);
        }
        while self.timer.as_mut().poll(cx).is_ready() {
            if self.timer_at.is_some_and(|at| at >= deadline) {
                self.timer_at = None;
                return false;
            }
            self.timer.as_mut().reset(clock.to_tokio(deadline));
            self.timer_at = Some(deadline);
        }
        true
    }

    /// What sources have brought.
    #[inline]
    fn look(&mut self) -> usize {
        if std::mem::take(&mut self.rings) {
            self.sources.iter().for_each(|source| source.awake());
        }
        for (source, bell) in self.core.new_sources.take() {
            self.sources.push(source);
            if !self.busy_poll {
                self.wakeups.push(bell);
            }
        }
        self.sources.iter().map(|source| source.look()).sum()
    }

    fn publish(&mut self, now: Instant) {
        self.published_at = now;
        self.unpublished = false;
        self.core.publish();
    }
}

/// Registers duplicates of the links' descriptors: the registration must not outlive its descriptor, and the link closes
/// its own.
fn watch_links(core: &CoreShared) -> io::Result<Vec<AsyncFd<OwnedFd>>> {
    let io = core.io.borrow();
    io.ports
        .iter()
        .filter_map(|port| port.link.wake_fd())
        .map(|fd| Ok(watch_readable(fd.try_clone_to_owned()?)?))
        .collect()
}

fn core_clock(core: &CoreShared) -> Clock {
    core.clock
}

impl Future for Reactor {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.idle_since.is_some() {
            this.core.asleep.set(false);
            this.core.shared.inboxes[this.core.index].doorbell.get_up();
        }
        let worked = this.core.turn() + this.look() > 0;
        let now = this.core.stack.borrow().now();
        if now.since(*this.awake_since.get_or_insert(now)) >= UNWATCHED_AFTER && !this.links.is_empty() {
            this.unwatched.extend(this.links.drain(..).map(AsyncFd::into_inner));
        }
        this.unpublished |= worked;
        if this.unpublished && now.since(this.published_at) >= PUBLISH_EVERY {
            this.publish(now);
        }
        if worked {
            if let Some(since) = this.idle_since.take() {
                this.spin.idle_ended(now.since(since));
            }
        } else if !this.busy_poll {
            if this.idle_since.is_none() {
                this.spin.idle_begins(now, || this.witness.ask());
            }
            let since = *this.idle_since.get_or_insert(now);
            if now.since(since) >= YIELD_AFTER && this.spin.is_pinned() {
                std::thread::yield_now();
            }
            let spin = this.spin.time();
            let mut io = this.core.io.borrow_mut();
            if now.since(since) >= io.gather.spin(spin) {
                if !spin.is_zero()
                    && this.sources.is_empty()
                    && let Some(time) = io.gather.nap(now)
                {
                    io.counters.naps += 1;
                    drop(io);
                    let deadline = this.core.stack.borrow().next_deadline();
                    nap(deadline.map_or(time, |at| time.min(at.since(now))));
                    this.idle_since = None;
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                let gathered = io.has_packets();
                if gathered && spin.is_zero() {
                    // The CPU is wanted by others: it is not spent on waiting.
                    io.gather.end_pause();
                }
                drop(io);
                if !gathered {
                    if this.lie_down(cx, now) {
                        this.core.fall_asleep(cx.waker());
                        this.awake_since = None;
                        return Poll::Pending;
                    }
                    this.core.shared.inboxes[this.core.index].doorbell.get_up();
                    this.idle_since = None;
                    // Not put in and taken out with each try.
                    this.awake_since = Some(now);
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl CoreShared {
    fn fall_asleep(&self, waker: &std::task::Waker) {
        let mut reactor = self.reactor.borrow_mut();
        match &mut *reactor {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        self.asleep.set(true);
    }
}
