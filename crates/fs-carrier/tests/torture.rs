//! Random use of carriers over real TCP sockets, bounded in bytes. The long run is the example of the same name.

mod common;

#[test]
fn random_use_keeps_every_byte_in_order() {
    let mut total = common::Outcome::default();
    for seed in 1..=12 {
        total += common::round(seed, 1 << 20);
    }
    println!("{total:?}");
    assert!(total.counts.ring_sends > 0 && total.counts.kernel_sends > 0, "one carrier was not used: {total:?}");
}
