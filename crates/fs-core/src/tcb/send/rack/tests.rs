use super::*;

#[test]
fn reordering_window_adapts() {
    let mut rack = Rack::default();
    rack.sample(4000, 0);
    assert_eq!(rack.reordering_window(8000, false, false), 1000, "a quarter of the smallest round trip");
    assert_eq!(rack.reordering_window(8000, false, true), 0, "DupThresh holds until reordering is seen");
    assert_eq!(rack.reordering_window(8000, true, false), 0);
    rack.reordering_seen = true;
    assert_eq!(rack.reordering_window(8000, true, true), 1000);
    rack.duplicate(SeqNum(0), SeqNum(100));
    rack.duplicate(SeqNum(50), SeqNum(200));
    assert_eq!(rack.reordering_window(8000, false, false), 2000, "once a round trip");
    rack.duplicate(SeqNum(100), SeqNum(200));
    assert_eq!(rack.reordering_window(8000, false, false), 3000);
    assert_eq!(rack.reordering_window(2500, false, false), 2500, "at most the smoothed round trip");
    for _ in 0..PERSIST - 1 {
        rack.recovered();
    }
    assert_eq!(rack.reordering_window(8000, false, false), 3000);
    rack.recovered();
    assert_eq!(rack.reordering_window(8000, false, false), 1000, "forgotten after sixteen recoveries");
}

#[test]
fn early_ack_is_for_the_original() {
    let mut rack = Rack::default();
    rack.sample(1000, 0);
    rack.delivered(5000, 4500, SeqNum(10), true);
    assert_eq!(rack.latest, None);
    rack.delivered(5000, 3500, SeqNum(10), true);
    assert_eq!((rack.latest, rack.rtt_us), (Some((3500, SeqNum(10))), 1500));
    rack.delivered(6000, 3000, SeqNum(20), false);
    assert_eq!(rack.latest, Some((3500, SeqNum(10))), "sent earlier");
    rack.delivered(6000, 3500, SeqNum(20), false);
    assert_eq!(rack.latest, Some((3500, SeqNum(20))), "in the same microsecond, the order is the sequence's");
}

#[test]
fn smallest_round_trip_expires() {
    let mut rack = Rack::default();
    rack.sample(1000, 0);
    rack.sample(5000, 1);
    assert_eq!(rack.min_rtt_us(), 1000);
    rack.sample(5000, MIN_RTT_PERIOD_US + 1);
    rack.sample(6000, MIN_RTT_PERIOD_US + 2);
    assert_eq!(rack.min_rtt_us(), 1000);
    rack.sample(6000, 2 * MIN_RTT_PERIOD_US + 2);
    assert_eq!(rack.min_rtt_us(), 5000);
}
