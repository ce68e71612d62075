use super::algorithm::CWND_MAX;
use super::*;
use alloc::vec::Vec;
use proptest::prelude::*;

const MSS: u32 = 1448;

fn ack(acked: u32) -> AckSample {
    AckSample { now: Instant::from_millis(1000), acked, flight: 0, srtt_us: 10_000, mss: MSS, app_limited: false }
}

fn both() -> [Control; 2] {
    [Control::loss_based(true), Control::loss_based(false)]
}

#[test]
fn sizes() {
    assert_eq!(size_of::<Window>(), 8);
    assert!(size_of::<Control>() <= 48);
    for algorithm in [CongestionControl::NewReno, CongestionControl::Cubic] {
        assert_eq!(Control::loss_based(algorithm == CongestionControl::NewReno).algorithm(), algorithm);
    }
}

#[test]
fn initial_windows_of_rfc_6928() {
    assert_eq!(initial_window(1460, 10), 14_600);
    assert_eq!(initial_window(536, 10), 5_360);
    assert_eq!(initial_window(1500, 10), 14_600, "at most 14600 bytes");
    assert_eq!(initial_window(8948, 10), 17_896, "but two segments of any size");
    assert_eq!(initial_window(1460, 3), 4_380);
    assert_eq!(initial_window(1460, 0), 1460, "never nothing");
    assert_eq!(initial_window(65_495, u32::MAX), CWND_MAX);
}

#[test]
fn slow_start_doubles_and_stops_at_the_threshold() {
    let mut w = Window { cwnd: 10 * MSS, ssthresh: 40 * MSS };
    for _ in 0..10 {
        assert_eq!(slow_start(&mut w, MSS, MSS), 0);
    }
    assert_eq!(w.cwnd, 20 * MSS);
    // One ACK for many segments counts like many ACKs, and a thousand ACKs of a byte like one for
    // all.
    assert_eq!(slow_start(&mut w, 15 * MSS, MSS), 0);
    (0..MSS).for_each(|_| assert_eq!(slow_start(&mut w, 1, MSS), 0));
    assert_eq!(w.cwnd, 36 * MSS);
    assert_eq!(slow_start(&mut w, 10 * MSS, MSS), 6 * MSS, "the rest is for congestion avoidance");
    assert!(!w.in_slow_start());
    let mut w = Window::new(CWND_MAX - 5);
    assert_eq!(slow_start(&mut w, 100, MSS), 95);
    assert_eq!(w.cwnd, CWND_MAX);
}

#[test]
fn idle_connection_restarts() {
    let rto = Duration::from_millis(200);
    let iw = 10 * MSS;
    let after = |w: Window, ms| {
        let mut w = w;
        restart_after_idle(&mut w, Duration::from_millis(ms), rto, iw);
        w
    };
    let w = Window { cwnd: 100 * MSS, ssthresh: 50 * MSS };
    assert_eq!(after(w, 200), w, "not idle for longer than a time-out");
    assert_eq!(after(w, 201), Window { cwnd: 50 * MSS, ssthresh: 75 * MSS });
    assert_eq!(after(w, 450).cwnd, 25 * MSS);
    assert_eq!(after(w, 800).cwnd, iw);
    assert_eq!(after(w, u64::MAX / 2_000_000).cwnd, iw);
    let small = Window { cwnd: 3 * MSS, ssthresh: u32::MAX };
    assert_eq!(after(small, 10_000), small, "never up, and a threshold never down");
    let mut zero = w;
    restart_after_idle(&mut zero, Duration::from_secs(1), Duration::ZERO, iw);
    assert_eq!(zero.cwnd, iw);
}

#[test]
fn congestion_reduces_by_factor_and_recovery_keeps_window() {
    for (mut control, share) in both().into_iter().zip([0.5, 0.7]) {
        let mut w = Window::new(100 * MSS);
        control.on_congestion(&mut w, 100 * MSS, MSS, Instant::ZERO);
        let expected = (f64::from(100 * MSS) * share) as u32;
        assert_eq!(w, Window { cwnd: expected, ssthresh: expected });
        control.on_ack(&mut w, &ack(50 * MSS));
        assert_eq!(w.cwnd, expected);
        control.on_recovery_exit(&mut w);
        assert_eq!(w.cwnd, expected);
        control.on_ack(&mut w, &ack(expected));
        assert!(w.cwnd > expected);
    }
}

#[test]
fn recovery_exit_discards_window_inflation() {
    for mut control in both() {
        let mut w = Window::new(100 * MSS);
        control.on_congestion(&mut w, 100 * MSS, MSS, Instant::ZERO);
        let expected = w.ssthresh;
        w.cwnd += 30 * MSS; // inflated by duplicate ACKs, RFC 6582 3.2
        control.on_recovery_exit(&mut w);
        assert_eq!(w.cwnd, expected);
    }
}

#[test]
fn reduction_excludes_limited_transmit() {
    for (mut control, halves) in both().into_iter().zip([10, 14]) {
        let mut w = Window::new(100 * MSS);
        control.on_congestion(&mut w, 20 * MSS, MSS, Instant::ZERO);
        assert_eq!(w.ssthresh, halves * MSS);
        let mut w = Window::new(20 * MSS);
        control.on_congestion(&mut w, 22 * MSS, MSS, Instant::ZERO);
        assert_eq!(w.ssthresh, halves * MSS);
        let mut w = Window::new(2 * MSS);
        control.on_congestion(&mut w, MSS, MSS, Instant::ZERO);
        assert_eq!(w, Window { cwnd: 2 * MSS, ssthresh: 2 * MSS }, "two segments at least");
    }
}

#[test]
fn repeated_timeout_keeps_threshold() {
    for (mut control, segments) in both().into_iter().zip([50, 70]) {
        let mut w = Window::new(100 * MSS);
        control.on_rto(&mut w, 100 * MSS, MSS, Instant::ZERO);
        let expected = Window { cwnd: MSS, ssthresh: segments * MSS };
        assert_eq!(w, expected);
        control.on_rto(&mut w, 100 * MSS, MSS, Instant::ZERO);
        control.on_rto(&mut w, MSS, MSS, Instant::ZERO);
        assert_eq!(w, expected, "the same data");
        control.on_ack(&mut w, &ack(MSS));
        assert_eq!(w.cwnd, 2 * MSS, "slow start");
        control.on_rto(&mut w, 40 * MSS, MSS, Instant::ZERO);
        assert_eq!(w, Window { cwnd: MSS, ssthresh: 2 * MSS }, "new data");
        control.on_ack(&mut w, &ack(MSS));
        control.on_recovery_exit(&mut w);
        assert_eq!(w.cwnd, 2 * MSS, "the end of the repair does not jump to the threshold");
    }
}

#[test]
fn undoes_spurious_loss_once() {
    for mut control in both() {
        let before = Window { cwnd: 100 * MSS, ssthresh: 90 * MSS };
        let mut w = before;
        control.undo(&mut w);
        assert_eq!(w, before, "there was nothing");
        control.on_congestion(&mut w, 100 * MSS, MSS, Instant::ZERO);
        control.undo(&mut w);
        assert_eq!(w, before);
        control.on_rto(&mut w, 100 * MSS, MSS, Instant::ZERO);
        control.on_rto(&mut w, 100 * MSS, MSS, Instant::ZERO);
        control.undo(&mut w);
        assert_eq!(w, before);
        w.cwnd = 30 * MSS;
        control.undo(&mut w);
        assert_eq!(w.cwnd, 30 * MSS, "only once");
        control.on_ack(&mut w, &ack(10 * MSS));
        assert_eq!(w.cwnd, 40 * MSS, "and the connection is open again");
    }
}

#[test]
fn unused_window_does_not_grow() {
    for mut control in both() {
        for ssthresh in [u32::MAX, 10 * MSS] {
            let mut w = Window { cwnd: 20 * MSS, ssthresh };
            control.on_ack(&mut w, &AckSample { app_limited: true, ..ack(20 * MSS) });
            assert_eq!(w.cwnd, 20 * MSS);
        }
    }
}

#[test]
fn reno_grows_by_one_segment_per_window() {
    let mut reno = NewReno::default();
    let mut w = Window { cwnd: 20 * MSS, ssthresh: 20 * MSS };
    for segments in 20..40 {
        for _ in 0..segments {
            assert_eq!(w.cwnd, segments * MSS);
            reno.on_ack(&mut w, &ack(MSS));
        }
        assert_eq!(w.cwnd, (segments + 1) * MSS);
    }
    // One ACK for three windows (of 40, 41, 42 segments), and the remainder of slow start.
    reno.on_ack(&mut w, &ack(123 * MSS));
    assert_eq!(w.cwnd, 43 * MSS);
    let mut w = Window { cwnd: 19 * MSS, ssthresh: 20 * MSS };
    NewReno::default().on_ack(&mut w, &ack(21 * MSS));
    assert_eq!(w.cwnd, 21 * MSS);
}

#[derive(Clone, Debug)]
enum Call {
    Ack { acked: u32, srtt_us: u32, app_limited: bool },
    Congestion(u32),
    Rto(u32),
    Exit,
    Undo,
    Idle(u64),
    Pass(u64),
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        6 => (any::<u32>(), 0u32..32, any::<u32>(), any::<bool>()).prop_map(|(acked, shift, srtt_us, app_limited)| {
            Call::Ack { acked: acked >> shift, srtt_us, app_limited }
        }),
        1 => any::<u32>().prop_map(Call::Congestion),
        1 => any::<u32>().prop_map(Call::Rto),
        1 => Just(Call::Exit),
        1 => Just(Call::Undo),
        1 => (0u64..100_000).prop_map(Call::Idle),
        2 => (0u32..63, any::<u64>()).prop_map(|(shift, ns)| Call::Pass(ns >> shift >> 1)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    /// For any peer and network: nothing overflows, and windows stay in bounds.
    #[test]
    fn windows_stay_in_bounds(
        cubic in any::<bool>(),
        mss in 1u32..65_536,
        cwnd in 1u32..1 << 31,
        calls in proptest::collection::vec(call(), 1..100),
    ) {
        let mut control = both()[usize::from(cubic)].clone();
        let mut w = Window::new(cwnd.clamp(mss, CWND_MAX));
        let mut now = Instant::ZERO;
        let mut trace: Vec<Window> = Vec::new();
        for call in calls {
            let before = w;
            match call {
                Call::Ack { acked, srtt_us, app_limited } => {
                    control.on_ack(&mut w, &AckSample { now, acked, flight: 0, srtt_us, mss, app_limited });
                    prop_assert!(w.cwnd >= before.cwnd, "an ACK of new data never shrinks the window");
                    prop_assert!(w.cwnd - before.cwnd <= acked.max(before.cwnd).saturating_add(mss) || !before.in_slow_start());
                    prop_assert_eq!(w.ssthresh, before.ssthresh);
                }
                Call::Congestion(flight) => {
                    control.on_congestion(&mut w, flight, mss, now);
                    prop_assert!(w.cwnd <= before.cwnd.max(2 * mss) && w.ssthresh >= 2 * mss);
                }
                Call::Rto(flight) => {
                    control.on_rto(&mut w, flight, mss, now);
                    prop_assert_eq!(w.cwnd, mss);
                }
                Call::Exit => control.on_recovery_exit(&mut w),
                Call::Undo => {
                    control.undo(&mut w);
                    prop_assert!(w.cwnd >= before.cwnd && w.ssthresh >= before.ssthresh);
                }
                Call::Idle(ms) => {
                    control.on_idle(&mut w, Duration::from_millis(ms), Duration::from_millis(200), 10 * mss);
                    prop_assert!(w.cwnd <= before.cwnd);
                }
                Call::Pass(ns) => now = Instant(now.0.saturating_add(ns)),
            }
            trace.push(w);
            prop_assert!((mss..=CWND_MAX).contains(&w.cwnd), "{:?}", trace);
        }
    }
}
