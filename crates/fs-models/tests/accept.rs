//! Every order of a connection's life, with a death at any step.

use fs_models::accept::Rules;
use fs_models::{Found, explore};

fn without(change: impl FnOnce(&mut Rules)) -> Found {
    let mut rules = Rules::ALL;
    change(&mut rules);
    explore(&rules)
}

fn finds(found: &Found, what: &str) {
    assert!(found.wrong.iter().any(|(wrong, _)| *wrong == what), "not found: {what}; {found:#?}");
}

#[test]
fn with_all_rules_nothing_goes_wrong() {
    let found = explore(&Rules::ALL);
    println!("{} states", found.states);
    assert!(found.states > 1000);
    assert!(found.wrong.is_empty(), "{found:#?}");
}

#[test]
fn an_arena_that_is_forgotten_under_its_listener_loses_a_connection() {
    finds(&without(|rules| rules.belongs_to_listener = false), "a connection waits, and an acceptor sleeps");
}

#[test]
fn without_repair_slots_are_lost_and_openers_wait() {
    let found = without(|rules| rules.repair = false);
    finds(&found, "a slot that nobody has is never free again");
    finds(&found, "the opener waits for an end that does not come");
}

#[test]
fn where_all_is_repaired_the_mark_may_come_after_the_pop() {
    let found = without(|rules| rules.mark_first = false);
    assert!(found.wrong.is_empty(), "{found:#?}");
}

#[test]
fn without_rings_at_a_death_an_acceptor_sleeps_on() {
    finds(&without(|rules| rules.death_rings = false), "a connection waits, and an acceptor sleeps");
}

#[test]
fn without_a_look_after_the_push_an_opener_waits_for_nobody() {
    let found = without(|rules| rules.look_after_push = false);
    finds(&found, "the opener waits for an end that does not come");
}
