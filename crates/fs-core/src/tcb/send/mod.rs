//! The sending half.

pub mod rto;
