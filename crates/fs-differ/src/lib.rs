//! Random programs of socket calls. Each runs on the kernel and under `fastsock run`, and the
//! results are compared. The kernel's results are the reference.

pub mod actor;
mod actors;
pub mod awake;
mod bytes;
pub mod coverage;
pub mod emit;
mod foreign;
pub mod generate;
pub mod interpret;
pub mod judge;
mod loops;
pub mod program;
pub mod random;
mod readiness;
pub mod serve;
mod sets;
pub mod shrink;
pub mod side;
mod signals;
pub mod sys;
pub mod values;
mod various;
