//! Sending: what a turn has left to send, by interface.

mod batch;
mod single;
