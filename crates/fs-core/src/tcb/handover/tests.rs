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
    moved.note(9, ONE, after + REMEMBERED);
    assert_eq!((moved.by_hash.len(), moved.order.len()), (1, 1), "expired entries are removed");
}

#[test]
fn newer_connection_ends_memory_of_a_handover() {
    let mut moved = RecentHandovers::default();
    moved.note(7, ONE, T0);
    moved.forget(7);
    assert_eq!(moved.find(7, T0), None);
    // The older entry's end does not end the newer one.
    let later = T0 + REMEMBERED / 2;
    moved.note(7, TWO, later);
    moved.note(8, TWO, T0 + REMEMBERED + Duration::from_nanos(1));
    assert_eq!(moved.find(7, later + REMEMBERED), Some(TWO));
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
    assert_eq!((moved.by_hash.len(), moved.order.len()), (REMEMBERED_MAX, REMEMBERED_MAX));
    assert_eq!((moved.find(0, T0), moved.find(1, T0)), (None, Some(ONE)), "the oldest goes first");
    assert_eq!(moved.find(REMEMBERED_MAX as u64, T0), Some(ONE));
}
