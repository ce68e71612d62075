//! Deadlines of many connections at low cost.
//!
//! [`wheel`] stores deadlines with different delays (retransmission, keepalive, persist). [`fifo`]
//! stores those with a constant delay (delayed ACK, TIME-WAIT), which are already in order. Neither
//! can cancel: the true deadline is stored with its owner, which ignores a token that comes too
//! early or too late.

mod bitmap;
pub(crate) mod fifo;
pub(crate) mod tick;
pub(crate) mod wheel;
