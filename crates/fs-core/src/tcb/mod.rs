//! One connection: its control block and its state machine.

pub mod cc;
pub mod seq;
pub mod send;
