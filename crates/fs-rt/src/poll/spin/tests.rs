use super::*;

fn pinned(spin: Duration) -> Spin {
    Spin::new(&PollPolicy { spin, ..PollPolicy::throughput() })
}

fn shared(spin: Duration) -> Spin {
    Spin::new(&PollPolicy { spin, ..PollPolicy::shared() })
}

const fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

#[test]
fn short_sleeps_lengthen_the_spin_and_a_long_one_resets_it() {
    let mut spin = pinned(us(30));
    assert_eq!(spin.time(), us(30));
    // Found while spinning, so the spin is long enough.
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
    for expected in [15_000, 7_500, 3_750, 3_750] {
        spin.idle_ended(us(1000));
        assert_eq!(spin.time(), Duration::from_nanos(expected), "it catches nothing");
    }
    for expected in [7_500, 15_000, 30_000, 30_000] {
        spin.idle_ended(us(20));
        assert_eq!(spin.time(), Duration::from_nanos(expected), "it would have");
    }
}

#[test]
fn zero_never_spins() {
    let mut spin = shared(us(0));
    spin.idle_ended(us(0));
    spin.idle_ended(us(1));
    assert_eq!(spin.time(), us(0));
}

#[test]
fn endless_spin_stays_endless() {
    let mut spin = pinned(Duration::MAX);
    spin.idle_ended(us(100));
    assert_eq!(spin.time(), Duration::MAX);
}

fn preempted(preemptions: u64) -> Contention {
    Contention { preemptions, ..Contention::default() }
}

#[test]
fn crowded_machine_disables_the_spin() {
    let mut spin = shared(us(30));
    let mut look = |ms: u64, crowded| {
        spin.idle_begins(Instant::ZERO + Duration::from_millis(ms), || Contention { crowded, ..Contention::default() });
        spin.time()
    };
    assert_eq!(look(10, true), us(30), "once may be chance");
    assert_eq!(look(12, true), us(0));
    for ms in 13..200 {
        assert_eq!(look(ms, true), us(0));
    }
    let spinning = (200..210).filter(|&ms| look(ms, false) > us(0)).count();
    assert!(spinning >= 2, "{spinning}: it is seen soon that the crowd has gone");
    assert_eq!(look(220, false), us(30));
}

/// Simulates a core that runs out of work every 100 µs, on a CPU from which it is preempted
/// `per_ms` times per millisecond while it spins. Returns in how many of `for_ms` milliseconds it
/// was ready to spin.
fn spun(spin: &mut Spin, from_ms: u64, for_ms: u64, per_ms: u64) -> u64 {
    let mut spinning = 0;
    for step in from_ms * 10..(from_ms + for_ms) * 10 {
        let now = Instant::ZERO + us(step * 100);
        spin.idle_begins(now, || preempted(step * per_ms / 10));
        spinning += u64::from(spin.time() > us(0));
    }
    spinning / 10
}

#[test]
fn preempted_core_does_not_spin_but_tries_again() {
    let mut spin = shared(us(30));
    assert!(spun(&mut spin, 1, 1000, 10) < 60, "tries cost 2 ms each, and become rare");
    // No thread wants the CPU any more: after the longest hold it spins again and continues to.
    assert!(spun(&mut spin, 100_000, 1000, 0) > 700);
    // A burst of preemptions costs it only the first hold.
    assert!(spun(&mut spin, 200_000, 4, 10) < 4);
    assert!(spun(&mut spin, 200_004, 100, 0) > 80);
}

#[test]
fn rare_preemptions_do_not_disable_the_spin() {
    let mut spin = shared(us(30));
    for ms in 0..1000 {
        // Once in 4 ms.
        spin.idle_begins(Instant::ZERO + Duration::from_millis(ms * 4), || preempted(ms));
        assert_eq!(spin.time(), us(30));
    }
}

/// Returns whether a pinned core spins at the end of each quarter of a second, in which others use
/// so many milliseconds of its CPU.
fn spins_beside(others: &[u64]) -> Vec<bool> {
    let mut spin = pinned(us(30));
    let (mut used, mut spins) = (Duration::ZERO, Vec::new());
    for (i, &ms) in (0..).zip(others) {
        used += Duration::from_millis(ms);
        spin.idle_begins(Instant::ZERO + MEASURED * (i + 1), || Contention { others: used, ..Contention::default() });
        spins.push(spin.time() == us(30));
    }
    spins
}

#[test]
fn pinned_core_spins_unless_others_use_a_fifth_of_its_cpu() {
    // What they used before the core began does not count.
    assert_eq!(spins_beside(&[90_000, 128, 256, 52, 51, 0, 128]), [true, false, false, false, true, true, false]);
}

#[test]
fn pinned_core_asks_four_times_a_second() {
    let (mut spin, mut asked) = (pinned(us(30)), 0);
    for ms in 1000..2000 {
        spin.idle_begins(Instant::ZERO + Duration::from_millis(ms), || {
            asked += 1;
            Contention::default()
        });
    }
    assert_eq!(asked, 4);
}

#[test]
fn spin_is_constant_without_adapt_spin() {
    let mut spin = Spin::new(&PollPolicy { adapt_spin: false, ..PollPolicy::throughput() });
    for idle in [100, 100, 1000, 1000, 20] {
        spin.idle_ended(us(idle));
        assert_eq!(spin.time(), us(30));
    }
}
