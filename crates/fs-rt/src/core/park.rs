//! The reactor: a task that runs its core's turns, and sleeps when there is no work.
//!
//! It is a *spawned* task that wakes itself by reference. tokio then queues it behind the tasks
//! that it has just woken and does not enter its driver in between (measured: 32 ns per turn). As
//! the root future of `block_on`, or with `yield_now`, every turn would cost an `epoll_wait` (at
//! least 380 ns).
//!
//! A sleep needs no new timer or epoll registration. The descriptors are registered once (edge
//! triggered), and the timer is moved only if the next deadline is earlier than its current one.

use super::io::{CoreIo, Port};
use super::state::CoreShared;
use crate::poll::Idle;
use crate::source::Source;
use crate::sys::{Clock, ContentionProbe, exact_timers, sleep_for, watch_readable};
use fs_core::{FramePool, Instant};
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::time::Sleep;

/// Maximum age of the counters that other threads read. Publishing costs a lock, a copy of 1 KiB
/// and the links' system calls, so a core that sleeps and wakes 30,000 times per second must not
/// publish each time.
const PUBLISH_EVERY: Duration = Duration::from_millis(100);

pub(crate) struct Reactor {
    core: Rc<CoreShared>,
    /// True if it ever sleeps.
    sleeps: bool,
    contention: ContentionProbe,
    /// The core's doorbell, and those of sources.
    wakeups: Vec<AsyncFd<OwnedFd>>,
    /// The links' descriptors while they are in the epoll set: `Poller::leaves_epoll`.
    links: Vec<AsyncFd<OwnedFd>>,
    /// The links' descriptors while they are not in the epoll set. They stay open, so that a
    /// process without free descriptors can still sleep.
    unwatched: Vec<OwnedFd>,
    sources: Vec<Rc<dyn Source>>,
    /// Sources have been asked to ring the doorbell.
    rings: bool,
    /// Some link has no descriptor, or none was free for it.
    must_poll: bool,
    timer: Pin<Box<Sleep>>,
    timer_at: Option<Instant>,
    published_at: Instant,
    /// Work was done since the last publication.
    unpublished: bool,
    /// [`Reactor::in_use`] as last published.
    published: (usize, usize, u64),
}

impl Reactor {
    /// Must be called within the tokio runtime of the core's thread.
    pub(crate) fn new(core: Rc<CoreShared>, sleeps: bool) -> io::Result<Self> {
        let mut wakeups = Vec::new();
        let (mut links, mut must_poll) = (Vec::new(), false);
        if sleeps {
            must_poll = core.io.borrow().ports.iter().any(Port::must_be_polled);
            links = watch_links(&core)?;
            // Otherwise a timed sleep would take twice as long.
            exact_timers();
            let doorbell = &core.shared.inboxes[core.index].doorbell;
            wakeups.push(watch_readable(doorbell.eventfd().as_fd().try_clone_to_owned()?)?);
        }
        let now = core.clock.now();
        let contention = ContentionProbe::new(core.io.borrow().poller.is_pinned());
        Ok(Self {
            core,
            sleeps,
            contention,
            wakeups,
            links,
            unwatched: Vec::new(),
            sources: Vec::new(),
            rings: false,
            must_poll,
            timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
            timer_at: None,
            published_at: now,
            unpublished: true,
            published: (0, 0, 0),
        })
    }

    /// Arms all wake-ups. Returns `false` if there is work after all.
    fn announce_sleep(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        while let Some(fd) = self.unwatched.pop() {
            match watch_readable(fd) {
                Ok(link) => self.links.push(link),
                // The kernel has no memory for the registration. Stay awake until it has.
                Err(error) => {
                    self.unwatched.push(error.into_parts().0);
                    return false;
                }
            }
        }
        for wakeup in self.links.iter().chain(&self.wakeups) {
            // Everything that was readable until now has been handled. Edge triggered: the next
            // arrival is a new edge.
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
        inbox.doorbell.announce_sleep();
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
        let unsent = backed_up || io.has_unsent() || io.has_waiting_mail();
        let by_clock = self.must_poll || unsent || io.is_starved(&stack);
        let soon = now + io.poller.longest_sleep(by_clock);
        let mut deadline = Some(stack.next_deadline().map_or(soon, |d| d.min(soon)));
        if self.unpublished {
            let due = self.published_at + PUBLISH_EVERY;
            deadline = Some(deadline.map_or(due, |d| d.min(due)));
        }
        io.counters.sleeps += 1;
        drop((io, stack));
        self.set_timer(cx, deadline, core_clock(&self.core))
    }

    /// Returns `false` if the deadline has passed.
    fn set_timer(&mut self, cx: &mut Context<'_>, deadline: Option<Instant>, clock: Clock) -> bool {
        let Some(deadline) = deadline else { return true };
        // A timer that fires too early finds nothing to do and is set again, which is cheaper than
        // moving it each time.
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

    /// Decides what the core does after a turn.
    #[inline]
    fn next(&mut self, worked: bool, now: Instant) -> Idle {
        let mut io = self.core.io.borrow_mut();
        let CoreIo { poller, ports, counters, .. } = &mut *io;
        if poller.leaves_epoll(now) && !self.links.is_empty() {
            self.unwatched.extend(self.links.drain(..).map(AsyncFd::into_inner));
        }
        if worked {
            poller.on_work(now);
            return Idle::Poll;
        }
        let packets = || ports.iter_mut().any(Port::has_packets);
        let next = poller.on_idle(now, !self.sources.is_empty(), || self.contention.read(), packets);
        counters.timed_sleeps += u64::from(matches!(next, Idle::TimedSleep(_)));
        next
    }

    /// Polls the sources.
    #[inline]
    fn poll_sources(&mut self) -> usize {
        if std::mem::take(&mut self.rings) {
            self.sources.iter().for_each(|source| source.awake());
        }
        if self.sleeps && self.core.links_changed.take() {
            self.watch_anew();
        }
        for (source, doorbell) in self.core.new_sources.take() {
            self.sources.push(source);
            if self.sleeps {
                self.wakeups.push(doorbell);
            }
        }
        self.sources.iter().map(|source| source.poll()).sum()
    }

    /// Watches the open links from the next sleep on. Drops the descriptors of closed ones, which
    /// would keep their sockets open.
    #[cold]
    fn watch_anew(&mut self) {
        self.links.clear();
        self.unwatched.clear();
        let io = self.core.io.borrow();
        self.must_poll = io.ports.iter().any(Port::must_be_polled);
        for fd in io.ports.iter().filter_map(|port| port.link.wake_fd()) {
            match fd.try_clone_to_owned() {
                Ok(fd) => self.unwatched.push(fd),
                // No descriptor is free for it, so poll it by time, and try again in the next turn.
                Err(_) => {
                    self.must_poll = true;
                    self.core.links_changed.set(true);
                }
            }
        }
    }

    fn publish(&mut self, now: Instant) {
        self.published_at = now;
        self.unpublished = false;
        self.published = self.in_use();
        self.core.publish();
    }

    /// Numbers of connections and frames. Calls of tasks change them without a turn that has work,
    /// such as the drop of a stream in TIME-WAIT.
    fn in_use(&self) -> (usize, usize, u64) {
        let stack = self.core.stack.borrow();
        (stack.tcp_connections(), stack.pool().in_use(), self.core.kernel_streams.get())
    }
}

/// Registers duplicates of the links' descriptors: a registration must not outlive its descriptor,
/// and the link closes its own.
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
        if this.core.io.borrow().poller.is_idle() {
            this.core.asleep.set(false);
            this.core.shared.inboxes[this.core.index].doorbell.end_sleep();
        }
        let worked = this.core.turn() + this.poll_sources() > 0;
        let now = this.core.stack.borrow().now();
        this.unpublished |= worked || this.published != this.in_use();
        if this.unpublished && now.since(this.published_at) >= PUBLISH_EVERY {
            this.publish(now);
        }
        match this.next(worked, now) {
            Idle::Poll => {}
            Idle::Yield => std::thread::yield_now(),
            Idle::TimedSleep(time) => {
                let deadline = this.core.stack.borrow().next_deadline();
                sleep_for(deadline.map_or(time, |at| time.min(at.since(now))));
            }
            Idle::Sleep => {
                if this.announce_sleep(cx, now) {
                    this.core.fall_asleep(cx.waker());
                    this.core.io.borrow_mut().poller.on_sleep();
                    return Poll::Pending;
                }
                this.core.shared.inboxes[this.core.index].doorbell.end_sleep();
                this.core.io.borrow_mut().poller.on_sleep_refused(now);
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
