//! Deadlines of many connections, cheaply.
//!
//! [`wheel`] holds deadlines that differ (retransmission, keepalive, persist); [`fifo`] those whose delay is
//! a constant (delayed ACK, TIME-WAIT), which need no order but the one they came in. Neither can cancel:
//! the truth about a deadline lives with its owner, who ignores a token that comes too soon or too late.

mod bitmap;
pub(crate) mod fifo;
pub(crate) mod tick;
pub(crate) mod wheel;
