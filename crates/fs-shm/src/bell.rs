//! How a process rings a poller that sleeps in another process.

/// Supplied by the process: it knows eventfds by poller id, and asks the daemon (`Bell{poller}`) for those that it
/// does not know yet.
///
/// `ring` is called from any thread that sends, receives or closes, at most once for each time the poller went to
/// sleep. It must not block for long, and must not call back into the channel. `poller` was read from memory that
/// the peer can write: an id that the daemon refuses is to be ignored.
pub trait Bells: Send + Sync {
    /// Wakes the poller (writes 1 to its eventfd).
    fn ring(&self, poller: u32);

    /// Whether this process may use so many bytes more of memory. Called seldom: before a ring grows.
    fn may_use(&self, bytes: u64) -> bool {
        let _bytes = bytes;
        true
    }

    /// Has the daemon look soon what of this arena's memory can go back ([`crate::Arena::trim`]). Called seldom, from any thread
    /// that receives, sends or closes; must not wait. `number` was read from memory that the peer can write. `false`: it could
    /// not be told now.
    fn trim(&self, number: u32) -> bool {
        let _number = number;
        true
    }
}

/// For sides whose peers never sleep in a poller, and for tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoBells;

impl Bells for NoBells {
    fn ring(&self, _poller: u32) {}
}
