//! Futures that are polled by hand: only when they were woken, often dropped before they are ready,
//! and sometimes polled with another waker, as when they move to another task.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};
use tokio::io::Interest;

/// A thousand times what an idle machine needs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) type Call = Pin<Box<dyn Future<Output = ()>>>;

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

struct Actor {
    what: String,
    call: Call,
    flag: Arc<Flag>,
    /// What it waits for, if that can be asked without waiting.
    waits: Option<Interest>,
}

/// The tasks of one program, which share its sockets.
#[derive(Default)]
pub(crate) struct Actors {
    all: Vec<Actor>,
    /// All wakers that a socket has seen.
    flags: Vec<Arc<Flag>>,
}

impl Actors {
    /// Adds a call, which is polled `polls` times at once and stays if it is not ready then. With
    /// `drops` it is dropped instead.
    pub(crate) fn start(&mut self, what: String, waits: Option<Interest>, call: Call, polls: usize, drops: bool) {
        let mut actor = Actor { what, call, flag: self.flag(), waits };
        for _ in 0..polls {
            if poll(&mut actor) {
                return;
            }
        }
        if !drops {
            actor.flag.0.store(actor.flag.0.load(Ordering::Acquire) || polls == 0, Ordering::Release);
            self.all.push(actor);
        }
    }

    fn flag(&mut self) -> Arc<Flag> {
        let flag = Arc::new(Flag(AtomicBool::new(false)));
        self.flags.push(flag.clone());
        flag
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn waits_for(&self, what: &str) -> usize {
        self.all.iter().filter(|actor| actor.what.starts_with(what)).count()
    }

    /// Polls the calls that were woken.
    pub(crate) fn run(&mut self) {
        self.all.retain_mut(|actor| !actor.flag.0.swap(false, Ordering::AcqRel) || !poll(actor));
    }

    pub(crate) fn cancel(&mut self, random: &mut fastrand::Rng) -> Option<String> {
        (!self.all.is_empty()).then(|| self.all.swap_remove(random.usize(..self.all.len())).what)
    }

    pub(crate) fn cancel_all(&mut self) {
        self.all.clear();
    }

    /// Polls a call that was not woken, with another waker: from now on only that one counts.
    pub(crate) fn moves(&mut self, random: &mut fastrand::Rng) -> Option<String> {
        if self.all.is_empty() {
            return None;
        }
        let (n, flag) = (random.usize(..self.all.len()), self.flag());
        self.all[n].flag = flag;
        let what = self.all[n].what.clone();
        if poll(&mut self.all[n]) {
            self.all.swap_remove(n);
        }
        Some(what)
    }

    /// Returns the calls that wait although `is_ready` says that they need not.
    fn asleep(&self, is_ready: &dyn Fn(Interest) -> bool) -> Vec<&str> {
        let sleeps = |actor: &&Actor| !actor.flag.0.load(Ordering::Acquire) && actor.waits.is_some_and(is_ready);
        self.all.iter().filter(sleeps).map(|actor| &*actor.what).collect()
    }

    /// Fails if a call is not woken although its condition holds.
    pub(crate) async fn all_woken(&mut self, is_ready: impl Fn(Interest) -> bool) {
        let begun = Instant::now();
        while !self.asleep(&is_ready).is_empty() {
            assert!(begun.elapsed() < PATIENCE, "not woken: {:?}", self.asleep(&is_ready));
            self.run();
            turn(true).await;
        }
    }

    /// Runs the calls until `is_over`. Fails if they do not come to it.
    pub(crate) async fn until(&mut self, what: &str, mut is_over: impl FnMut(&mut Self) -> bool) {
        let begun = Instant::now();
        loop {
            self.run();
            if is_over(self) {
                return;
            }
            let names: Vec<_> = self.all.iter().map(|actor| &actor.what).collect();
            assert!(begun.elapsed() < PATIENCE, "{what}: not in {PATIENCE:?}; waiting: {names:?}");
            turn(true).await;
        }
    }

    /// Fails if a socket keeps a waker of this program. Call it when all its sockets are closed.
    pub(crate) async fn no_waker_is_left(mut self) {
        self.cancel_all();
        let begun = Instant::now();
        let kept = |flags: &[Arc<Flag>]| flags.iter().filter(|flag| Arc::strong_count(flag) > 1).count();
        while kept(&self.flags) > 0 {
            assert!(begun.elapsed() < PATIENCE, "{} of {} wakers are left", kept(&self.flags), self.flags.len());
            turn(true).await;
        }
    }
}

fn poll(actor: &mut Actor) -> bool {
    let waker = Waker::from(actor.flag.clone());
    actor.call.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
}

/// Lets the core work; with `rests`, also the peer's.
pub(crate) async fn turn(rests: bool) {
    fs_rt::turn().await;
    if rests {
        tokio::time::sleep(Duration::from_micros(100)).await;
    }
}
