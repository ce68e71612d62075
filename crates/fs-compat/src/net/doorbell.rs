//! Wakes tasks of a core from other threads, with a list that the core checks in each turn and a
//! doorbell for when it sleeps.
//!
//! tokio's own wakers would write to an eventfd on each call from another thread, even while the
//! core is awake.

use crossbeam::queue::SegQueue;
use fs_rt::{CoreRef, Source};
use rustix::event::{EventfdFlags, eventfd};
use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Waker};

/// A core's doorbell.
pub(super) struct Doorbell {
    /// Contains each [`Call`] at most once.
    ready: SegQueue<Arc<Call>>,
    /// True if `ready` may not be empty. The core reads it once per turn, and its cache line
    /// changes only when there is a call.
    any: AtomicBool,
    asleep: AtomicBool,
    fd: OwnedFd,
}

/// Wakes one task of a core from other threads.
pub(super) struct Call {
    doorbell: Arc<Doorbell>,
    task: OnceLock<Waker>,
    called: AtomicBool,
}

impl Call {
    pub(super) fn new(doorbell: Arc<Doorbell>) -> Arc<Self> {
        Arc::new(Self { doorbell, task: OnceLock::new(), called: AtomicBool::new(false) })
    }

    /// Schedules a poll of the task. Any thread may call it.
    pub(super) fn call(self: &Arc<Self>) {
        // Already called. The task has not been polled since, so it will see what was stored before
        // this.
        if self.called.swap(true, Ordering::AcqRel) {
            return;
        }
        self.doorbell.ready.push(self.clone());
        self.doorbell.any.store(true, Ordering::Release);
        // Pairs with the fence in `prepare_sleep`: either this sees `asleep`, or the core sees the
        // pushed call.
        fence(Ordering::SeqCst);
        if self.doorbell.asleep.load(Ordering::Relaxed) && self.doorbell.asleep.swap(false, Ordering::Relaxed) {
            // The write fails only if the counter is at its maximum, and then the eventfd is
            // readable.
            let _ = rustix::io::write(&self.doorbell.fd, &1u64.to_ne_bytes());
        }
    }

    /// The task calls this at the start of each poll. From here on it sees what other threads
    /// stored before they called.
    pub(super) fn answer(&self, cx: &Context<'_>) {
        // A task's waker stays the same.
        self.task.get_or_init(|| cx.waker().clone());
        self.called.swap(false, Ordering::AcqRel);
    }

    /// Marks the task as ended. Later calls do nothing.
    pub(super) fn end(&self) {
        self.called.store(true, Ordering::Release);
    }
}

struct Listening(Arc<Doorbell>);

/// Drains calls that will not be handled, because each holds a reference to the doorbell.
impl Drop for Listening {
    fn drop(&mut self) {
        while self.0.ready.pop().is_some() {}
    }
}

impl Source for Listening {
    #[inline]
    fn poll(&self) -> usize {
        if !self.0.any.load(Ordering::Acquire) {
            return 0;
        }
        self.0.any.swap(false, Ordering::AcqRel);
        let mut woken = 0;
        // No task is in the list twice: it can be called again only after its next poll.
        while let Some(call) = self.0.ready.pop() {
            // Not set: its first poll is still to come.
            if let Some(task) = call.task.get() {
                task.wake_by_ref();
            }
            woken += 1;
        }
        woken
    }

    fn prepare_sleep(&self) -> bool {
        self.0.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.0.ready.is_empty()
    }

    fn awake(&self) {
        self.0.asleep.store(false, Ordering::Relaxed);
    }
}

thread_local! {
    /// The doorbell of the core that this thread runs.
    static DOORBELL: RefCell<Option<Arc<Doorbell>>> = const { RefCell::new(None) };
}

/// Returns the calling core's doorbell. The first handle creates it, so a core without handles has
/// nothing to check.
pub(super) fn of_this_core(core: &CoreRef) -> io::Result<Arc<Doorbell>> {
    DOORBELL.with_borrow_mut(|doorbell| {
        if let Some(doorbell) = doorbell {
            return Ok(doorbell.clone());
        }
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let watched = fd.try_clone()?;
        let new = Arc::new(Doorbell {
            ready: SegQueue::new(),
            any: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            fd,
        });
        core.add_source(Rc::new(Listening(new.clone())), watched)?;
        Ok(doorbell.insert(new).clone())
    })
}
