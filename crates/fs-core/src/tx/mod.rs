//! Segments that leave: headers, and the new ones of a bulk transfer.

pub(crate) mod build;
pub(crate) mod emit;
mod headers;
pub(crate) mod run;
