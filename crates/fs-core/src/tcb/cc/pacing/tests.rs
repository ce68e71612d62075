use super::*;

const MSS: u32 = 1000;

fn at(us: u64) -> Instant {
    Instant::from_micros(1_000_000 + us)
}

/// Sends whenever allowed, and wakes `late` after each deadline, for `ms` milliseconds. Returns the
/// bytes.
fn run(pacing: &mut Pacing, ms: u64, late: Duration) -> u64 {
    let (mut now, end) = (at(0), at(ms * 1000));
    let mut sent = 0;
    while now < end {
        match pacing.wait(now) {
            Some(until) => {
                now = until + late;
                pacing.wake(now, MSS);
            }
            None => {
                pacing.charge(MSS, MSS, now);
                sent += u64::from(MSS);
            }
        }
    }
    sent
}

#[test]
fn no_wait_without_rate() {
    let mut pacing = Pacing::default();
    for _ in 0..1000 {
        pacing.charge(MSS, MSS, at(0));
        assert_eq!(pacing.wait(at(0)), None);
    }
}

/// At any rate, with exact timers and with timers a millisecond late.
#[test]
fn keeps_rate() {
    for rate in [50_000, 1_000_000, 12_500_000, 125_000_000] {
        for late in [Duration::ZERO, Duration::from_micros(300), Duration::from_millis(1)] {
            let mut pacing = Pacing::default();
            pacing.set_rate(rate);
            let sent = run(&mut pacing, 2000, late);
            let want = rate * 2;
            let slack = u64::from(pacing.burst(MSS)) * 2 + rate / 200;
            assert!(sent.abs_diff(want) <= slack, "{rate} B/s, {late:?} late: {sent} of {want}");
        }
    }
}

#[test]
fn bursts_are_a_millisecond_long() {
    assert_eq!(burst(10_000, MSS), 2 * MSS, "two segments at least");
    assert_eq!(burst(10_240_000, MSS), 10_000);
    assert_eq!(burst(1 << 40, MSS), 64 << 10, "Linux's largest");
    let mut pacing = Pacing::default();
    pacing.set_rate(10_240_000);
    let mut burst = 0;
    while pacing.wait(at(0)).is_none() {
        pacing.charge(MSS, MSS, at(0));
        burst += 1;
    }
    assert_eq!(burst, 10);
    let until = pacing.wait(at(0)).unwrap();
    assert_eq!(until.since(at(0)).as_micros(), 976, "10,000 bytes at 10.24 MB/s");
}

/// A time without sending does not allow a larger burst later.
#[test]
fn does_not_save_idle_time() {
    let mut pacing = Pacing::default();
    pacing.set_rate(1_024_000);
    run(&mut pacing, 10, Duration::ZERO);
    let mut burst = 0;
    while pacing.wait(at(60_000_000)).is_none() {
        pacing.charge(MSS, MSS, at(60_000_000));
        burst += 1;
    }
    assert!(burst <= 4, "{burst} segments at once");
}

/// Timers have a resolution of milliseconds: the bytes of a delay leave with the next burst, for up
/// to four milliseconds.
#[test]
fn compensates_late_wake_up() {
    for (late, want) in [(0, 2), (1, 3), (3, 5), (4, 6), (50, 6)] {
        let mut pacing = Pacing::default();
        pacing.set_rate(1_000_000);
        while pacing.wait(at(0)).is_none() {
            pacing.charge(MSS, MSS, at(0));
        }
        let now = pacing.wait(at(0)).unwrap() + Duration::from_millis(late);
        pacing.wake(now, MSS);
        let mut sent = 0;
        while pacing.wait(now).is_none() && sent < 100 {
            pacing.charge(MSS, MSS, now);
            sent += 1;
        }
        assert_eq!(sent, want, "{late} ms late");
    }
}

#[test]
fn max_pacing_rate_limits_and_enables_pacing() {
    let mut pacing = Pacing::default();
    pacing.set_max(Some(1_000_000));
    assert_eq!(pacing.rate(), 1_000_000, "an algorithm that does not pace");
    pacing.set_rate(300_000);
    assert_eq!(pacing.rate(), 300_000);
    pacing.set_rate(3_000_000);
    assert_eq!(pacing.rate(), 1_000_000);
    pacing.set_max(None);
    assert_eq!(pacing.rate(), 3_000_000);
    pacing.set_rate(0);
    assert_eq!(pacing.rate(), 0);
    pacing.set_max(Some(0));
    assert_eq!(pacing.rate(), 1, "never for ever");
}

/// Lifting a limit ends the wait that it caused.
#[test]
fn new_limit_ends_old_wait() {
    let mut pacing = Pacing::default();
    pacing.set_max(Some(1));
    for _ in 0..2 {
        pacing.charge(MSS, MSS, at(0));
    }
    pacing.queued = true;
    assert!(pacing.wait(at(0)).unwrap() > at(1_000_000_000));
    pacing.set_max(Some(1_000_000));
    assert!(pacing.wait(at(1)).is_none() && !pacing.queued);
}

#[test]
fn queue_returns_earliest_first() {
    let mut queue = PacingQueue::default();
    assert_eq!(queue.next_deadline(), None);
    queue.push(at(30), 3, 0);
    queue.push(at(10), 1, 0);
    queue.push(at(20), 2, 0);
    assert_eq!(queue.next_deadline(), Some(at(10)));
    assert_eq!(queue.pop_due(at(9)), None);
    assert_eq!(
        [queue.pop_due(at(25)), queue.pop_due(at(25)), queue.pop_due(at(25))],
        [Some((1, 0)), Some((2, 0)), None]
    );
    assert_eq!(queue.next_deadline(), Some(at(30)));
}
