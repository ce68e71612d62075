//! The fill ring's target: how many chunks a device has to receive into.
//!
//! They are used in turn, so a few of them fit into caches (decision 0012). They also limit how
//! many packets can arrive while the core does not run. A core with its own CPU is away for
//! microseconds. A core that shares its CPU is away for a time slice of another thread, 3 to 9 ms,
//! and then no chunk is left to receive into. So the device gets more chunks after half of them
//! were used up between two polls, and fewer again when that has not happened for long (decision
//! 0016).

/// Shrink to the initial fill level after this many packets without the ring running half empty: 4
/// s at a million per second. Lower: packets after a quiet time are lost again.
const QUIET: u64 = 1 << 22;

/// See the module.
#[derive(Debug)]
pub(crate) struct FillTarget {
    /// The limits if the pool has enough chunks for all queues.
    wanted: (u32, u32),
    least: u32,
    most: u32,
    now: u32,
    /// Number of packets received when it last grew.
    grown_at: u64,
    /// Number of times that all chunks had been used up.
    pub(crate) used_up: u64,
}

impl FillTarget {
    pub(crate) fn new(least: u32, most: u32) -> Self {
        let most = most.max(least);
        Self { wanted: (least, most), least, most, now: least, grown_at: 0, used_up: 0 }
    }

    /// Limits the device to `share` chunks: the queues of a core divide its frames. Excess chunks
    /// are returned as they are used.
    pub(crate) fn limit(&mut self, share: u32) {
        (self.least, self.most) = (self.wanted.0.min(share), self.wanted.1.min(share));
        self.now = self.now.clamp(self.least, self.most);
    }

    /// Returns how many chunks the device should have.
    #[inline]
    pub(crate) fn get(&self) -> u32 {
        self.now
    }

    /// Records a poll: `waiting` of the device's `lent` chunks are in the RX ring, and `packets`
    /// have been received in total.
    #[inline]
    pub(crate) fn observe(&mut self, waiting: u32, lent: u32, packets: u64) {
        if waiting >= lent.div_ceil(2) && waiting > 0 {
            self.grow(waiting >= lent, packets);
        } else if self.now > self.least && packets - self.grown_at >= QUIET {
            self.now = self.least;
        }
    }

    #[cold]
    fn grow(&mut self, used_up: bool, packets: u64) {
        self.used_up += u64::from(used_up);
        self.grown_at = packets;
        self.now = (self.now * 2).min(self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_when_all_are_used_up_and_shrinks_after_a_quiet_time() {
        let mut target = FillTarget::new(1024, 2048);
        target.observe(0, 1024, 10);
        target.observe(511, 1024, 100);
        assert_eq!((target.get(), target.used_up), (1024, 0));
        target.observe(1024, 1024, 200);
        assert_eq!((target.get(), target.used_up), (2048, 1));
        target.observe(2048, 2048, 5000);
        assert_eq!((target.get(), target.used_up), (2048, 2));
        target.observe(1, 2048, 5000 + QUIET - 1);
        assert_eq!(target.get(), 2048);
        target.observe(1, 2048, 5000 + QUIET);
        assert_eq!(target.get(), 1024);
    }

    #[test]
    fn grows_when_half_are_used_up_before_all_are() {
        let mut target = FillTarget::new(1024, 4096);
        target.observe(512, 1024, 10);
        assert_eq!((target.get(), target.used_up), (2048, 0));
        // The waiting packets are taken in several turns, and by then the device has more chunks.
        target.observe(448, 1984, 10);
        assert_eq!((target.get(), target.used_up), (2048, 0));
    }

    #[test]
    fn never_exceeds_its_share() {
        let mut target = FillTarget::new(1024, 4096);
        target.observe(1024, 1024, 200);
        target.limit(512);
        assert_eq!(target.get(), 512);
        target.observe(512, 512, 300);
        assert_eq!(target.get(), 512);
        target.limit(2048);
        assert_eq!(target.get(), 1024);
        target.observe(1024, 1024, 400);
        target.observe(2048, 2048, 500);
        assert_eq!(target.get(), 2048);
    }

    #[test]
    fn does_not_grow_without_chunks_in_the_pool() {
        let mut target = FillTarget::new(1024, 2048);
        target.observe(0, 0, 10);
        assert_eq!((target.get(), target.used_up), (1024, 0));
    }
}
