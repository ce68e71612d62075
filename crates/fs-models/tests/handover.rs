//! Every order in which a descriptor passes to other processes, with a death at any step.

use fs_models::handover::Rules;
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
    assert!(found.states > 500);
    assert!(found.wrong.is_empty(), "{found:#?}");
}

#[test]
fn a_child_that_asks_for_itself_finds_what_its_parent_has_closed() {
    finds(&without(|rules| rules.before_it_runs = false), "closed under a process that has it");
}

#[test]
fn a_message_without_a_reference_is_closed_on_its_way() {
    finds(&without(|rules| rules.share_refers = false), "closed on its way");
}

#[test]
fn a_message_that_is_thrown_away_has_to_be_watched() {
    finds(&without(|rules| rules.watch = false), "the peer waits for an end that does not come");
}

#[test]
fn references_of_a_process_that_dies_in_a_change_are_counted() {
    finds(&without(|rules| rules.recount = false), "the peer waits for an end that does not come");
}

#[test]
fn a_count_in_the_middle_of_a_change_takes_a_living_process_s_reference() {
    finds(&without(|rules| rules.wait_for_changes = false), "closed under a process that has it");
}
