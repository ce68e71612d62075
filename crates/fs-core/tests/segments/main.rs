//! Segments of a handmade peer against the engine: RFC 9293 3.10.7 and its extensions, number by
//! number.

mod acks;
#[path = "../common/mod.rs"]
mod common;
mod datagrams;
mod fast_open;
mod fast_paths;
mod forward;
mod isn;
mod lab;
mod loss;
mod near;
mod open;
mod path;
mod states;
mod timers;
mod urgent;
