//! Sending: queued packets of a turn, by interface.

mod batch;
mod single;
