use super::*;
use proptest::prelude::*;

const MIN: Duration = Duration::from_millis(200);
const MAX: Duration = Duration::from_secs(120);
const INITIAL: Duration = Duration::from_secs(1);

/// RFC 6298 2.2 and 2.3 as specified.
struct Rfc {
    srtt: f64,
    rttvar: f64,
}

impl Rfc {
    fn first(r: f64) -> Self {
        Self { srtt: r, rttvar: r / 2.0 }
    }

    fn sample(&mut self, r: f64) {
        self.rttvar = 0.75 * self.rttvar + 0.25 * (self.srtt - r).abs();
        self.srtt = 0.875 * self.srtt + 0.125 * r;
    }

    fn rto_us(&self) -> f64 {
        self.srtt + (4.0 * self.rttvar).max(1.0)
    }
}

fn micros(us: u64) -> Duration {
    Duration::from_micros(us)
}

#[test]
fn is_eight_bytes() {
    assert_eq!(size_of::<RttEstimator>(), 8);
}

#[test]
fn before_and_after_the_first_sample() {
    let mut rtt = RttEstimator::new();
    assert!(!rtt.has_sample());
    assert_eq!((rtt.srtt_us(), rtt.rttvar_us()), (0, 0));
    assert_eq!(rtt.rto(MIN, MAX, INITIAL), INITIAL);
    assert_eq!(rtt.rto(MIN, micros(500), INITIAL), micros(500));
    rtt.sample(300_000);
    assert!(rtt.has_sample());
    // SRTT 300 ms, RTTVAR 150 ms, RTO 300 + 4 * 150.
    assert_eq!((rtt.srtt_us(), rtt.rttvar_us()), (300_000, 150_000));
    assert_eq!(rtt.rto(MIN, MAX, INITIAL), Duration::from_millis(900));
    // RTTVAR 3/4 * 150 + 1/4 * 80 = 132.5 ms, SRTT 7/8 * 300 + 1/8 * 380 = 310 ms, RTO 840 ms.
    rtt.sample(380_000);
    assert_eq!((rtt.srtt_us(), rtt.rttvar_us()), (310_000, 132_500));
    assert_eq!(rtt.rto(MIN, MAX, INITIAL), Duration::from_millis(840));
}

#[test]
fn minimum_is_added_to_round_trip() {
    let mut rtt = RttEstimator::new();
    (0..1000).for_each(|_| rtt.sample(190_000));
    assert_eq!(rtt.rto(MIN, MAX, INITIAL), Duration::from_millis(390));
    assert_eq!(rtt.rto(Duration::ZERO, MAX, INITIAL), micros(190_000 + u64::from(rtt.rttvar_4)));
}

#[test]
fn follows_short_round_trips() {
    let mut rtt = RttEstimator::new();
    rtt.sample(1000);
    (0..200).for_each(|_| rtt.sample(3));
    assert_eq!(rtt.srtt_us(), 3);
    assert!(rtt.rttvar_us() <= 1);
    (0..200).for_each(|_| rtt.sample(0));
    assert_eq!(rtt.srtt_us(), 1, "zero would mean that there is no sample");
}

#[test]
fn extremes_stay_in_bounds() {
    let mut rtt = RttEstimator::new();
    for sample in [u32::MAX, 0, u32::MAX, u32::MAX, 1, u32::MAX] {
        rtt.sample(sample);
        assert!(rtt.rto(MIN, MAX, INITIAL) <= MAX);
        assert!(rtt.srtt_us() <= SAMPLE_MAX_US);
    }
}

#[test]
fn backoff_doubles_up_to_maximum() {
    let rto = Duration::from_millis(300);
    let seen: [u128; 5] = core::array::from_fn(|n| backoff(rto, n as u8, MAX).as_millis());
    assert_eq!(seen, [300, 600, 1200, 2400, 4800]);
    assert_eq!(backoff(rto, 9, MAX), MAX);
    assert_eq!(backoff(rto, 255, MAX), MAX);
    assert_eq!(backoff(Duration::MAX, 255, Duration::MAX), Duration::MAX);
}

proptest! {
    #[test]
    fn follows_the_rfc(samples in proptest::collection::vec(1u32..10_000_000, 1..300)) {
        let mut rtt = RttEstimator::new();
        let mut rfc = Rfc::first(samples[0].into());
        rtt.sample(samples[0]);
        for &sample in &samples[1..] {
            rtt.sample(sample);
            rfc.sample(sample.into());
            prop_assert!((f64::from(rtt.srtt_us()) - rfc.srtt).abs() <= 2.0, "srtt {} against {}", rtt.srtt_us(), rfc.srtt);
            prop_assert!((f64::from(rtt.rttvar_us()) - rfc.rttvar).abs() <= 4.0, "{} against {}", rtt.rttvar_us(), rfc.rttvar);
            let rto = rtt.rto(Duration::ZERO, Duration::MAX, INITIAL).as_micros() as f64;
            prop_assert!((rto - rfc.rto_us()).abs() <= 16.0, "rto {rto} against {}", rfc.rto_us());
            // Never earlier than the RFC's with the same minimum.
            let ours = rtt.rto(MIN, MAX, INITIAL).as_micros() as f64;
            prop_assert!(ours + 16.0 >= rfc.rto_us().clamp(200_000.0, 120e6));
        }
    }
}

#[test]
fn lost_syn_raises_first_timeout_to_three_seconds() {
    let mut rtt = RttEstimator::new();
    rtt.distrust();
    let (min, max, initial) = (Duration::from_millis(200), Duration::from_secs(120), Duration::from_secs(1));
    assert_eq!((rtt.rto(min, max, initial), rtt.rttvar_us()), (Duration::from_secs(3), 0));
    rtt.sample(100_000);
    assert_eq!(rtt.rto(min, max, initial), Duration::from_millis(300));
}
