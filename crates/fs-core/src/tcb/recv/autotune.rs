//! Receive-buffer auto-tuning: dynamic right-sizing as Linux does it (`tcp_rcv_space_adjust`). What the
//! application reads in one round trip is what the sender can send in one; the buffer is made to hold twice as
//! much and room for slow start's growth, so that the window is never what limits.

use crate::rx::steer::TsClock;
use crate::tcb::Tcb;
use crate::time::Instant;

/// The round trip before anything is known of it, in microseconds. Lower: the first measure takes too little for
/// a round trip's worth; higher: the buffer starts to grow late.
const RTT_UNKNOWN_US: u32 = 100_000;

/// A connection's measure. All zero until it has read more than a segment at once.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Autotune {
    /// Smoothed round trip as the receiver sees it, in microseconds; 0: unknown.
    rtt_us: u32,
    /// Most that was read in one round trip.
    space: u32,
    /// Read in the current measure.
    copied: u32,
    /// When the current measure began, in microseconds modulo 2^32.
    since_us: u32,
    /// The next segment's timestamp is to give a sample of the round trip.
    wants_sample: bool,
}

impl Autotune {
    /// A segment with data has come, whose timestamp echoes ours of `ecr`. One sample a round trip.
    #[inline]
    pub(crate) fn sample(&mut self, clock: &TsClock, now_ts: impl FnOnce() -> u32, ecr: u32) {
        if !core::mem::replace(&mut self.wants_sample, false) {
            return;
        }
        // The clock's steps are `tick_ms` long: less cannot be told.
        let ms = (now_ts().wrapping_sub(ecr) & !(clock.tick_ms() - 1)).max(clock.tick_ms());
        if ms > 60_000 {
            return;
        }
        let us = ms * 1000;
        self.rtt_us = if self.rtt_us == 0 { us } else { self.rtt_us - self.rtt_us / 8 + us / 8 };
    }

    /// Bytes that the application reads in a round trip, and the round trip, in microseconds: for TCP_INFO.
    pub(crate) fn figures(&self) -> (u32, u32) {
        (self.space, self.rtt_us)
    }
}

impl Tcb {
    /// The application has read `n` bytes. `room`: the core's receive share is not half spent.
    #[inline]
    pub(crate) fn adjust_receive_buffer(&mut self, n: u32, max: u32, room: bool, now: Instant) {
        if self.rcv_buf() >= max {
            return;
        }
        if self.ext.is_none() && n < self.mss as u32 {
            // Only bulk transfers pay for the extension.
            return;
        }
        self.measure(n, max, room, now);
    }

    fn measure(&mut self, n: u32, max: u32, room: bool, now: Instant) {
        let (mss, srtt_us, buffer) = (self.mss as u32, self.rtt.srtt_us(), self.rcv_buf());
        let now_us = now.as_micros() as u32;
        let recv = &mut self.ext_mut().recv;
        if recv.buffer_fixed {
            return;
        }
        let tune = &mut recv.autotune;
        if tune.space == 0 {
            // Linux: an initial window's worth.
            *tune = Autotune { space: (10 * mss).min(buffer), since_us: now_us, wants_sample: true, ..*tune };
        }
        tune.copied = tune.copied.saturating_add(n);
        let rtt_us = match (tune.rtt_us, srtt_us) {
            (0, 0) => RTT_UNKNOWN_US,
            (0, ours) => ours,
            (theirs, _) => theirs,
        };
        if now_us.wrapping_sub(tune.since_us) < rtt_us {
            return;
        }
        let (copied, space) = (core::mem::take(&mut tune.copied), tune.space);
        (tune.since_us, tune.wants_sample) = (now_us, true);
        if copied <= space {
            return;
        }
        tune.space = copied;
        if !room {
            return;
        }
        // Twice what was read, and slow start's doubling on top of the growth since the last measure.
        let window = copied as u64 * 2 + 16 * mss as u64;
        let growth = window * (copied - space) as u64 / space as u64;
        let wanted = (window + 2 * growth).min(max as u64) as u32;
        if wanted > buffer {
            self.set_rcv_buf(wanted);
        }
    }
}

#[cfg(test)]
mod tests;
