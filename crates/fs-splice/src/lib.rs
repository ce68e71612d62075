//! Spliced flows: two TCP connections of the kernel are joined by a BPF program (docs/PROXY.md,
//! decision 0040).
//!
//! A relay reads from one connection and writes to the other. The position of a byte in one is that
//! in the other plus a constant. So a program at the devices can rewrite the packets of both, and
//! the peers then talk to each other.
//!
//! | module | |
//! |---|---|
//! | `program` | the BPF program (`bpf/splice.bpf.c`), its map and its attachments |
//! | `entry` | the map's keys and values |
//! | `watch` | a pair of connections that may be spliced, and the reasons why not |
//! | `flow` | a spliced pair, until its end |
//! | `conntrack` | the kernel's entries of spliced connections |
//! | `holder` | sockets without packets: they hold a port, or send one reset |

mod address;
mod conntrack;
mod entry;
mod error;
mod flow;
mod holder;
mod program;
mod sys;
#[cfg(test)]
mod tests;
mod watch;

pub use error::{Error, Refusal};
pub use flow::{Flow, Side, State};
pub use program::{Splicer, Table};
pub use watch::{Attempt, Watched};
