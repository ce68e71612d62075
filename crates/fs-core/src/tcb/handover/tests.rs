use super::*;

const T0: Instant = Instant::from_millis(5000);
const ONE: CoreId = CoreId(1);
const TWO: CoreId = CoreId(2);

#[test]
fn finds_recent_handover() {
    let mut moved = RecentHandovers::default();
    assert_eq!(moved.find(7, T0), None);
    moved.note(7, ONE, T0);
    moved.note(8, TWO, T0 + REMEMBERED / 2);
    assert_eq!((moved.find(7, T0), moved.find(8, T0), moved.find(9, T0)), (Some(ONE), Some(TWO), None));
    let last = T0 + REMEMBERED;
    assert_eq!((moved.find(7, last), moved.find(8, last)), (Some(ONE), Some(TWO)));
    // Each entry has its own lifetime.
    let after = last + Duration::from_nanos(1);
    assert_eq!((moved.find(7, after), moved.find(8, after)), (None, Some(TWO)));
    assert_eq!(moved.find(8, after + REMEMBERED), None);
    assert!(moved.0.is_empty(), "expired entries are removed");
}

/// The connection came back and then moved to another core.
#[test]
fn latest_handover_wins() {
    let mut moved = RecentHandovers::default();
    moved.note(7, ONE, T0);
    moved.note(8, ONE, T0);
    moved.note(7, TWO, T0);
    assert_eq!((moved.find(7, T0), moved.find(8, T0)), (Some(TWO), Some(ONE)));
}

#[test]
fn remembered_handovers_are_bounded() {
    let mut moved = RecentHandovers::default();
    for hash in 0..REMEMBERED_MAX as u64 + 1 {
        moved.note(hash, ONE, T0);
    }
    assert_eq!(moved.0.len(), REMEMBERED_MAX);
    assert_eq!((moved.find(0, T0), moved.find(1, T0)), (None, Some(ONE)), "the oldest goes first");
    assert_eq!(moved.find(REMEMBERED_MAX as u64, T0), Some(ONE));
}
