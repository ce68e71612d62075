//! The sending half: the queue of segments, scheduling, loss detection and recovery.

pub(crate) mod buffer;
pub(crate) mod cursor;
mod detect;
mod ends;
mod fast_recovery;
pub(crate) mod forwarded;
mod growth;
pub(crate) mod loss;
mod old_ack;
pub(crate) mod path;
pub(crate) mod persist;
pub(crate) mod rack;
pub(crate) mod recovery;
pub(crate) mod room;
pub(crate) mod rto;
pub(crate) mod sack;
pub(crate) mod segment;
pub(crate) mod segmenter;
pub(crate) mod sender;
pub(crate) mod store;
mod timeout;
pub(crate) mod tlp;
