//! Runs packet scripts in packetdrill's language, on the engine in virtual time or on Linux over
//! TUN.
//!
//! ```text
//! cargo run -p fs-pkt -- [--target engine|linux] [--tolerance-usecs N] [-D SYM=V] [--verbose] FILE|DIR…
//! ```
//!
//! Syntax and semantics are those of google/packetdrill. A script is a list of timed events: a
//! packet to inject (`<`) or to expect (`>`), a system call with its result, a shell command in
//! back quotes, or Python between `%{` and `}%` that reads TCP_INFO. A script that passes with
//! packetdrill on Linux runs here unchanged. A failure names the feature that the engine lacks or
//! implements differently.
//!
//! Stages of a script: [`script`] (tokens → grammar → syntax tree) → [`run`] (times of events,
//! expected packets, comparison of results) → a [`run::target::Target`]: [`engine`] or [`linux`].
//!
//! ## Intended differences from Linux
//! They are marked in the script, in comments that packetdrill ignores:
//! - `// fastsock: differs from Linux: REASON`, once, in a file that has lines for one side only;
//! - `// @engine LINE`: the line is for our engine only;
//! - `LINE // @linux`: the line is for Linux only;
//! - `// fastsock: engine only: REASON` and `// fastsock: linux only: REASON`: the file is for one
//!   side.
//!
//! ## Extension of the language
//! `sock(4)` after a packet's direction names the descriptor of its connection; a listener's begins
//! a new connection. Without it, packets belong to the latest connection, as with packetdrill.
//!
//! ## Commands on the engine
//! `sysctl`, `set_sysctls.py`, `echo … > /proc/sys/…`, `ip route|link … mtu`, and shell files with
//! such lines are mapped to the engine's settings. An unknown sysctl or command is an error that
//! names it.

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
