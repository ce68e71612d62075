//! Common code of the lab tests, the demo and the veth benches: a lab that is removed with its
//! owner, programs in its namespaces, bodies with known digests, and clients (curl, wrk,
//! redis-benchmark).
//!
//! Everything is blocking and returns `anyhow::Result`. An error names the program and has the end
//! of its log.

pub mod apps;
pub mod body;
pub mod clients;
pub mod compat;
pub mod lab;
pub mod loadgen;
pub mod process;
pub mod proxy;
pub mod random;
pub mod servers;
pub mod unmodified;
pub mod vm;
pub mod wire;
pub mod worlds;

pub use apps::{Nginx, Program, Stack};
pub use lab::{Lab, Ns};
pub use process::Proc;

/// The programs in the README compile.
#[doc = include_str!("../../README.md")]
#[cfg(doctest)]
pub struct Readme;
