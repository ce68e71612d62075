//! Receive-buffer auto-tuning: dynamic right-sizing as Linux does it (`tcp_rcv_space_adjust`). What the
//! application reads in one round trip is what the sender can send in one; the buffer is made to hold twice as
//! much and room for slow start's growth, so that the window is never what limits.

use crate::rx::steer::TsClock;
use crate::tcb::Tcb;

/// The round trip before anything is known of it, in microseconds. Lower: the first measure takes too little for
/// a round trip's worth; higher: the buffer starts to grow late.
const RTT_UNKNOWN_US: u32 = 100_000;

/// The next segment's timestamp is to give a sample of the round trip: the top bit of `Autotune::rtt`.
const WANTS_SAMPLE: u32 = 1 << 31;

/// A connection's measure. All zero until it has read a segment or more at once. With its counts, not in the extension:
/// every connection whose requests are not small has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Autotune {
    /// Smoothed round trip as the receiver sees it, in microseconds (at most a minute); 0: unknown. And [`WANTS_SAMPLE`].
    rtt: u32,
    /// Most that was read in one round trip; 0: the measure has not begun.
    space: u32,
    /// Read in the current measure.
    copied: u32,
    /// When the current measure began, in microseconds modulo 2^32.
    since_us: u32,
}

impl Autotune {
    /// A segment with data has come, whose timestamp echoes ours of `ecr`. One sample a round trip.
    #[inline]
    pub(crate) fn sample(&mut self, clock: &TsClock, now_ts: impl FnOnce() -> u32, ecr: u32) {
        if self.rtt & WANTS_SAMPLE != 0 {
            self.rtt &= !WANTS_SAMPLE;
            self.take_sample(clock, now_ts(), ecr);
        }
    }

    #[inline(never)]
    fn take_sample(&mut self, clock: &TsClock, now_ts: u32, ecr: u32) {
        // The clock's steps are `tick_ms` long: less cannot be told.
        let ms = (now_ts.wrapping_sub(ecr) & !(clock.tick_ms() - 1)).max(clock.tick_ms());
        if ms > 60_000 {
            return;
        }
        let us = ms * 1000;
        self.rtt = if self.rtt == 0 { us } else { self.rtt - self.rtt / 8 + us / 8 };
    }

    /// Nothing is measured.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.space == 0
    }

    /// Bytes that the application reads in a round trip, and the round trip, in microseconds: for TCP_INFO.
    pub(crate) fn figures(&self) -> (u32, u32) {
        (self.space, self.rtt_us())
    }

    #[inline]
    fn rtt_us(&self) -> u32 {
        self.rtt & !WANTS_SAMPLE
    }
}

/// The application has read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    /// So many bytes.
    pub(crate) bytes: u32,
    /// Most that the buffer may grow to.
    pub(crate) max: u32,
    /// The core's receive share is not half spent.
    pub(crate) room: bool,
    /// When, in microseconds modulo 2^32.
    pub(crate) now_us: u32,
}

impl Tcb {
    /// Measures what is read, and lets the buffer grow.
    #[inline]
    pub(crate) fn adjust_receive_buffer(&mut self, tune: &mut Autotune, bytes: u32, read: impl FnOnce() -> Read) {
        // Only a segment or more begins a measure.
        if tune.is_idle() && bytes < u32::from(self.mss) {
            return;
        }
        let read = read();
        if self.rcv_buf() >= read.max {
            return;
        }
        tune.copied = tune.copied.saturating_add(read.bytes);
        let rtt_us = if tune.rtt_us() == 0 { self.rtt.srtt_us() } else { tune.rtt_us() };
        if tune.space == 0 || read.now_us.wrapping_sub(tune.since_us) >= rtt_us {
            self.measure(tune, read);
        }
    }

    /// The measure begins, or ends if its round trip is over.
    #[inline(never)]
    fn measure(&mut self, tune: &mut Autotune, read: Read) {
        let (mss, srtt_us, buffer) = (u32::from(self.mss), self.rtt.srtt_us(), self.rcv_buf());
        if self.ext.as_ref().is_some_and(|e| e.recv.buffer_fixed) {
            tune.copied = 0;
            return;
        }
        let Read { max, room, now_us, .. } = read;
        if tune.space == 0 {
            // Linux: an initial window's worth.
            *tune = Autotune { space: (10 * mss).min(buffer), since_us: now_us, rtt: tune.rtt | WANTS_SAMPLE, ..*tune };
        }
        let rtt_us = match (tune.rtt_us(), srtt_us) {
            (0, 0) => RTT_UNKNOWN_US,
            (0, ours) => ours,
            (theirs, _) => theirs,
        };
        if now_us.wrapping_sub(tune.since_us) < rtt_us {
            return;
        }
        let (copied, space) = (core::mem::take(&mut tune.copied), tune.space);
        (tune.since_us, tune.rtt) = (now_us, tune.rtt | WANTS_SAMPLE);
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
