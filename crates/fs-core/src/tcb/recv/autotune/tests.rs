use super::*;
use crate::flow::CoreId;

#[test]
fn one_sample_per_round_trip_of_at_least_a_tick() {
    let clock = TsClock::new(CoreId(0), 4);
    let mut tune = Autotune { rtt: WANTS_SAMPLE, ..Autotune::default() };
    tune.sample(&clock, || 1000, 1000);
    assert_eq!(tune.figures().1, 4000, "a tick of four milliseconds");
    tune.sample(&clock, || 2000, 1000);
    assert_eq!(tune.figures().1, 4000, "not asked for");
    tune.rtt |= WANTS_SAMPLE;
    tune.sample(&clock, || 1004, 1000 - 200);
    assert_eq!(tune.figures().1, 4000 - 500 + 204_000 / 8);
    tune.rtt |= WANTS_SAMPLE;
    tune.sample(&clock, || 0, 77);
    assert_eq!(tune.figures().1, 29_000, "an echo from the future says nothing");
}
