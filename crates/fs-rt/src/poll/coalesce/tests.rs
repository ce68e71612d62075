use super::*;

const fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

/// Simulates events of `connections` in turn, one per `gap`, for 10 ms, on a core that could poll
/// each microsecond. Returns how often it polled its links.
fn looks(coalescing: &mut Coalescing, from: u64, connections: u32, gap: u64) -> u64 {
    let mut slot = 0;
    let mut looked = 0;
    let mut waiting = 0;
    for step in 0..10_000 {
        let now = Instant::ZERO + us(from + step);
        waiting += u64::from(step % gap == 0);
        if coalescing.is_poll_due(now, &Stats::default()) {
            looked += 1;
            if waiting > 0 {
                coalescing.found_packets(now);
            }
            for _ in 0..std::mem::take(&mut waiting) {
                coalescing.on_event(slot);
                slot = (slot + 1) % connections;
            }
        }
    }
    looked
}

#[test]
fn many_connections_are_coalesced() {
    let mut coalescing = Coalescing::new(&PollPolicy::throughput());
    let looked = looks(&mut coalescing, 1000, 64, 5);
    assert!((450..1000).contains(&looked), "{looked}: one in 20 µs, but for the first window");
    assert_eq!(coalescing.begun, 1);
    assert_eq!(coalescing.spin(us(30)), SPIN);
    assert_eq!(coalescing.spin(us(0)), us(0), "a core that shall not spin does not");
}

#[test]
fn core_sleeps_if_round_trips_are_long() {
    // A round trip of 320 µs, one of 100 µs, and a single connection.
    for (connections, gap, sleeps) in [(64, 5, true), (50, 2, false), (1, 5, false)] {
        let mut coalescing = Coalescing::new(&PollPolicy::throughput());
        looks(&mut coalescing, 1000, connections, gap);
        let now = Instant::ZERO + us(11_000);
        coalescing.found_packets(now);
        assert_eq!(
            coalescing.timed_sleep(now + us(3)),
            sleeps.then_some(TIMED_SLEEP - us(3)),
            "{connections} connections, each {gap} µs one"
        );
        assert_eq!(coalescing.timed_sleep(now + TIMED_SLEEP), None);
    }
}

#[test]
fn few_connections_with_short_round_trips_are_not_coalesced() {
    for (connections, gap) in [(1, 5), (4, 5), (8, 2), (16, 1), (1, 300)] {
        let mut coalescing = Coalescing::new(&PollPolicy::throughput());
        assert_eq!(
            looks(&mut coalescing, 1000, connections, gap),
            10_000,
            "{connections} connections, each {gap} µs one"
        );
        assert_eq!(coalescing.begun, 0);
        assert_eq!(coalescing.spin(us(30)), us(30));
    }
}

#[test]
fn slow_load_is_not_coalesced() {
    let mut coalescing = Coalescing::new(&PollPolicy::throughput());
    assert_eq!(looks(&mut coalescing, 1000, 256, 20), 10_000);
}

#[test]
fn coalescing_ends_with_the_load_and_after_an_absence() {
    let mut coalescing = Coalescing::new(&PollPolicy::throughput());
    looks(&mut coalescing, 1000, 64, 5);
    assert!(looks(&mut coalescing, 11_000, 1, 50) > 9_000, "two windows at most");
    looks(&mut coalescing, 21_000, 64, 5);
    assert_eq!(coalescing.begun, 2);
    // Counts from before the core's absence are not used.
    assert!(coalescing.is_poll_due(Instant::ZERO + us(900_000), &Stats::default()));
    assert_eq!(coalescing.spin(us(30)), us(30));
}

#[test]
fn interval_ends_early_on_request_and_policy_can_disable_it() {
    let mut coalescing = Coalescing::new(&PollPolicy::throughput());
    looks(&mut coalescing, 1000, 64, 5);
    let now = Instant::ZERO + us(11_001);
    coalescing.found_packets(now);
    assert!(!coalescing.is_poll_due(now + us(1), &Stats::default()));
    coalescing.end_interval();
    assert!(coalescing.is_poll_due(now + us(1), &Stats::default()));
    let mut coalescing = Coalescing::new(&PollPolicy::latency());
    assert_eq!(looks(&mut coalescing, 1000, 64, 5), 10_000);
}

/// Simulates a packet of `bytes` each 2 µs for 100 ms (each `paused` µs while it is coalesced), an
/// acknowledgement for each poll that found packets, and a response for each `answered` packets.
/// Returns the number of polls that found packets, per thousand packets.
fn stream(coalescing: &mut Coalescing, bytes: u64, answered: u64, paused: u64) -> u64 {
    let mut stats = Stats::default();
    let (mut looked, mut waiting) = (0, 0);
    for step in 0..100_000 {
        let now = Instant::ZERO + us(1000 + step);
        let each = if coalescing.stream.coalesced { paused } else { 2 };
        waiting += u64::from(step % each == 0);
        if coalescing.is_poll_due(now, &stats) && waiting > 0 {
            coalescing.found_packets(now);
            coalescing.on_event(1);
            let answers = (stats.rx_packets + waiting) / answered - stats.rx_packets / answered;
            stats.rx_packets += waiting;
            stats.rx_bytes += waiting * bytes;
            stats.acks_sent += 1;
            stats.tx_packets += 1 + answers;
            waiting = 0;
            looked += 1;
        }
    }
    looked * 1000 / stats.rx_packets
}

#[test]
fn stream_is_coalesced() {
    for paused in [2, 1] {
        let mut coalescing = Coalescing::new(&PollPolicy::throughput());
        let looked = stream(&mut coalescing, 1514, 100_000, paused);
        assert!((50..130).contains(&looked), "{looked} thousandths: one in 20 µs, but for the first milliseconds");
        assert_eq!(coalescing.begun, 1);
        assert_eq!(coalescing.spin(us(30)), us(30), "its next packet is a few microseconds away");
    }
}

#[test]
fn stream_limited_by_acknowledgements_is_not_coalesced_for_long() {
    let mut coalescing = Coalescing::new(&PollPolicy::throughput());
    assert!(stream(&mut coalescing, 1514, 100_000, 4) > 950, "2 of 140 ms");
    assert_eq!(coalescing.begun, 1);
}

#[test]
fn coalescing_is_tried_again() {
    let mut trial = Trial::default();
    let mut paused = 0;
    for window in 0..10_000 {
        // Coalescing is better in the second half.
        let bytes = if trial.coalesced == (window > 5000) { 1000 } else { 600 };
        trial.window(bytes, WINDOW);
        if window == 5000 {
            assert!((70..100).contains(&paused), "{paused}: one measurement, of nine windows, in 66");
        }
        paused += u32::from(trial.coalesced);
    }
    assert!(paused > 4000, "{paused}: found out by the next trial");
}

#[test]
fn requests_and_small_segments_are_not_coalesced() {
    for (bytes, answered) in [(1514, 1), (1514, 10), (1514, 50), (200, 100_000)] {
        let mut coalescing = Coalescing::new(&PollPolicy::throughput());
        assert_eq!(stream(&mut coalescing, bytes, answered, 2), 1000, "{bytes} bytes, an answer for {answered}");
        assert_eq!(coalescing.begun, 0);
    }
    let mut coalescing = Coalescing::new(&PollPolicy::latency());
    assert_eq!(stream(&mut coalescing, 1514, 100_000, 2), 1000);
}
