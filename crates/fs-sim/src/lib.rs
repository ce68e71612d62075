//! A seeded world for tests: stacks over bad links in virtual time, and an oracle that checks every
//! byte, every state and every frame.
//!
//! A [`Scenario`] and a seed make a [`World`], which runs to its end or to a [`Failure`]. The same
//! seed yields the same run, packet for packet, on every machine: `cargo run -p fs-sim --
//! --scenario S --seed N` replays a failure and writes all its packets to `target/sim/S-N.pcap`.
//!
//! Parts: [`rng`] (randomness), [`pattern`] (bytes that can be checked at any offset), [`link`]
//! (loss, delay and queues), [`topology`] (links and routers), [`change`] (changes during a run),
//! [`pool_unsafe`] (frames with enforced access rules), [`plan`] (scripts of connections), [`conn`]
//! (applications that run them), [`reading`] (slow readers), [`host`], [`world`] (the clock and the
//! oracle), [`wire`] (rules for every packet), [`police`] (TCP's rules on the wire), [`scenario`]
//! (named worlds), [`measure`] (goodput and fairness of long flows), [`pcap`], [`digest`], [`rss`].

pub mod change;
pub mod conn;
pub mod digest;
pub mod host;
pub mod icmp;
pub mod link;
pub mod measure;
pub mod pattern;
pub mod pcap;
pub mod plan;
pub mod police;
pub mod pool_unsafe;
pub mod reading;
pub mod rng;
pub mod rss;
pub mod scenario;
pub mod topology;
pub mod wire;
pub mod world;

pub use change::{Change, HostChange, LinkAt, LinkChange};
pub use link::{Aqm, Burst, Link, LinkConfig};
pub use scenario::{Scenario, run_or_explain};
pub use topology::{Pipe, Topology};
pub use world::{Failure, Report, World, WorldConfig};
