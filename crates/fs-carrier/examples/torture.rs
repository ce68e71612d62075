//! Random use of carriers over real TCP sockets for a time: the long run of `tests/torture.rs`.
//!
//! `cargo run --release -p fs-carrier --example torture -- --seconds 60 [--seed 1]`

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::{Duration, Instant};

fn main() {
    if common::be_peer() {
        return;
    }
    let arguments: Vec<String> = std::env::args().collect();
    let option = |name: &str| -> Option<u64> {
        arguments.iter().position(|a| a == name).and_then(|i| arguments.get(i + 1)?.parse().ok())
    };
    let seconds = option("--seconds").unwrap_or(60);
    let first = option("--seed").unwrap_or(1);
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut seed, mut total) = (first, common::Outcome::default());
    while Instant::now() < end {
        // Every second round uses two processes, one of which is stopped at random.
        total +=
            if seed % 2 == 0 { common::round(seed, 4 << 20) } else { common::round_in_processes(seed, 4 << 20, &[]) };
        seed += 1;
    }
    println!("{} rounds from seed {first}, wrong 0, hung 0: {total:?}", seed - first);
}
