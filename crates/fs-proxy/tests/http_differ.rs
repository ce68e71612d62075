//! A fixed number of cases of the comparison with hyper; `cargo run --release -p fs-proxy --example http-differ` runs more.

#[path = "differ/mod.rs"]
mod differ;

#[test]
fn what_the_lean_path_takes_hyper_takes_and_sees_the_same() {
    let count = differ::run(1, 40_000);
    assert_eq!(count.cases, 40_000);
    // Most are mutated beyond what is plain; too few would prove nothing.
    assert!(count.requests > 2_000 && count.answers > 2_000, "{count:?}");
}
