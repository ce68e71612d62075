//! Detects processes that spin or poll while they wait. The results of calls do not show that.

use crate::sys::process;
use std::time::{Duration, Instant};

/// CPU time of a process's threads, their time in the run queue, and the number of times that they
/// got a CPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct Awake {
    ran: Duration,
    queued: Duration,
    times: u64,
}

impl Awake {
    /// Returns the process's values; all zero if the kernel does not report them
    /// (proc_pid_schedstat(5)), or the process does not exist.
    pub fn of(pid: i32) -> Awake {
        let mut all = Awake::default();
        let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return all };
        for thread in threads.flatten() {
            let text = std::fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
            let mut numbers = text.split_whitespace().map(|word| word.parse().unwrap_or(0));
            all.ran += Duration::from_nanos(numbers.next().unwrap_or_default());
            all.queued += Duration::from_nanos(numbers.next().unwrap_or_default());
            all.times += numbers.next().unwrap_or_default();
        }
        all
    }

    /// Returns true if a thread of the process runs or has no CPU (proc_pid_stat(5)).
    pub fn is_runnable(pid: i32) -> bool {
        let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
        threads.flatten().any(|thread| {
            let text = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            text.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('R'))
        })
    }

    /// Returns true if the process has spun since `before`, while it waited for `waited`. On a busy
    /// machine a spinning process has a CPU for a small part of the time, and is in the run queue
    /// otherwise. One that polls each millisecond uses less CPU time.
    pub fn is_spin(self, before: Awake, waited: Duration) -> bool {
        let ran = self.ran.saturating_sub(before.ran);
        let queued = self.queued.saturating_sub(before.queued);
        waited >= Duration::from_millis(12) && ran * 20 >= waited && (ran + queued) * 2 >= waited
    }

    /// Returns true if the process has woken repeatedly without a result since `before`, each 20 ms
    /// or more often.
    pub fn is_poll(self, before: Awake, waited: Duration) -> bool {
        let times = self.times.saturating_sub(before.times);
        times >= 6 && Duration::from_millis(20 * times) >= waited
    }
}

/// A call in progress of this thread. Opens no file for its measurement, since the descriptor
/// numbers belong to the program.
pub struct Watched(Instant, Duration);

impl Watched {
    /// Begins the measurement.
    pub fn begin() -> Watched {
        Watched(Instant::now(), process::own_cpu_time())
    }

    /// Ends the measurement. Returns true if the call has spun.
    pub fn has_spun(&self) -> bool {
        self.has_spun_for(Duration::from_millis(10))
    }

    /// Like [`Watched::has_spun`], for a call that used a CPU for at least this time.
    pub fn has_spun_for(&self, least: Duration) -> bool {
        let ran = process::own_cpu_time().saturating_sub(self.1);
        ran >= least && ran * 8 >= self.0.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn awake(ran: u64, queued: u64) -> Awake {
        Awake { ran: Duration::from_millis(ran), queued: Duration::from_millis(queued), times: 0 }
    }

    #[test]
    fn distinguishes_polling_from_waking() {
        let times = |times| Awake { times, ..awake(0, 0) };
        let (before, waited) = (times(100), Duration::from_millis(200));
        assert!(times(112).is_poll(before, waited), "each 16 ms");
        assert!(!times(108).is_poll(before, waited), "woken some times, and no more");
        assert!(!times(103).is_poll(before, Duration::from_millis(20)), "too few to say");
    }

    #[test]
    fn distinguishes_spinning_from_polling_before_sleep() {
        let (before, waited) = (awake(5, 7), Duration::from_millis(100));
        assert!(awake(104, 7).is_spin(before, waited));
        assert!(awake(17, 95).is_spin(before, waited), "others had the CPU");
        assert!(!awake(9, 95).is_spin(before, waited), "a thread that polls at times, on a busy machine");
        assert!(!awake(15, 7).is_spin(before, waited), "a thread that polled for a while and slept");
        assert!(!awake(10, 7).is_spin(before, Duration::from_millis(5)), "too short to say");
    }

    #[test]
    fn kernel_reports_cpu_times() {
        let before = Awake::of(std::process::id() as i32);
        let (call, begun) = (Watched::begin(), Instant::now());
        while process::own_cpu_time() < call.1 + Duration::from_millis(30) {
            assert!(begun.elapsed() < Duration::from_secs(120), "no CPU time is counted");
        }
        for _ in 0..8 {
            process::pause(1);
        }
        let after = Awake::of(std::process::id() as i32);
        assert!(after.is_poll(before, begun.elapsed().min(Duration::from_millis(50))), "{before:?} {after:?}");
        assert!(after.ran >= before.ran + Duration::from_millis(25), "{before:?} {after:?}");
    }
}
