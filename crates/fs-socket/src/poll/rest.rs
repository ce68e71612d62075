//! Pollers that no poll(2) sleeps on: they are kept for the next one. And those that are slept on without end, which a recall wakes.

use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, SeqCst},
};

use crate::{
    descriptor::numbers,
    process::{self, Poller},
    types::Fd,
};

/// Of a poller at rest: it is private.
const PRIVATE: u64 = 1 << 31;

/// Pollers at rest: number << 32 | [`PRIVATE`] | descriptor + 1, and the life they belong to.
static REST: [[AtomicU64; 2]; 32] = [const { [const { AtomicU64::new(0) }; 2] }; 32];

/// Pollers that are slept on without end, for [`recall`].
static ENDLESS: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];

/// A place in [`ENDLESS`].
pub(super) struct Endless(&'static AtomicU32);

impl Endless {
    /// `None`: all places are taken, or nobody rings it.
    pub(super) fn begin(poller: Poller) -> Option<Self> {
        if poller.is_none() {
            return None;
        }
        let free = |place: &&AtomicU32| place.compare_exchange(0, poller.id, SeqCst, Relaxed).is_ok();
        ENDLESS.iter().find(free).map(Endless)
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        self.0.store(0, Relaxed);
    }
}

/// A thread has jumped out of a sleep on this poller: it is used no more, and with it the lanes go.
pub(crate) fn abandon(poller: Poller) {
    for place in &ENDLESS {
        // Lost: it was not there.
        let _ = place.compare_exchange(poller.id, 0, SeqCst, Relaxed);
    }
    if !poller.is_none() {
        process::poller_gone(poller);
    }
}

/// Wakes all who sleep without end.
pub(super) fn recall() {
    for poller in ENDLESS.iter().map(|place| place.load(SeqCst)).filter(|&poller| poller != 0) {
        process::bells().ring(poller);
    }
}

/// A poller for one sleep.
pub(super) fn take_poller() -> Option<Poller> {
    let life = process::current()?.life();
    for [poller, of] in &REST {
        let (word, of) = (poller.load(Acquire), of.load(Relaxed));
        // 1: somebody is about to put one there.
        if word > 1 && poller.compare_exchange(word, 0, AcqRel, Relaxed).is_ok() {
            let (fd, private) = ((word & (PRIVATE - 1)) as Fd - 1, word & PRIVATE != 0);
            let rested = Poller { id: (word >> 32) as u32, fd, private, life: of as u32 };
            if rested.life == life {
                return Some(rested);
            }
            // Of a daemon that has gone, whose numbers are others' by now: nobody sleeps there.
            process::drop_poller(rested);
        }
    }
    process::poller_for_a_sleep()
}

pub(super) fn give_poller(used: Poller) {
    if numbers::is_last(used.fd) {
        // The program's, as soon as nobody sleeps there.
        process::poller_gone(used);
        return;
    }
    let private = if used.private { PRIVATE } else { 0 };
    let word = u64::from(used.id) << 32 | private | (used.fd as u64 + 1);
    for [poller, of] in &REST {
        if poller.load(Relaxed) == 0 && poller.compare_exchange(0, 1, AcqRel, Acquire).is_ok() {
            of.store(u64::from(used.life), Relaxed);
            poller.store(word, core::sync::atomic::Ordering::Release);
            return;
        }
    }
    process::poller_gone(used);
}

/// Has a poller at rest that needs no more than poll(2) and read(2), and none that does, for a process that may soon be
/// unable to make one.
pub(super) fn prepare() {
    for place in &REST {
        if place[0].load(Relaxed) != 0
            && let Some(poller) = take_poller()
        {
            process::poller_gone(poller);
        }
    }
    // None: no daemon, or no room for descriptors; then polls of several sockets look at short intervals.
    if let Some(poller) = process::private_poller() {
        give_poller(poller);
    }
}

/// In a forked child: the pollers at rest are the parent's.
pub(super) fn forked() {
    for [poller, _] in &REST {
        poller.store(0, Relaxed);
    }
    for place in &ENDLESS {
        place.store(0, Relaxed);
    }
}
