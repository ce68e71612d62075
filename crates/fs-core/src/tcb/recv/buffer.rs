//! Growth of the receive buffer with the application's reads.

use super::autotune::{Autotune, Read, WANTS_SAMPLE};
use crate::tcb::Tcb;

/// The assumed round trip before the first sample, in microseconds. Too low: the first measurement
/// covers less than a round trip. Too high: the buffer starts to grow late.
const RTT_UNKNOWN_US: u32 = 100_000;

impl Tcb {
    /// Measures a read, and grows the buffer.
    #[inline]
    pub(crate) fn adjust_receive_buffer(&mut self, tune: &mut Autotune, bytes: u32, read: impl FnOnce() -> Read) {
        // Only a read of a segment or more begins a measurement.
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

    /// Begins a measurement, or ends it if its round trip has passed.
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
        // Twice the bytes read, plus slow start's doubling of the growth since the last
        // measurement.
        let window = copied as u64 * 2 + 16 * mss as u64;
        let growth = window.saturating_mul((copied - space) as u64) / space as u64;
        let wanted = growth.saturating_mul(2).saturating_add(window).min(max as u64) as u32;
        if wanted > buffer {
            self.set_rcv_buf(wanted);
        }
    }
}
