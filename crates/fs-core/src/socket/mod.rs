//! Sockets: the calls that applications make, and what they are told.

pub mod event;
pub mod handover;
pub mod options;
