//! The fill ring's target: how many chunks a device has to receive into.
//!
//! They are used in turn, so few of them are what caches hold (decision 0012); and they are what arrives while the core is
//! away before packets are lost. A core of its own is away for microseconds. One that shares its CPU is for a time slice of
//! somebody else's: 3 to 9 ms, and when it comes back nothing is left to receive into. So the device gets more once half of
//! them were used up at a look, and less again when that has not been seen for long (decision 0016).

/// Packets that never were half of the chunks after which the device has as few as in the beginning: 4 s at a million a second. Fewer:
/// what comes after a quiet time is lost again.
const QUIET: u64 = 1 << 22;

/// See the module.
#[derive(Debug)]
pub(crate) struct FillTarget {
    /// What it is like where the pool has enough for all.
    wanted: (u32, u32),
    least: u32,
    most: u32,
    now: u32,
    /// Packets received by then.
    grown_at: u64,
    /// Times that all had been used.
    pub(crate) used_up: u64,
}

impl FillTarget {
    pub(crate) fn new(least: u32, most: u32) -> Self {
        let most = most.max(least);
        Self { wanted: (least, most), least, most, now: least, grown_at: 0, used_up: 0 }
    }

    /// The device shall have `share` at most: the queues of a core divide its frames. What it has beyond that comes back as it
    /// is used.
    pub(crate) fn limit(&mut self, share: u32) {
        (self.least, self.most) = (self.wanted.0.min(share), self.wanted.1.min(share));
        self.now = self.now.clamp(self.least, self.most);
    }

    /// How many the device shall have.
    #[inline]
    pub(crate) fn get(&self) -> u32 {
        self.now
    }

    /// `waiting` of the `lent` chunks that the device had lie in the RX ring, `packets` have been received in all.
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
    fn grows_when_all_are_used_up_and_shrinks_when_that_is_long_ago() {
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
        // What lay there is taken in several turns, and the device has more by then.
        target.observe(448, 1984, 10);
        assert_eq!((target.get(), target.used_up), (2048, 0));
    }

    #[test]
    fn never_grows_beyond_its_share_and_has_it_back_when_that_grows() {
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
    fn does_not_grow_where_the_pool_had_none_to_lend() {
        let mut target = FillTarget::new(1024, 2048);
        target.observe(0, 0, 10);
        assert_eq!((target.get(), target.used_up), (1024, 0));
    }
}
