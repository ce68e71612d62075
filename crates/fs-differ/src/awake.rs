//! Who does not sleep while he waits. What a call answers does not show that.

use crate::sys::process;
use std::time::{Duration, Instant};

/// What the threads of a process have had of the CPUs, how long they have waited for one, and how often they got one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Awake {
    ran: Duration,
    queued: Duration,
    times: u64,
}

impl Awake {
    /// All zero where the kernel does not say (proc_pid_schedstat(5)), or there is no such process.
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

    /// Whether who was like this before, and waited for this long, did not sleep. On a busy machine who never sleeps has a CPU for a small
    /// part of the time, and is in the queue for one else. Who looks each millisecond has less of one.
    pub fn is_spin(self, before: Awake, waited: Duration) -> bool {
        let ran = self.ran.saturating_sub(before.ran);
        let queued = self.queued.saturating_sub(before.queued);
        waited >= Duration::from_millis(12) && ran * 20 >= waited && (ran + queued) * 2 >= waited
    }

    /// Whether who was like this before, and waited for this long, woke again and again with nothing to tell, each 20 ms or more often.
    pub fn is_poll(self, before: Awake, waited: Duration) -> bool {
        let times = self.times.saturating_sub(before.times);
        times >= 6 && Duration::from_millis(20 * times) >= waited
    }
}

/// A call under way in this thread, which opens no file for this: its numbers are the program's.
pub struct Watched(Instant, Duration);

impl Watched {
    /// It begins.
    pub fn begin() -> Watched {
        Watched(Instant::now(), process::own_cpu_time())
    }

    /// It has ended: whether it did not sleep meanwhile.
    pub fn has_spun(&self) -> bool {
        self.has_spun_for(Duration::from_millis(10))
    }

    /// The same of a call that had a CPU for this long at least.
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
    fn who_asks_at_intervals_is_told_from_who_was_woken() {
        let times = |times| Awake { times, ..awake(0, 0) };
        let (before, waited) = (times(100), Duration::from_millis(200));
        assert!(times(112).is_poll(before, waited), "each 16 ms");
        assert!(!times(108).is_poll(before, waited), "woken some times, and no more");
        assert!(!times(103).is_poll(before, Duration::from_millis(20)), "too few to say");
    }

    #[test]
    fn who_never_sleeps_is_told_from_who_looks_before_it_sleeps() {
        let (before, waited) = (awake(5, 7), Duration::from_millis(100));
        assert!(awake(104, 7).is_spin(before, waited));
        assert!(awake(17, 95).is_spin(before, waited), "others had the CPU");
        assert!(!awake(9, 95).is_spin(before, waited), "who looks now and then, on a busy machine");
        assert!(!awake(15, 7).is_spin(before, waited), "who looked for a while, and slept");
        assert!(!awake(10, 7).is_spin(before, Duration::from_millis(5)), "too short to say");
    }

    #[test]
    fn the_kernel_says_who_is_awake() {
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
