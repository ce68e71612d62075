//! How other threads wake tasks of a core: a list that the core looks at in each of its turns, and a bell for when it sleeps.
//!
//! tokio's own wakers, called on another thread, would write to an eventfd each time, whether the core sleeps or not.

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

/// A core's bell.
pub(super) struct Bell {
    /// Each [`Call`] at most once.
    ready: SegQueue<Arc<Call>>,
    /// Read once a turn: a line that only changes when there is something.
    any: AtomicBool,
    asleep: AtomicBool,
    fd: OwnedFd,
}

/// What wakes one task of a core from other threads.
pub(super) struct Call {
    bell: Arc<Bell>,
    task: OnceLock<Waker>,
    called: AtomicBool,
}

impl Call {
    pub(super) fn new(bell: Arc<Bell>) -> Arc<Self> {
        Arc::new(Self { bell, task: OnceLock::new(), called: AtomicBool::new(false) })
    }

    /// Any thread: the task is polled after this.
    pub(super) fn call(self: &Arc<Self>) {
        // Called already: the task has not been polled since, and will see what was stored before this.
        if self.called.swap(true, Ordering::AcqRel) {
            return;
        }
        self.bell.ready.push(self.clone());
        self.bell.any.store(true, Ordering::Release);
        // Pairs with the fence in `prepare_sleep`: this sees `asleep`, or the core sees what was pushed.
        fence(Ordering::SeqCst);
        if self.bell.asleep.load(Ordering::Relaxed) && self.bell.asleep.swap(false, Ordering::Relaxed) {
            // It fails when its count is at the end of 64 bits, and then it is readable.
            let _ = rustix::io::write(&self.bell.fd, &1u64.to_ne_bytes());
        }
    }

    /// The task, at the beginning of each poll: what other threads have stored before they called is seen from here on.
    pub(super) fn answer(&self, cx: &Context<'_>) {
        // A task's waker stays the same.
        self.task.get_or_init(|| cx.waker().clone());
        self.called.swap(false, Ordering::AcqRel);
    }

    /// The task has ended: whoever calls now does nothing.
    pub(super) fn end(&self) {
        self.called.store(true, Ordering::Release);
    }
}

struct Listening(Arc<Bell>);

/// What has been called and will not be answered holds the bell that it lies in.
impl Drop for Listening {
    fn drop(&mut self) {
        while self.0.ready.pop().is_some() {}
    }
}

impl Source for Listening {
    #[inline]
    fn look(&self) -> usize {
        if !self.0.any.load(Ordering::Acquire) {
            return 0;
        }
        self.0.any.swap(false, Ordering::AcqRel);
        let mut woken = 0;
        // No task comes twice: it is called again after its next poll at the earliest.
        while let Some(call) = self.0.ready.pop() {
            // Not there: its first poll is still to come.
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
    /// The bell of the core that this thread runs.
    static BELL: RefCell<Option<Arc<Bell>>> = const { RefCell::new(None) };
}

/// The calling core's bell. It is made with the first handle: a core without any has nothing to look at.
pub(super) fn of_this_core(core: &CoreRef) -> io::Result<Arc<Bell>> {
    BELL.with_borrow_mut(|bell| {
        if let Some(bell) = bell {
            return Ok(bell.clone());
        }
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let watched = fd.try_clone()?;
        let new =
            Arc::new(Bell { ready: SegQueue::new(), any: AtomicBool::new(false), asleep: AtomicBool::new(false), fd });
        core.add_source(Rc::new(Listening(new.clone())), watched)?;
        Ok(bell.insert(new).clone())
    })
}
