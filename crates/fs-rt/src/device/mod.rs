//! The runtime's devices: what opens their queues, also later, and whether they work with us.

pub(crate) mod openers;
pub(crate) mod probe;
pub(crate) mod queues;
