use super::*;

const MSS: u32 = 1000;

/// A path of 100 segments per 50 ms with a deep queue, in rounds of slow start.
struct Path {
    w: Window,
    state: HyStart,
    una: u32,
    /// Round trip without a queue.
    rtt_us: u32,
    pipe: u32,
}

impl Path {
    fn new(pipe: u32) -> Self {
        Self { w: Window::new(16 * MSS), state: HyStart::default(), una: 0, rtt_us: 50_000, pipe }
    }

    /// Sends and acknowledges one window of segments; `noise` is added to every round trip. Returns
    /// the longest.
    fn round(&mut self, noise: u32) -> u32 {
        let segments = self.w.cwnd / MSS;
        let mut longest = 0;
        for i in 0..segments {
            // The queue that segment i finds if the window is sent over one round trip at twice the
            // rate.
            let queued = (segments.saturating_sub(self.pipe)).min(i);
            let rtt = self.rtt_us + noise + queued * self.rtt_us / self.pipe;
            longest = longest.max(rtt);
            self.una += MSS;
            let nxt = self.una + self.w.cwnd;
            let ack = SlowStartAck { una: SeqNum(self.una), nxt: SeqNum(nxt), acked: MSS, mss: MSS, rtt_us: Some(rtt) };
            if self.w.in_slow_start() {
                self.state.on_ack(&mut self.w, &ack);
            }
        }
        longest
    }
}

#[test]
fn constant_round_trip_is_plain_slow_start() {
    let mut path = Path::new(1_000_000);
    for want in [32, 64, 128, 256, 512] {
        path.round(0);
        assert_eq!(path.w.cwnd, want * MSS);
    }
    assert_eq!(path.state.css_left, 0);
}

#[test]
fn lasting_growth_ends_slow_start() {
    let mut path = Path::new(1_000_000);
    path.round(0);
    path.round(0);
    // From here on every round trip is a fifth longer.
    let before = path.w.cwnd;
    path.round(10_000);
    assert!(path.state.css_left > 0, "{:?}", path.state);
    assert!(path.w.cwnd < before * 2, "the round in which it was noticed already grows less");
    let mut rounds = 0;
    while path.w.in_slow_start() {
        let before = path.w.cwnd;
        path.round(10_000);
        assert!(path.w.cwnd <= before + before / 4 + MSS);
        rounds += 1;
    }
    assert_eq!(rounds, CSS_ROUNDS as u32);
    assert!(path.w.ssthresh <= path.w.cwnd);
}

#[test]
fn one_noisy_round_keeps_slow_start() {
    let mut path = Path::new(1_000_000);
    path.round(0);
    path.round(0);
    path.round(10_000);
    assert!(path.state.css_left > 0);
    path.round(0);
    assert_eq!(path.state.css_left, 0, "it was noise");
    let before = path.w.cwnd;
    path.round(0);
    assert_eq!(path.w.cwnd, before * 2);
}

/// RFC 9406 4.2: growth below 4 ms is never a sign, and growth above 16 ms always is.
#[test]
fn growth_threshold_has_bounds() {
    for (rtt_us, growth, sign) in [
        (2_000, 3_900, false),
        (2_000, 4_100, true),
        (80_000, 9_000, false),
        (80_000, 11_000, true),
        (900_000, 17_000, true),
    ] {
        let mut path = Path::new(1_000_000);
        path.rtt_us = rtt_us;
        path.round(0);
        path.round(0);
        path.round(growth);
        assert_eq!(path.state.css_left > 0, sign, "{rtt_us} {growth}");
    }
}

#[test]
fn ignores_small_windows_short_round_trips_and_later_slow_starts() {
    let first = Window::new(16 * MSS);
    assert!(applies(&first, MSS, 1_000));
    assert!(!applies(&first, MSS, 999));
    assert!(!applies(&Window { cwnd: 15 * MSS, ..first }, MSS, 1_000));
    assert!(!applies(&Window { ssthresh: 1 << 20, ..first }, MSS, 1_000));
}
