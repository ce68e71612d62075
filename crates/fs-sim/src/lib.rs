//! A seeded world for tests: stacks over bad links in virtual time, and an oracle that checks every byte,
//! every state and every frame.
//!
//! A [`Scenario`] and a seed make a [`World`]; a world runs to its end or to a [`Failure`]. The same seed is
//! the same run, packet for packet, on every machine: `cargo run -p fs-sim -- --scenario S --seed N` replays
//! a failure and writes all its packets to `target/sim/S-N.pcap`.
//!
//! Parts: [`rng`] (randomness), [`pattern`] (bytes that can be checked anywhere), [`link`] (what happens to
//! packets), [`pool_unsafe`] (frames whose access rules are enforced), [`plan`] (what connections do),
//! [`conn`] (applications that do it), [`host`], [`world`] (the clock and the oracle), [`wire`] (what must
//! hold for every packet), [`police`] (what TCP promises on the wire), [`scenario`] (named worlds), [`pcap`], [`digest`], [`rss`].

pub mod conn;
pub mod digest;
pub mod host;
pub mod link;
pub mod pattern;
pub mod pcap;
pub mod plan;
pub mod police;
pub mod pool_unsafe;
pub mod rng;
pub mod rss;
pub mod scenario;
pub mod wire;
pub mod world;

pub use link::{Link, LinkConfig};
pub use scenario::{Scenario, run_or_explain};
pub use world::{Failure, Report, World, WorldConfig};
