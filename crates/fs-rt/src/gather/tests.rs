use super::*;

const fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

/// Events of `connections` in turn, one each `gap`, for 10 ms; a core that looks each microsecond. How many looks at its
/// links it had.
fn looks(gather: &mut Gather, from: u64, connections: u32, gap: u64) -> u64 {
    let mut slot = 0;
    let mut looked = 0;
    let mut waiting = 0;
    for step in 0..10_000 {
        let now = Instant::ZERO + us(from + step);
        waiting += u64::from(step % gap == 0);
        if gather.looks(now) {
            looked += 1;
            if waiting > 0 {
                gather.found(now);
            }
            for _ in 0..std::mem::take(&mut waiting) {
                gather.heard_of(slot);
                slot = (slot + 1) % connections;
            }
        }
    }
    looked
}

#[test]
fn many_connections_gather() {
    let mut gather = Gather::new();
    let looked = looks(&mut gather, 1000, 64, 5);
    assert!((450..1000).contains(&looked), "{looked}: one in 20 µs, but for the first window");
    assert_eq!(gather.begun, 1);
    assert_eq!(gather.spin(us(30)), SPIN);
    assert_eq!(gather.spin(us(0)), us(0), "a core that shall not spin does not");
}

#[test]
fn one_connection_or_a_few_that_come_round_fast_do_not() {
    for (connections, gap) in [(1, 5), (4, 5), (8, 2), (16, 1), (1, 300)] {
        let mut gather = Gather::new();
        assert_eq!(looks(&mut gather, 1000, connections, gap), 10_000, "{connections} connections, each {gap} µs one");
        assert_eq!(gather.begun, 0);
        assert_eq!(gather.spin(us(30)), us(30));
    }
}

#[test]
fn a_trickle_does_not() {
    let mut gather = Gather::new();
    assert_eq!(looks(&mut gather, 1000, 256, 20), 10_000);
}

#[test]
fn it_ends_with_the_load_and_after_an_absence() {
    let mut gather = Gather::new();
    looks(&mut gather, 1000, 64, 5);
    assert!(looks(&mut gather, 11_000, 1, 50) > 9_000, "two windows at most");
    looks(&mut gather, 21_000, 64, 5);
    assert_eq!(gather.begun, 2);
    // What was heard before the core was away tells nothing.
    assert!(gather.looks(Instant::ZERO + us(900_000)));
    assert_eq!(gather.spin(us(30)), us(30));
}

#[test]
fn a_pause_ends_early_on_request_and_none_is_made_where_it_is_forbidden() {
    let mut gather = Gather::new();
    looks(&mut gather, 1000, 64, 5);
    let now = Instant::ZERO + us(11_001);
    gather.found(now);
    assert!(!gather.looks(now + us(1)));
    gather.end_pause();
    assert!(gather.looks(now + us(1)));
    let mut gather = Gather::new();
    gather.forbid();
    assert_eq!(looks(&mut gather, 1000, 64, 5), 10_000);
}
