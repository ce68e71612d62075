//! Transmitted segments: headers, and the new segments of a bulk transfer.

pub(crate) mod build;
pub(crate) mod emit;
mod headers;
pub(crate) mod run;
