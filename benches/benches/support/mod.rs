//! What the in-memory benches need besides the servers.

pub mod alloc_unsafe;
pub mod report;
