//! A fixed number of cases of the comparison with hyper; `cargo run --release -p fs-proxy --example
//! http-differ` runs more.

#[path = "differ/mod.rs"]
mod differ;

#[test]
fn lean_path_and_hyper_agree() {
    let count = differ::run(1, 40_000);
    assert_eq!(count.cases, 40_000);
    // Most cases are mutated too much to be plain. Too few accepted ones would prove nothing.
    assert!(count.requests > 2_000 && count.answers > 2_000, "{count:?}");
}
