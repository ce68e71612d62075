//! Measures the time of a wake-up on this machine.

use core::time::Duration;
use std::thread;

use rustix::event::{EventfdFlags, eventfd};

use super::machine::now_ns;
use crate::kernel::Errno;

/// Number of measured wake-ups. The upper quartile of this many is stable. More: the start takes
/// longer.
const ROUNDS: usize = 15;
/// Time for which the sleeper sleeps before it is woken: its processor goes idle, as in a connection that waits.
const IDLE: Duration = Duration::from_micros(150);
/// Limits of the result. A machine with a longer wake-up is busy, so a longer spin would only take
/// its time.
const BOUNDS_NS: (u64, u64) = (20_000, 150_000);

/// Measures the time from one thread's write until a sleeping thread runs, in nanoseconds. Returns
/// the upper quartile.
///
/// A spin that is shorter never finds the reply of a peer that sleeps, so both ends stay asleep
/// ([`Pacing`](crate::Pacing)). This takes about five milliseconds, so a daemon does it once for
/// its host.
///
/// # Errors
/// The errors of eventfd(2), and `EAGAIN` if no thread can be made.
pub fn wake_up_ns() -> Result<u32, Errno> {
    let [there, back] = [eventfd(0, EventfdFlags::CLOEXEC)?, eventfd(0, EventfdFlags::CLOEXEC)?];
    let mut times = [0_u64; ROUNDS];
    thread::scope(|scope| {
        let sleeper = || {
            let mut word = [0; 8];
            for _ in 0..ROUNDS {
                rustix::io::read(&there, &mut word)?;
                rustix::io::write(&back, &now_ns().to_ne_bytes())?;
            }
            Ok(())
        };
        let sleeper = thread::Builder::new().spawn_scoped(scope, sleeper).map_err(|_refused| Errno::AGAIN)?;
        for time in &mut times {
            thread::sleep(IDLE);
            let start = now_ns();
            rustix::io::write(&there, &1_u64.to_ne_bytes())?;
            let mut woken = [0; 8];
            rustix::io::read(&back, &mut woken)?;
            *time = u64::from_ne_bytes(woken).saturating_sub(start);
        }
        sleeper.join().unwrap_or(Err(Errno::AGAIN))
    })?;
    times.sort_unstable();
    Ok(times[ROUNDS * 3 / 4].clamp(BOUNDS_NS.0, BOUNDS_NS.1) as u32)
}
