//! How many chunks a device has to receive into.
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
pub(crate) struct Lent {
    least: u32,
    most: u32,
    now: u32,
    /// Packets received by then.
    grown_at: u64,
    /// Times that all had been used.
    pub(crate) used_up: u64,
}

impl Lent {
    pub(crate) fn new(least: u32, most: u32) -> Self {
        Self { least, most: most.max(least), now: least, grown_at: 0, used_up: 0 }
    }

    /// How many the device shall have.
    #[inline]
    pub(crate) fn target(&self) -> u32 {
        self.now
    }

    /// `waiting` of the `lent` chunks that the device had lie in the RX ring, `packets` have been received in all.
    #[inline]
    pub(crate) fn saw(&mut self, waiting: u32, lent: u32, packets: u64) {
        if waiting >= lent.div_ceil(2) && waiting > 0 {
            self.came_late(waiting >= lent, packets);
        } else if self.now > self.least && packets - self.grown_at >= QUIET {
            self.now = self.least;
        }
    }

    #[cold]
    fn came_late(&mut self, too_late: bool, packets: u64) {
        self.used_up += u64::from(too_late);
        self.grown_at = packets;
        self.now = (self.now * 2).min(self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_too_late_lends_more_and_less_again_when_it_has_long_not() {
        let mut lent = Lent::new(1024, 2048);
        lent.saw(0, 1024, 10);
        lent.saw(511, 1024, 100);
        assert_eq!((lent.target(), lent.used_up), (1024, 0));
        lent.saw(1024, 1024, 200);
        assert_eq!((lent.target(), lent.used_up), (2048, 1));
        lent.saw(2048, 2048, 5000);
        assert_eq!((lent.target(), lent.used_up), (2048, 2));
        lent.saw(1, 2048, 5000 + QUIET - 1);
        assert_eq!(lent.target(), 2048);
        lent.saw(1, 2048, 5000 + QUIET);
        assert_eq!(lent.target(), 1024);
    }

    #[test]
    fn who_comes_so_late_that_half_is_used_up_lends_more_before_all_is() {
        let mut lent = Lent::new(1024, 4096);
        lent.saw(512, 1024, 10);
        assert_eq!((lent.target(), lent.used_up), (2048, 0));
        // What lay there is taken in several turns, and the device has more by then.
        lent.saw(448, 1984, 10);
        assert_eq!((lent.target(), lent.used_up), (2048, 0));
    }

    #[test]
    fn a_pool_that_had_none_to_lend_is_not_told_to_lend_more() {
        let mut lent = Lent::new(1024, 2048);
        lent.saw(0, 0, 10);
        assert_eq!((lent.target(), lent.used_up), (1024, 0));
    }
}
