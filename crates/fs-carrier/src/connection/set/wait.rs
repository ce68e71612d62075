//! epoll_wait(2) of a set with promoted connections.

use super::REENTERED;
use super::hot::{MaySleep, join};
use crate::connection::Set;
use crate::connection::pair::BEHIND_NS;
use crate::kernel::{Errno, Event, Kernel, KernelSet};
use crate::spin::{FIRST_YIELD_NS, Pacing, YIELD_NS};

/// The result of a scan.
struct Scan {
    events: usize,
    hot: usize,
    has_writers: bool,
    has_ends: bool,
}

impl<K: Kernel> Set<K> {
    /// Waits for events as epoll_wait(2) does: those of the rings, and those of the kernel.
    /// `timeout_ns`: `None` waits forever.
    ///
    /// # Errors
    /// The errors of epoll_wait(2).
    pub fn wait(&self, kernel: &impl KernelSet, into: &mut [Event], timeout_ns: Option<u64>) -> Result<usize, Errno> {
        if into.is_empty() {
            return kernel.wait(into, timeout_ns);
        }
        let mut start = kernel.now_ns();
        let end = timeout_ns.map(|ns| start.saturating_add(ns));
        if self.merged.is_turn_over(start) && !self.pacing.is_crowded(kernel) {
            (start, _) = self.pacing.yield_now(kernel, start);
        }
        let asks_first = self.merged.was_crowded_out();
        if asks_first {
            let events = self.ask(kernel, into, 0, start)?;
            if events > 0 {
                return self.fill(kernel, into, events);
            }
        }
        // The end of the spin, or `None` before it has begun.
        let mut look_end = None;
        let (mut yields, mut by_yield, mut is_late) = (0, false, false);
        let mut first_yields = 0;
        let mut now = start;
        let mut next_yield = start + FIRST_YIELD_NS;
        loop {
            let scan = self.scan(kernel, into)?;
            if scan.events > 0 {
                if look_end.is_some() {
                    self.spin.found(self.pacing);
                    self.spin.found_after(by_yield);
                }
                return if !asks_first && (timeout_ns == Some(0) || scan.has_ends || self.merged.is_due(now)) {
                    self.ask(kernel, into, scan.events, now)
                } else {
                    Ok(scan.events)
                };
            }
            by_yield = false;
            if timeout_ns == Some(0) && asks_first {
                return Ok(0);
            }
            if timeout_ns == Some(0) {
                return self.ask(kernel, into, 0, now);
            }
            let is_first = look_end.is_none();
            let look_end = *look_end.get_or_insert_with(|| {
                first_yields = self.spin.first_yields(self.pacing);
                now + u64::from(Pacing::spin_for(self.spin.next(self.pacing, kernel), scan.hot))
            });
            let is_over = look_end == start || (now >= look_end && yields >= first_yields);
            if scan.hot == 0 || is_over || is_late || end.is_some_and(|end| now >= end) {
                if scan.hot != 0 && look_end != start && !is_late {
                    self.spin.was_vain();
                }
                if let Some(events) = self.sleep(kernel, into, start, end)? {
                    return Ok(events);
                }
            } else if (is_first && scan.has_writers) || self.merged.is_old(now) {
                let events = self.ask(kernel, into, 0, now)?;
                if events > 0 {
                    return Ok(events);
                }
            } else if yields < first_yields || now >= next_yield {
                (now, is_late) = self.pacing.yield_now(kernel, now);
                (yields, next_yield, by_yield) = (yields + 1, now + YIELD_NS, true);
                continue;
            } else {
                kernel.pause();
                let before = core::mem::replace(&mut now, kernel.now_ns());
                is_late = self.pacing.has_spun(before, now);
                continue;
            }
            now = kernel.now_ns();
        }
    }

    /// E1.
    #[inline]
    fn scan(&self, kernel: &impl KernelSet, into: &mut [Event]) -> Result<Scan, Errno> {
        let mut hot = self.gate.lock(kernel).map_err(|_held| REENTERED)?;
        let events = hot.scan(kernel, into);
        if hot.is_interrupted && !hot.has_event() {
            kernel.end_interrupt();
            hot.is_interrupted = false;
        }
        Ok(Scan { events, hot: hot.len(), has_writers: hot.writers != 0, has_ends: hot.has_ends })
    }

    /// Adds the rings' events to `own` events of the kernel's.
    #[cold]
    fn fill(&self, kernel: &impl KernelSet, into: &mut [Event], own: usize) -> Result<usize, Errno> {
        let mut have = own;
        // Joined events leave space for others. A scan continues where the last one stopped, so at
        // most `own` events come again.
        for _ in 0..=own {
            let room = into.len() - have;
            if room == 0 {
                break;
            }
            let found = self.scan(kernel, &mut into[have..])?.events;
            have = join(&mut into[..have + found], have);
            if found < room {
                break;
            }
        }
        Ok(have)
    }

    /// E4: joins the kernel's events with `own` events of the rings.
    #[cold]
    fn ask(&self, kernel: &impl KernelSet, into: &mut [Event], own: usize, now: u64) -> Result<usize, Errno> {
        if own == into.len() {
            self.merged.is_crowded_out();
            return Ok(own);
        }
        self.merged.is_done(now);
        // If this fails in a signal handler in the middle of a call of its thread, that call makes
        // the deferred calls.
        if self.gate.lock(kernel).is_ok_and(|mut hot| !hot.prepare_ask(kernel)) {
            self.merged.has_found(false);
            return Ok(own);
        }
        let mut have = own;
        let mut has_some = false;
        // Joined events leave space for others. The kernel reports level-triggered events in turn,
        // so at most `own` come again.
        for _ in 0..=own {
            let room = into.len() - have;
            match kernel.wait(&mut into[have..], Some(0)) {
                Ok(n) => {
                    has_some |= n > 0;
                    have = self.report(kernel, &mut into[..have + n], have)?;
                    if n < room || have == into.len() {
                        break;
                    }
                }
                Err(error) if have == 0 => return Err(error),
                Err(_) => break,
            }
        }
        self.merged.has_found(has_some);
        Ok(have)
    }

    /// C9 for events that the kernel reports to a thread that does not sleep. Returns how many events are left.
    pub(crate) fn report(&self, kernel: &impl KernelSet, events: &mut [Event], own: usize) -> Result<usize, Errno> {
        if events.len() == own {
            return Ok(own);
        }
        let mut hot = self.gate.lock(kernel).map_err(|_held| REENTERED)?;
        // An interruption is for the sleepers, and stays until one of them has woken up.
        let left = own + drop_interrupt(kernel, &mut events[own..]);
        Ok(hot.merge(&mut events[..left], own))
    }

    /// E2 and E3, in a wait that began at `start`. Returns `None` if a connection has become ready
    /// by its ring, or the thread was interrupted to check the list.
    #[cold]
    fn sleep(
        &self,
        kernel: &impl KernelSet,
        into: &mut [Event],
        start: u64,
        end: Option<u64>,
    ) -> Result<Option<usize>, Errno> {
        let mut hot = self.gate.lock(kernel).map_err(|_held| REENTERED)?;
        hot.sleepers += 1;
        let spin_ns = Pacing::spin_for(self.pacing.spin_ns, hot.len());
        hot.tell(kernel);
        let may_sleep = hot.prepare_sleep();
        if may_sleep == MaySleep::No {
            hot.sleepers -= 1;
            return Ok(None);
        }
        drop(hot);
        let before = kernel.now_ns();
        let left = end.map(|end| end.saturating_sub(before));
        let bound = (may_sleep == MaySleep::Briefly).then_some(BEHIND_NS);
        let result = kernel.wait(into, left.into_iter().chain(bound).min());
        let now = kernel.now_ns();
        if result.is_ok_and(|n| n > 0) && now.wrapping_sub(start) < u64::from(spin_ns) {
            // A spin would have found it: the peers are awake, and the next receives may make their rings the carriers.
            self.spin.found(self.pacing);
        }
        self.merged.has_slept(now);
        self.merged.has_found(result.is_ok_and(|n| n > 0));
        // Refused: a signal handler that slept in its own thread's section. The count stays, and with it the kernel.
        let Ok(mut hot) = self.gate.lock(kernel) else { return result.map(Some) };
        hot.sleepers = hot.sleepers.saturating_sub(1);
        let n = result?;
        let left = drop_interrupt(kernel, &mut into[..n]);
        // The interruption stays until a scan leaves nothing to report: a call returns a part, and
        // the next sleeper has to look for the rest.
        let is_cut = n == 0 && bound.is_some() && end.is_none_or(|end| now < end);
        let left = hot.merge(&mut into[..left], 0);
        if is_cut || (n > 0 && left == 0) {
            return Ok(None);
        }
        Ok(Some(left))
    }
}

/// Removes the event of an interruption (E5), which is not for the application. Returns the number
/// of remaining events.
fn drop_interrupt(kernel: &impl KernelSet, events: &mut [Event]) -> usize {
    let Some(i) = events.iter().position(|event| kernel.is_interrupt(event.data)) else { return events.len() };
    events[i..].rotate_left(1);
    events.len() - 1
}
