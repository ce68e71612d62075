//! Runs packet scripts in packetdrill's language, on the engine in virtual time or on Linux over TUN.
//!
//! ```text
//! cargo run -p fs-pkt -- [--target engine|linux] [--tolerance-usecs N] [-D SYM=V] [--verbose] FILE|DIR…
//! ```
//!
//! The language and its meaning are those of google/packetdrill: a script is a list of timed events, each of them a
//! packet to inject (`<`) or to expect (`>`), a system call with its result, a shell command in back quotes, or Python
//! between `%{` and `}%` that sees TCP_INFO. A script that passes with packetdrill on Linux needs no change to run
//! here; what the engine does not do, or does differently, is what a failure tells.
//!
//! The way of a script: [`script`] (words → grammar → what it says) → [`run`] (when an event is due, what a packet
//! must look like, how a call's result compares) → a [`run::target::Target`]: [`engine`] or
//! [`linux`].
//!
//! ## Differences from Linux that are wanted
//! They stand in the script, as comments that packetdrill does not see:
//! - `// fastsock: differs from Linux: REASON`, once, in a file that has lines for one side only;
//! - `// @engine LINE`: the line is for our engine only;
//! - `LINE // @linux`: the line is for Linux only;
//! - `// fastsock: engine only: REASON` and `// fastsock: linux only: REASON`: the file is for one side.
//!
//! ## What is added to the language
//! `sock(4)` after a packet's direction names the descriptor whose connection it belongs to; a listener's begins a new
//! one. Without it, packets belong to the latest connection, as with packetdrill.
//!
//! ## Commands on the engine
//! `sysctl`, `set_sysctls.py`, `echo … > /proc/sys/…`, `ip route|link … mtu`, and shell files with such lines are mapped
//! to the engine's settings; a sysctl or a command that is not known is an error that names it.

pub mod config;
pub mod engine;
pub mod linux;
pub mod packet;
pub mod python;
pub mod run;
pub mod script;
mod suite;
mod symbols;

pub use suite::{Report, Request, Verdict, run_file, scripts_in};
