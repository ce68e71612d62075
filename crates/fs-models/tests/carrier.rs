//! Explores a direction's two carriers, with each rule left out in turn.

use fs_models::carrier::Rules;
use fs_models::{Found, explore, explore_until_wrong};

const RULES: Rules = Rules {
    bytes: 3,
    producers: 1,
    deaths: false,
    no_boundary: false,
    no_second_reading: false,
    clear_in_flight: false,
    unbounded_read: false,
    clear_over_sleeper: false,
    clear_with_bytes: false,
    sleep_without_lock: false,
    keep_request: false,
    may_hold: false,
    no_flights: false,
};

fn finds(name: &str, rules: Rules) {
    let found = explore_until_wrong(&rules);
    assert!(!found.wrong.is_empty(), "{name}: nothing wrong in {} states", found.states);
    let (what, way) = &found.wrong[0];
    println!("{name}: {what} after {} steps, {} states", way.len(), found.states);
}

/// Returns the number of states: fewer mean that a step of the model is never taken any more.
fn holds(found: &Found) -> usize {
    assert!(found.wrong.is_empty(), "{:#?}", found.wrong);
    found.states
}

#[test]
fn holds_for_two_producers() {
    assert_eq!(holds(&explore(&Rules { bytes: 1, producers: 2, ..RULES })), 1_516_592);
}

#[test]
fn holds_with_deaths_and_jumps() {
    assert_eq!(holds(&explore(&Rules { bytes: 2, deaths: true, ..RULES })), 582_534);
}

#[test]
fn holds_with_requests_taken_back() {
    assert_eq!(holds(&explore(&Rules { bytes: 2, may_hold: true, ..RULES })), 152_018);
}

#[test]
#[ignore = "millions of states: minutes"]
fn holds_in_a_larger_space() {
    holds(&explore(&RULES));
    holds(&explore(&Rules { bytes: 4, ..RULES }));
    holds(&explore(&Rules { bytes: 3, deaths: true, ..RULES }));
    // Two bytes of two producers are more than ten million states.
    holds(&explore(&Rules { bytes: 1, producers: 2, deaths: true, ..RULES }));
}

#[test]
fn boundary_is_needed() {
    finds("no B", Rules { no_boundary: true, ..RULES });
}

#[test]
fn second_reading_is_needed() {
    finds("W not read again", Rules { no_second_reading: true, ..RULES });
}

#[test]
fn ring_is_not_taken_with_sends_in_flight() {
    finds("M cleared with I > 0", Rules { clear_in_flight: true, ..RULES });
}

#[test]
fn kernel_read_is_bounded_while_the_ring_carries() {
    finds("unbounded read", Rules { unbounded_read: true, ..RULES });
}

#[test]
fn ring_is_not_taken_over_a_sleeper() {
    finds("M cleared over a sleeper", Rules { clear_over_sleeper: true, ..RULES });
}

#[test]
fn ring_is_not_taken_with_bytes_in_it() {
    finds("M cleared with ring bytes", Rules { clear_with_bytes: true, ..RULES });
}

#[test]
fn poller_sleeps_under_the_receive_lock() {
    finds("poller without the lock", Rules { sleep_without_lock: true, ..RULES });
}

#[test]
fn sleeper_takes_its_request_back() {
    finds("request kept", Rules { keep_request: true, ..RULES });
}

#[test]
fn sends_in_flight_are_counted() {
    finds("I not counted", Rules { bytes: 2, producers: 2, no_flights: true, ..RULES });
}
