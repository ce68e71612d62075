//! Random use of carriers over real TCP sockets, bounded in bytes. The long run is the example of the same name.

mod common;

#[test]
fn random_use_keeps_every_byte_in_order() {
    let mut total = common::Outcome::default();
    for seed in 1..=12 {
        total += common::round(seed, 1 << 20);
    }
    // On a busy machine receivers are rarely awake, so more rounds run.
    for seed in 13..=60 {
        if total.counts.ring_sends > 0 {
            break;
        }
        total += common::round(seed, 1 << 20);
    }
    println!("{total:?}");
    assert!(total.counts.ring_sends > 0 && total.counts.kernel_sends > 0, "one carrier was not used: {total:?}");
}

/// The other process of a round.
#[test]
fn peer() {
    let _was_peer = common::be_peer();
}

#[test]
fn random_use_with_a_peer_that_is_stopped() {
    let mut total = common::Outcome::default();
    for seed in 101..=108 {
        total += common::round_in_processes(seed, 1 << 20, &["--exact", "peer"]);
    }
    // As above.
    for seed in 109..=160 {
        if total.counts.ring_sends > 0 {
            break;
        }
        total += common::round_in_processes(seed, 1 << 20, &["--exact", "peer"]);
    }
    println!("{total:?}");
    assert!(total.stops > 0 && total.counts.ring_sends > 0, "{total:?}");
}
