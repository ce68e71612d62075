use super::*;
use proptest::prelude::*;

const MSS: u32 = 1460;

/// RFC 9438 in floating point, segments and seconds, as specified.
#[derive(Default)]
struct Rfc {
    w_max: f64,
    cwnd_prior: f64,
    epoch: Option<f64>,
    k: f64,
    w_est: f64,
}

impl Rfc {
    const C: f64 = 0.4;
    const BETA: f64 = 0.7;

    fn w_cubic(&self, t: f64) -> f64 {
        Self::C * (t - self.k).powi(3) + self.w_max
    }

    /// Sections 4.6 and 4.7. Returns ssthresh, which becomes cwnd. If the window equals w_max
    /// except for rounding, `below` selects the side.
    fn congestion(&mut self, cwnd: f64, below: bool) -> f64 {
        self.cwnd_prior = cwnd;
        let below = if (cwnd / self.w_max - 1.0).abs() < 0.01 { below } else { cwnd < self.w_max };
        self.w_max = if below { cwnd * (1.0 + Self::BETA) / 2.0 } else { cwnd };
        self.epoch = None;
        (cwnd * Self::BETA).max(2.0)
    }

    /// Sections 4.2 to 4.5. Returns cwnd after an ACK.
    fn ack(&mut self, cwnd: f64, acked: f64, now: f64, rtt: f64) -> f64 {
        let epoch = *self.epoch.get_or_insert_with(|| {
            self.w_max = self.w_max.max(cwnd);
            self.k = ((self.w_max - cwnd) / Self::C).cbrt();
            self.w_est = cwnd;
            now
        });
        let alpha = if self.w_est >= self.cwnd_prior { 1.0 } else { 3.0 * (1.0 - Self::BETA) / (1.0 + Self::BETA) };
        self.w_est += alpha * acked / cwnd;
        let t = now - epoch;
        if self.w_cubic(t) < self.w_est {
            cwnd.max(self.w_est)
        } else {
            let target = self.w_cubic(t + rtt).clamp(cwnd, 1.5 * cwnd);
            cwnd + acked * (target - cwnd) / cwnd
        }
    }
}

/// Both algorithms on a path that is always full.
struct Pair {
    cubic: Cubic,
    w: Window,
    rfc: Rfc,
    segments: f64,
    ns: u64,
    mss: u32,
}

impl Pair {
    fn new(segments: u32, mss: u32) -> Self {
        let w = Window { cwnd: segments * mss, ssthresh: segments * mss };
        let ns = 123_456_789_012_345;
        Self { cubic: Cubic::default(), w, rfc: Rfc::default(), segments: segments.into(), ns, mss }
    }

    fn congestion(&mut self) {
        let flight = self.w.cwnd;
        let below = flight < self.cubic.curve.w_max;
        self.cubic.on_congestion(&mut self.w, flight, self.mss, Instant(self.ns));
        self.cubic.on_recovery_exit(&mut self.w);
        self.segments = self.rfc.congestion(self.segments, below);
    }

    /// Runs one round trip, in which the window is acknowledged in `acks` equal parts.
    fn round_trip(&mut self, rtt_us: u32, acks: u32) {
        let acked = self.w.cwnd / acks;
        for _ in 0..acks {
            self.ns += u64::from(rtt_us) * 1000 / u64::from(acks);
            let ack = AckSample {
                now: Instant(self.ns),
                acked,
                flight: self.w.cwnd,
                srtt_us: rtt_us,
                mss: self.mss,
                app_limited: false,
            };
            self.cubic.on_ack(&mut self.w, &ack);
            let acked = f64::from(acked) / f64::from(self.mss);
            self.segments = self.rfc.ack(self.segments, acked, self.ns as f64 / 1e9, f64::from(rtt_us) / 1e6);
        }
    }

    /// The largest relative difference must be at most 1 %.
    fn assert_close(&self) {
        let ours = f64::from(self.w.cwnd) / f64::from(self.mss);
        let off = (ours - self.segments).abs() / self.segments;
        assert!(off < 0.01, "{ours} segments against {} by the RFC", self.segments);
    }
}

#[test]
fn curve_after_loss_equals_rfc() {
    // From far below Reno's region to far above: 1 ms to 300 ms, 10 to 20,000 segments.
    for (segments, rtt_us) in
        [(10, 1_000), (100, 1_000), (100, 50_000), (1000, 20_000), (20_000, 100_000), (20_000, 300_000)]
    {
        let mut pair = Pair::new(segments, MSS);
        pair.congestion();
        let rounds = 60_000_000 / rtt_us;
        for _ in 0..rounds.min(3000) {
            pair.round_trip(rtt_us, 10);
            pair.assert_close();
        }
        assert!(pair.w.cwnd > segments * MSS, "{segments} segments, {rtt_us} us: has not come back to where it was");
    }
}

#[test]
fn plateau_is_at_k() {
    // RFC 9438 figure 2: cbrt((1000 - 700) / 0.4) = 9.086 s.
    let mut pair = Pair::new(1000, MSS);
    pair.congestion();
    pair.round_trip(1000, 1);
    assert_eq!(pair.cubic.curve.k, 9303, "9.0856 s in 1024ths");
    assert_eq!(time_to_grow(0, MSS), 0);
    // Largest window, smallest segment.
    assert!(i64::from(time_to_grow(CWND_MAX, 536)) < TIME_MAX / 4);
    assert!(time_to_grow(u32::MAX, 0) > 0);
}

#[test]
fn fast_convergence_lowers_plateau() {
    let mut pair = Pair::new(1000, MSS);
    pair.congestion();
    pair.round_trip(10_000, 10);
    let cwnd = pair.w.cwnd;
    assert!(cwnd < 1000 * MSS);
    // A second loss below w_max: the plateau moves to 0.85 cwnd.
    pair.congestion();
    assert_eq!(pair.cubic.curve.w_max, (u64::from(cwnd) * 17 / 20) as u32);
    for _ in 0..500 {
        pair.round_trip(10_000, 10);
        pair.assert_close();
    }
}

#[test]
fn timeout_starts_plateau_at_avoidance() {
    let mut cubic = Cubic::default();
    // A timeout invalidates the earlier plateau.
    let mut w = Window::new(200 * MSS);
    cubic.on_congestion(&mut w, 200 * MSS, MSS, Instant::ZERO);
    cubic.on_recovery_exit(&mut w);
    let mut w = Window::new(100 * MSS);
    cubic.on_rto(&mut w, 100 * MSS, MSS, Instant::ZERO);
    let mut ack = AckSample {
        now: Instant::from_millis(500),
        acked: 70 * MSS,
        flight: 0,
        srtt_us: 100,
        mss: MSS,
        app_limited: false,
    };
    cubic.on_ack(&mut w, &ack);
    // 69 segments of slow start, and one more for avoidance, which has K = 0 and w_max = cwnd.
    assert_eq!((cubic.curve.k, cubic.curve.w_max, cubic.epoch), (0, 70 * MSS, Epoch::Running));
    // W_cubic(4 s) = 0.4 * 64 + 70 segments; each ACK of a window moves to the target.
    ack.acked = 200 * MSS;
    ack.now = Instant::from_millis(4500);
    cubic.curve.w_est = 0;
    cubic.on_ack(&mut w, &ack);
    let expected = f64::from(MSS) * (70.0 + 25.6);
    assert!((f64::from(w.cwnd) - expected).abs() < expected / 100.0, "{} against {expected}", w.cwnd);
}

#[test]
fn undo_continues_old_curve() {
    let mut pair = Pair::new(1000, MSS);
    pair.congestion();
    for _ in 0..200 {
        pair.round_trip(10_000, 10);
    }
    let (cubic, w) = (pair.cubic.clone(), pair.w);
    pair.cubic.on_congestion(&mut pair.w, w.cwnd, MSS, Instant(pair.ns));
    assert!(pair.w.cwnd < w.cwnd);
    pair.cubic.undo(&mut pair.w);
    assert_eq!((pair.w, pair.cubic.curve, pair.cubic.epoch), (w, cubic.curve, Epoch::Running));
    for _ in 0..200 {
        pair.round_trip(10_000, 10);
        pair.assert_close();
    }
}

#[test]
fn excludes_app_limited_time() {
    for rounds in [100, 1500] {
        // On the curve and, later, on Reno's line.
        let mut pair = Pair::new(1000, MSS);
        pair.congestion();
        (0..rounds).for_each(|_| pair.round_trip(10_000, 10));
        let mut idle =
            AckSample { now: Instant(pair.ns), acked: MSS, flight: 0, srtt_us: 10_000, mss: MSS, app_limited: true };
        let cwnd = pair.w.cwnd;
        for second in 0..30 {
            idle.now = Instant(pair.ns + second * 1_000_000_000);
            pair.cubic.on_ack(&mut pair.w, &idle);
        }
        assert_eq!(pair.w.cwnd, cwnd);
        // The model's clock is stopped during the pause; ours resumes half a minute later.
        let mut twin = Pair { rfc: core::mem::take(&mut pair.rfc), cubic: pair.cubic.clone(), ..pair };
        for _ in 0..100 {
            let acked = twin.w.cwnd / 10;
            for _ in 0..10 {
                twin.ns += 1_000_000;
                let now = Instant(twin.ns + 30_000_000_000);
                twin.cubic.on_ack(&mut twin.w, &AckSample { now, acked, app_limited: false, ..idle });
                let acked = f64::from(acked) / f64::from(MSS);
                twin.segments = twin.rfc.ack(twin.segments, acked, twin.ns as f64 / 1e9, 0.01);
            }
            twin.assert_close();
        }
    }
}

#[test]
fn excludes_idle_time() {
    let mut pair = Pair::new(1000, MSS);
    pair.congestion();
    (0..100).for_each(|_| pair.round_trip(10_000, 10));
    let (start, rto, iw) = (pair.cubic.curve.epoch, Duration::from_secs(1), 10 * MSS);
    pair.cubic.on_idle(&mut pair.w, Duration::from_millis(500), rto, iw);
    assert_eq!(pair.cubic.curve.epoch, start + 512);
    // Longer than a timeout: the window is halved, and growth starts from there.
    let before = pair.w.cwnd;
    pair.cubic.on_idle(&mut pair.w, Duration::from_millis(1500), rto, iw);
    assert_eq!(pair.w.cwnd, before / 2);
    pair.ns += 1_500_000_000;
    let mut now = || {
        pair.ns += 10_000_000;
        Instant(pair.ns)
    };
    while pair.w.in_slow_start() {
        let ack = AckSample { now: now(), acked: MSS, flight: 0, srtt_us: 10_000, mss: MSS, app_limited: false };
        pair.cubic.on_ack(&mut pair.w, &ack);
    }
    let at_threshold = pair.w.cwnd;
    assert!(at_threshold.abs_diff(pair.w.ssthresh) <= MSS && at_threshold < before);
    let ack = AckSample { now: now(), acked: MSS, flight: 0, srtt_us: 10_000, mss: MSS, app_limited: false };
    pair.cubic.on_ack(&mut pair.w, &ack);
    assert!(pair.w.cwnd - at_threshold <= MSS, "jumped to where the old curve was");
    assert!(pair.cubic.curve.w_max >= 1000 * MSS, "the plateau is remembered");
}

/// The stage may have begun after the last transmission, from which the idle time is counted. The window
/// does not grow by the time that is then still to come.
#[test]
fn idle_time_before_epoch_is_no_growth() {
    let mut pair = Pair::new(8, MSS);
    pair.congestion();
    pair.round_trip(200_000, 1);
    let before = pair.w.cwnd;
    // All in flight was sent 200 ms before the stage began.
    pair.cubic.on_idle(&mut pair.w, Duration::from_millis(1700), Duration::from_secs(1), 10 * MSS);
    assert_eq!(pair.w.cwnd, before, "not above the initial window: as before");
    pair.ns += 1_500_000_000;
    pair.round_trip(10_000, 1);
    assert!(pair.w.cwnd - before <= MSS, "{before} became {}", pair.w.cwnd);
}

/// RFC 9438 4.2: at any point of the curve, a window of ACKs adds at most half a window.
#[test]
fn window_of_acks_adds_at_most_half_a_window() {
    let mut pair = Pair::new(100, MSS);
    pair.congestion();
    pair.round_trip(10_000, 1);
    let before = pair.w.cwnd;
    pair.ns += 60_000_000_000;
    pair.round_trip(10_000, 1);
    assert!(pair.w.cwnd.abs_diff(before / 2 * 3) <= MSS, "{before} became {}", pair.w.cwnd);
    pair.assert_close();
}

#[test]
fn small_acks_add_up() {
    // One window of 10,000 segments in ACKs of one: each moves the window by a fraction of a byte.
    let mut pair = Pair::new(10_000, MSS);
    pair.congestion();
    for _ in 0..20 {
        pair.round_trip(10_000, 7000);
        pair.assert_close();
    }
    assert!(pair.w.cwnd > 7_010 * MSS);
}

/// At the second loss the window equals that at the first, except for rounding, with or without
/// fast convergence.
#[test]
fn rounding_decides_at_plateau() {
    let mut pair = Pair::new(1761, 200);
    for rounds in [13, 19, 183, 5] {
        pair.congestion();
        for _ in 0..rounds {
            pair.round_trip(38_995, 8);
            pair.assert_close();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn follows_rfc_on_any_path(
        segments in 4u32..20_000,
        mss in 200u32..9000,
        rtt_us in 100u32..300_000,
        losses in proptest::collection::vec(1u32..200, 1..5),
    ) {
        let mut pair = Pair::new(segments, mss);
        for rounds in losses {
            pair.congestion();
            for _ in 0..rounds {
                pair.round_trip(rtt_us, 8);
                pair.assert_close();
            }
            if pair.w.cwnd > CWND_MAX / 2 {
                break;
            }
        }
    }

    #[test]
    fn cube_roots_are_exact(x in any::<u64>(), shift in 0u32..64) {
        let x = x >> shift;
        let root = u128::from(cube_root(x));
        prop_assert!(root.pow(3) <= x.into() && (root + 1).pow(3) > x.into());
    }

    #[test]
    fn ticks_are_1024ths_of_a_second(ns in any::<u64>()) {
        let expected = (u128::from(ns) * 1024 / 1_000_000_000) as u32;
        prop_assert_eq!(ticks(Instant(ns)), expected);
    }
}
