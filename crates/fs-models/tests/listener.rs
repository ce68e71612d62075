//! Explores a listener's two carriers, with each rule left out in turn.

use fs_models::listener::Rules;
use fs_models::{explore, explore_until_wrong};

fn rules(tasks: &[usize]) -> Rules {
    Rules {
        tasks: tasks.to_vec(),
        comes: [2, 2],
        kernel_first: 2,
        cancels: true,
        closes: true,
        wakes_last: false,
        asks_core_only: false,
        core_first: false,
        drops_at_close: false,
    }
}

/// Returns the number of states: fewer mean that a step of the model is never taken any more.
fn holds(rules: &Rules) -> usize {
    let found = explore(rules);
    assert!(found.wrong.is_empty(), "{:#?}", found.wrong);
    found.states
}

fn finds(name: &str, rules: &Rules) {
    let found = explore_until_wrong(rules);
    assert!(!found.wrong.is_empty(), "{name}: nothing wrong in {} states", found.states);
    let (what, way) = &found.wrong[0];
    println!("{name}: {what} after {} steps, {} states", way.len(), found.states);
}

#[test]
fn no_connection_is_lost_doubled_or_left_waiting() {
    // Two tasks of one listener, a listener on each of two cores, and both.
    assert_eq!(holds(&rules(&[0, 0])), 3_856);
    assert_eq!(holds(&rules(&[0, 1])), 24_188);
    assert_eq!(holds(&Rules { comes: [1, 2], ..rules(&[0, 0, 1]) }), 73_914);
    assert_eq!(holds(&Rules { kernel_first: 3, ..rules(&[0, 1]) }), 56_487);
}

#[test]
fn kernel_comes_in_between() {
    let many = Rules { comes: [5, 1], cancels: false, closes: false, ..rules(&[0]) };
    assert!(explore(&many).wrong.is_empty());
    finds("core first", &Rules { core_first: true, ..many });
}

#[test]
fn every_task_that_waits_has_to_be_woken() {
    let two = Rules { closes: false, ..rules(&[0, 0]) };
    finds("the last one is woken", &Rules { wakes_last: true, ..two });
}

#[test]
fn both_carriers_have_to_be_asked() {
    finds("the core only", &Rules { asks_core_only: true, ..rules(&[0]) });
}

#[test]
fn connections_of_a_closed_listener_go_to_another_one() {
    finds("dropped at close", &Rules { drops_at_close: true, ..rules(&[0, 1]) });
}
