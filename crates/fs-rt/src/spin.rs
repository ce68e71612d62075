//! How long a core looks for work before it sleeps.
//!
//! A sleep and its wake-up cost some 30 µs of latency, so a core that spins that long never does worse than twice the best
//! (the ski-rental rule). That is right for a core of which nothing is known. But a connection whose window is in flight
//! hears of its peer every so many microseconds, and with gaps just longer than the spin each of them costs the spin *and*
//! the wake-up: measured, two thirds of the goodput at a round trip of 0.2 ms. So the spin follows what the gaps turned out
//! to be, as the kernel's halt polling does (`drivers/cpuidle/governors/haltpoll.c`, `kvm_main.c`): a sleep that a longer
//! spin would have made needless makes it longer, a long sleep takes it back.

use std::time::Duration;

/// The longest spin, in shortest ones: 150 µs for the default of 30 (halt polling's limit is 200 µs). Shorter: paths of a
/// data centre pay for wake-ups. Longer: a core with little to do burns more CPU before it finds out.
const LONGEST: u32 = 5;

/// See the module.
#[derive(Debug)]
pub(crate) struct Spin {
    shortest: Duration,
    now: Duration,
}

impl Spin {
    /// Zero never spins.
    pub(crate) fn new(shortest: Duration) -> Self {
        Self { shortest, now: shortest }
    }

    /// After so long without work the core sleeps.
    pub(crate) fn time(&self) -> Duration {
        self.now
    }

    /// There is work again, so long after the last; the core may have slept meanwhile.
    pub(crate) fn idle_ended(&mut self, idle: Duration) {
        let longest = self.shortest * LONGEST;
        if idle > longest {
            self.now = self.shortest;
        } else if idle > self.now {
            self.now = (self.now * 2).min(longest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    #[test]
    fn short_sleeps_make_it_longer_and_a_long_one_takes_it_back() {
        let mut spin = Spin::new(us(30));
        assert_eq!(spin.time(), us(30));
        // Found while spinning: it is long enough.
        spin.idle_ended(us(30));
        assert_eq!(spin.time(), us(30));
        for expected in [60, 120, 120] {
            spin.idle_ended(us(100));
            assert_eq!(spin.time(), us(expected));
        }
        spin.idle_ended(us(149));
        assert_eq!(spin.time(), us(150), "the limit");
        spin.idle_ended(us(151));
        assert_eq!(spin.time(), us(30));
    }

    #[test]
    fn zero_never_spins() {
        let mut spin = Spin::new(us(0));
        spin.idle_ended(us(0));
        spin.idle_ended(us(1));
        assert_eq!(spin.time(), us(0));
    }
}
