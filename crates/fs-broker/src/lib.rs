//! Shares a device between programs; the kernel is the broker (docs/SHARED_DEVICE.md).
//!
//! | module | |
//! |---|---|
//! | `broker` | the daemon's thread: programs' requests, the device's changes |
//! | `shared` | one shared device: slots, leases, pairs |
//! | `leases` | the program that has each port: the table of the BPF programs |
//! | `proof` | a bound socket shows that the kernel gives a program a port |
//! | `pair` | a program's pair of devices, and its AF_XDP sockets |
//! | `programs` | the BPF programs (`bpf/share.bpf.c`, `bpf/end.bpf.c`), their maps and pins |

mod broker;
mod error;
mod leases;
mod pair;
mod programs;
mod proof;
mod shared;
mod sys;

pub use broker::{Broker, Intake, Permit};
pub use error::Error;
pub use programs::Counters;
pub use shared::{PINS, Row, check, list, purge};
pub use sys::peer_runs;
