//! The runtime's devices: opening their queues, at the start and later, and checking that they
//! work.

pub(crate) mod openers;
pub(crate) mod probe;
pub(crate) mod queues;
