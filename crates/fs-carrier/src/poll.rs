//! poll(2) and select(2) over promoted connections: short lists, which are scanned.

use crate::kernel::{Errno, Kernel, Machine};
use crate::merged::Merged;
use crate::pair::{BEHIND_NS, Pair};
use crate::spin::{Pacing, Spin};

/// Lists up to this length may make the ring the carrier. More: each call with nothing to report
/// asks the kernel about each connection, 2 µs.
const SHORT_LIST: usize = 8;

/// A promoted connection in the list of a call, from which bytes are wanted (POLLIN).
#[derive(Debug)]
pub struct Watched<'a, K: Kernel> {
    pair: &'a Pair<K>,
    is_ready: bool,
    is_asleep: bool,
}

impl<'a, K: Kernel> Watched<'a, K> {
    /// Makes the entry of a list.
    pub fn new(pair: &'a Pair<K>) -> Self {
        Watched { pair, is_ready: false, is_asleep: false }
    }

    /// Returns true if the ring has bytes. The caller then adds POLLIN to the kernel's result.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// Returns whether the peer has ended its stream, or is about to.
    #[must_use]
    pub fn has_end(&self) -> bool {
        self.pair.incoming_word().is_pinned()
    }

    fn check(&mut self) -> bool {
        let seen = self.pair.incoming_word();
        // The kernel's own poll(2) reports connections that the kernel alone carries.
        self.is_ready = !self.pair.is_kernel_only_and_empty_behind(seen) && self.pair.is_ready_by_words(seen);
        self.is_ready
    }
}

/// The kind of question to the kernel about the caller's whole list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// The application's own call, with its signal mask and the rest of its timeout in ns. `None`
    /// waits forever.
    Call(Option<u64>),
    /// The rings have bytes, so the call does not wait: it returns at once, under the thread's own
    /// signal mask. The kernel delivers no signal of the call's mask either where descriptors are
    /// ready (`poll_select_finish` in fs/select.c).
    AlsoReady,
}

/// A thread's statistics of its waits in poll(2) and select(2).
#[derive(Debug)]
pub struct Poller {
    pacing: Pacing,
    spin: Spin,
    merged: Merged,
}

impl Poller {
    /// Makes the state of a thread that has not waited yet.
    #[must_use]
    pub fn new(pacing: Pacing) -> Self {
        Poller { pacing, spin: Spin::new(pacing), merged: Merged::default() }
    }

    /// Waits until a ring has bytes or the kernel has an event, and returns what `ask` returned
    /// last, or 0 where only rings have bytes and the kernel was asked less than 50 µs ago.
    /// `timeout_ns`: `None` waits forever.
    ///
    /// `ask` calls the kernel's poll(2) with the caller's whole list. Where it finds a promoted connection readable,
    /// the caller tells it by [`Pair::report_readable`] (C9).
    ///
    /// # Errors
    /// The errors of `ask`.
    pub fn wait<K: Kernel>(
        &self,
        machine: &impl Machine,
        list: &mut [Watched<'_, K>],
        timeout_ns: Option<u64>,
        mut ask: impl FnMut(Ask) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let mut start = machine.now_ns();
        let end = timeout_ns.map(|ns| start.saturating_add(ns));
        if self.merged.is_turn_over(start) && !self.pacing.is_crowded(machine) {
            (start, _) = self.pacing.yield_now(machine, start);
        }
        if check_all(list) {
            return if self.merged.is_due(start) { self.ask_now(&mut ask, Ask::AlsoReady, start) } else { Ok(0) };
        }
        let n = self.ask_now(&mut ask, Ask::Call(Some(0)), start)?;
        if n > 0 || timeout_ns == Some(0) {
            return Ok(n);
        }
        let spin_ns = self.spin.next(self.pacing, machine);
        if spin_ns != 0 && list.iter().any(|watched| !watched.pair.incoming_word().is_kernel_only()) | set_rings(list) {
            let ns =
                end.map_or(spin_ns, |end| spin_ns.min(u32::try_from(end.saturating_sub(start)).unwrap_or(u32::MAX)));
            if self.spin.look(self.pacing, machine, ns, || check_all(list)) {
                self.spin.found(self.pacing);
                return Ok(0);
            }
            self.spin.was_vain();
        }
        loop {
            let are_drained = begin_all(list);
            if !are_drained && check_all(list) {
                end_all(list);
                return self.ask_now(&mut ask, Ask::AlsoReady, machine.now_ns());
            }
            let left = end.map(|end| end.saturating_sub(machine.now_ns()));
            // Kernel bytes that precede the ring's have not arrived. They wake the thread, unless
            // another one takes them (C7).
            let bound = (!are_drained).then_some(BEHIND_NS);
            let result = ask(Ask::Call(left.into_iter().chain(bound).min()));
            end_all(list);
            let now = machine.now_ns();
            self.merged.has_slept(now);
            if are_drained || result != Ok(0) || end.is_some_and(|end| now >= end) {
                return result;
            }
        }
    }

    fn ask_now(&self, ask: &mut impl FnMut(Ask) -> Result<usize, Errno>, how: Ask, now: u64) -> Result<usize, Errno> {
        self.merged.is_done(now);
        ask(how)
    }
}

fn check_all<K: Kernel>(list: &mut [Watched<'_, K>]) -> bool {
    list.iter_mut().fold(false, |any, watched| watched.check() | any)
}

/// C5, because the caller is about to look and the kernel has just reported nothing.
fn set_rings<K: Kernel>(list: &[Watched<'_, K>]) -> bool {
    list.len() <= SHORT_LIST && list.iter().fold(false, |any, watched| watched.pair.try_set_ring() | any)
}

/// C4 and C8 for each connection. Returns false if one has bytes in its ring.
fn begin_all<K: Kernel>(list: &mut [Watched<'_, K>]) -> bool {
    list.iter_mut().fold(true, |all, watched| {
        watched.is_asleep = watched.pair.begin_sleep();
        all & watched.is_asleep
    })
}

fn end_all<K: Kernel>(list: &mut [Watched<'_, K>]) {
    for watched in list {
        if core::mem::take(&mut watched.is_asleep) {
            watched.pair.after_sleep();
        }
    }
}
