//! Congestion control: NewReno and CUBIC behind one trait.

pub mod cubic;
pub mod reno;
