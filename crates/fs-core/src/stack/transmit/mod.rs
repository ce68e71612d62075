//! Sending: what a turn has left to send, by interface.

mod batch;
mod single;

pub use batch::SEND_QUOTA;
