//! Deadlines of many connections, cheaply.

pub mod wheel;
