//! The `fastsock` program: up, run, ss, stat, doctor.

fn main() {}
