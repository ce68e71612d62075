//! Explores an epoll set with two promoted connections, with each rule left out in turn.

use fs_models::carrier_set::Rules;
use fs_models::{explore, explore_until_wrong};

fn level() -> Rules {
    Rules { bytes: [2, 1], ..Rules::default() }
}

fn edge() -> Rules {
    Rules { bytes: [3, 1], edge: true, ..Rules::default() }
}

fn adds() -> Rules {
    Rules { bytes: [1, 2], adds: true, ..Rules::default() }
}

fn changes() -> Rules {
    Rules { bytes: [2, 1], changes: true, ..Rules::default() }
}

fn two_senders() -> Rules {
    Rules { bytes: [2, 1], edge: true, second: true, ..Rules::default() }
}

fn finds(name: &str, rules: Rules) {
    let found = explore_until_wrong(&rules);
    assert!(!found.wrong.is_empty(), "{name}: nothing wrong in {} states", found.states);
    let (what, way) = &found.wrong[0];
    println!("{name}: {what} after {} steps, {} states", way.len(), found.states);
}

/// Returns the number of states: fewer mean that a step of the model is never taken any more.
fn holds(rules: Rules) -> usize {
    let found = explore(&rules);
    assert!(found.wrong.is_empty(), "{:#?}", found.wrong);
    found.states
}

#[test]
fn holds_level_triggered() {
    assert_eq!(holds(level()), 51_588);
}

#[test]
fn holds_edge_triggered() {
    assert_eq!(holds(edge()), 324_932);
}

#[test]
fn holds_for_two_senders() {
    assert_eq!(holds(two_senders()), 599_838);
}

#[test]
fn holds_with_requests_taken_back() {
    assert_eq!(holds(Rules { may_hold: true, ..level() }), 57_797);
}

#[test]
fn holds_for_added_connections() {
    assert_eq!(holds(adds()), 189_304);
    assert_eq!(holds(Rules { edge: true, ..adds() }), 219_389);
}

#[test]
fn holds_for_changed_registrations() {
    assert_eq!(holds(changes()), 298_976);
}

#[test]
fn kernel_is_told_of_a_change_before_it_matters() {
    finds("put off over a sleeper", Rules { defer_over_sleeper: true, ..changes() });
    finds("asleep, and the kernel not told", Rules { sleep_untold: true, ..changes() });
    finds("asked, and the kernel not told", Rules { ask_untold: true, ..changes() });
}

#[test]
#[ignore = "millions of states: minutes"]
fn holds_in_a_larger_space() {
    holds(Rules { bytes: [3, 2], ..level() });
    holds(Rules { bytes: [3, 2], ..edge() });
    // With three bytes of the second socket there are more than ten million states.
    holds(Rules { bytes: [2, 2], ..adds() });
    holds(Rules { bytes: [2, 2], edge: true, ..adds() });
}

#[test]
fn ring_is_not_taken_over_a_sleeper() {
    finds("M cleared over a sleeper in the set", Rules { clear_over_sleeper: true, ..level() });
}

#[test]
fn sleepers_are_read_with_the_gate() {
    finds("sleepers read without the gate", Rules { clear_without_gate: true, ..level() });
}

#[test]
fn kernel_becomes_the_carrier_before_a_sleep() {
    finds("no C4", Rules { no_c4: true, ..level() });
    finds("C4 for one connection", Rules { c4_for_first: true, ..level() });
    finds("C4 before the sleeper is counted", Rules { c4_before_count: true, ..level() });
}

#[test]
fn added_connection_becomes_the_kernels() {
    finds("added without C4", Rules { add_without_c4: true, ..adds() });
}

#[test]
fn sleeper_is_interrupted_for_added_bytes() {
    finds("added without an interruption", Rules { add_without_interrupt: true, bytes: [1, 1], ..adds() });
}

#[test]
fn kernel_carries_what_follows_reported_bytes() {
    finds("asleep over reported bytes of a ring that carries", Rules { ring_over_reported: true, ..edge() });
    finds("no B before that sleep", Rules { no_boundary: true, ..edge() });
}

#[test]
fn short_count_means_that_nothing_is_left() {
    finds("one carrier's bytes in a receive", Rules { short_count: true, ..edge() });
}

#[test]
fn bytes_that_are_not_counted_are_asked_for() {
    finds("counted bytes only", Rules { rest_unasked: true, ..two_senders() });
}

#[test]
fn ring_is_not_requested_over_kernel_bytes() {
    finds("M requested with kernel bytes unread", Rules { request_over_bytes: true, ..edge() });
}

#[test]
fn reported_socket_is_asked() {
    finds("no C9", Rules { no_c9: true, ..edge() });
}

#[test]
fn reports_are_true() {
    finds("ring bytes reported behind late kernel bytes", Rules { report_behind: true, bytes: [1, 3], ..level() });
}
