//! Requests at a fixed rate: a timer of each core says when the next one is due.
//!
//! A timer of the runtime has a resolution of a millisecond, in which 30 requests would leave at once.

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::Mutex;

/// The times at which requests are due. Connections that have nothing to do wait here in turn.
pub(crate) struct Pace {
    times: Mutex<Times>,
    ended: Cell<bool>,
}

struct Times {
    /// A timerfd. tokio reads it as a pipe: both are descriptors that become readable.
    timer: pipe::Receiver,
    interval: Duration,
    next: Instant,
    /// Times that have come and are not taken.
    come: u64,
}

impl Pace {
    /// Starts with a request each `interval`. Must be called in the core's runtime.
    pub(crate) fn start(interval: Duration) -> io::Result<Self> {
        // Otherwise the kernel may wake this thread 50 µs late. It cannot fail for the calling thread.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        let each = Timespec { tv_sec: interval.as_secs() as i64, tv_nsec: i64::from(interval.subsec_nanos()) };
        let times = Itimerspec { it_interval: each, it_value: each };
        let next = Instant::now() + interval;
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &times)?;
        let times = Times { timer: pipe::Receiver::from_file_unchecked(File::from(timer))?, interval, next, come: 0 };
        Ok(Self { times: Mutex::new(times), ended: Cell::new(false) })
    }

    /// Ends the load. Connections that wait for a time get `None`.
    pub(crate) fn stop(&self) {
        self.ended.set(true);
    }

    /// Waits until a request is due. Returns since when, and `None` at the end.
    pub(crate) async fn due(&self) -> Option<Instant> {
        let mut times = self.times.lock().await;
        while times.come == 0 && !self.ended.get() {
            times.come = times.wait().await;
        }
        if self.ended.get() {
            return None;
        }
        let due = times.next;
        (times.come, times.next) = (times.come - 1, due + times.interval);
        Some(due)
    }
}

impl Times {
    /// Returns how many times have come, at least one (timerfd_create(2), `read`).
    async fn wait(&mut self) -> u64 {
        let mut count = [0; 8];
        self.timer.read_exact(&mut count).await.map_or(0, |_| u64::from_ne_bytes(count))
    }
}
