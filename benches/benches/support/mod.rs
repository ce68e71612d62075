//! Parts of the in-memory benches other than the servers.

pub mod alloc_unsafe;
pub mod report;
