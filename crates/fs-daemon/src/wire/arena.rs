//! A core's view of its arenas: which connections have changed, and sleeping until one does.
//!
//! One poller for each core, with a lane in each arena. While there is work the lanes are looked at in each of the core's
//! turns, without a system call; after a time without any, the poller sleeps on its eventfd as any process does.

use crate::sys::watch_readable;
use fs_shm::lanes::Lane;
use fs_shm::{Arena, Channel, Side};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::io::unix::AsyncFd;

/// How long an idle poller looks before it sleeps: as the runtime's cores do (fs-rt `builder.rs`, `SPIN`), for a sleep
/// and its wake-up cost about this much.
const SPIN: Duration = Duration::from_micros(30);

/// An arena on a core.
pub(super) struct CoreArena {
    pub(super) id: u32,
    pub(super) arena: Arena,
    lane: Lane,
    /// The tasks of its connections, by slot.
    tasks: RefCell<Vec<Option<Waker>>>,
}

impl CoreArena {
    /// `None`: it has no lane left (a process took all of them).
    pub(super) fn new(id: u32, arena: Arena, poller: u32) -> Option<Rc<Self>> {
        let lane = arena.join(poller)?;
        if arena.side() == Side::B {
            arena.watch_inbox(lane, true);
        }
        Some(Rc::new(Self { id, arena, lane, tasks: RefCell::default() }))
    }

    /// The task of a connection is woken whenever the connection changes, from here on.
    pub(super) fn watch(&self, channel: &Channel<'_>, waker: &Waker) {
        let mut tasks = self.tasks.borrow_mut();
        let slot = channel.slot() as usize;
        if tasks.len() <= slot {
            tasks.resize(slot + 1, None);
        }
        match &mut tasks[slot] {
            Some(known) => known.clone_from(waker),
            none => {
                *none = Some(waker.clone());
                channel.watch(self.lane);
            }
        }
    }

    /// The connection's task has ended.
    pub(super) fn forget(&self, channel: &Channel<'_>) {
        let waker = self.tasks.borrow_mut().get_mut(channel.slot() as usize).and_then(Option::take);
        if waker.is_some() {
            channel.unwatch(self.lane);
        }
    }

    /// Wakes the tasks of connections that have changed; answers whether there were any.
    fn look(&self) -> bool {
        if !self.arena.is_dirty(self.lane) {
            return false;
        }
        self.arena.drain(self.lane, |slot| {
            if let Some(Some(waker)) = self.tasks.borrow().get(slot as usize) {
                waker.wake_by_ref();
            }
        });
        true
    }
}

impl Drop for CoreArena {
    fn drop(&mut self) {
        self.arena.leave(self.lane);
    }
}

/// A core's poller.
#[derive(Default)]
pub(super) struct Poller {
    arenas: RefCell<Vec<Rc<CoreArena>>>,
    task: RefCell<Option<Waker>>,
    asleep: Cell<bool>,
}

impl Poller {
    pub(super) fn add(&self, arena: Rc<CoreArena>) {
        self.arenas.borrow_mut().push(arena);
        self.wake();
    }

    pub(super) fn remove(&self, id: u32) {
        // Dropped after the borrow: its lane is left then.
        let gone: Vec<_> = self.arenas.borrow_mut().extract_if(.., |arena| arena.id == id).collect();
        drop(gone);
    }

    fn wake(&self) {
        if let Some(task) = &*self.task.borrow() {
            task.wake_by_ref();
        }
    }

    /// Watches the arenas for as long as the core runs. `opened` gets every connection that a process opens.
    pub(super) async fn run(&self, eventfd: OwnedFd, opened: impl Fn(&Rc<CoreArena>, Channel<'_>)) -> io::Result<()> {
        let eventfd = watch_readable(eventfd)?;
        let mut idle_since = None;
        poll_fn(|cx| self.turn(cx, &eventfd, &mut idle_since, &opened)).await
    }

    fn turn(
        &self,
        cx: &mut Context<'_>,
        eventfd: &AsyncFd<OwnedFd>,
        idle_since: &mut Option<Instant>,
        opened: &impl Fn(&Rc<CoreArena>, Channel<'_>),
    ) -> Poll<io::Result<()>> {
        if self.task.borrow().as_ref().is_none_or(|task| !task.will_wake(cx.waker())) {
            self.task.replace(Some(cx.waker().clone()));
        }
        let arenas = self.arenas.borrow();
        if self.asleep.replace(false) {
            arenas.iter().for_each(|arena| arena.arena.awake(arena.lane));
        }
        let mut worked = false;
        for arena in arenas.iter() {
            worked |= arena.look();
            if arena.arena.side() == Side::B && arena.arena.pending() > 0 {
                // As many as wait now; more in the next turn.
                for _ in 0..arena.arena.pending() {
                    let Some(channel) = Channel::accept(&arena.arena) else { break };
                    opened(arena, channel);
                    worked = true;
                }
            }
        }
        if worked {
            *idle_since = None;
        } else {
            let now = Instant::now();
            let since = *idle_since.get_or_insert(now);
            if now.duration_since(since) >= SPIN {
                return self.lie_down(cx, eventfd, idle_since, &arenas);
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn lie_down(
        &self,
        cx: &mut Context<'_>,
        eventfd: &AsyncFd<OwnedFd>,
        idle_since: &mut Option<Instant>,
        arenas: &[Rc<CoreArena>],
    ) -> Poll<io::Result<()>> {
        // Edge triggered: what rang until now is looked at below, the next ring is a new edge.
        loop {
            match eventfd.poll_read_ready(cx) {
                Poll::Ready(Ok(mut guard)) => guard.clear_ready(),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => break,
            }
        }
        *idle_since = None;
        // One that says no ends it; `awake` withdraws what was announced, and does no harm to the others.
        let quiet = arenas.iter().all(|arena| arena.arena.prepare_sleep(arena.lane));
        self.asleep.set(true);
        if !quiet {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}
