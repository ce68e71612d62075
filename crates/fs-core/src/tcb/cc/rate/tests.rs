use super::*;

const MSS: u32 = 1000;

/// A connection whose segments are sent and acknowledged by hand.
struct Line {
    rate: Rate,
    out: alloc::vec::Vec<Sent>,
    next: u32,
}

impl Line {
    fn new() -> Self {
        Self { rate: Rate::new(SeqNum(0), 0), out: alloc::vec::Vec::new(), next: 0 }
    }

    fn send(&mut self, now_us: u32) {
        let flight = (self.out.len() as u32 + 1) * MSS;
        let stamp = self.rate.on_sent(now_us, flight, MSS);
        self.out.push(Sent { stamp, sent_us: now_us, seq: SeqNum(self.next), span: MSS, again: false });
        self.next += MSS;
    }

    /// Acknowledges the oldest `n` segments.
    fn ack(&mut self, now_us: u32, n: usize, min_rtt_us: u32) -> RateSample {
        self.rate.begin(now_us);
        self.rate.forget_start(self.out[0].seq);
        for sent in self.out.drain(..n) {
            self.rate.on_delivered(&sent);
        }
        self.rate.generate(min_rtt_us)
    }
}

#[test]
fn measures_rate_of_steady_flow() {
    let mut line = Line::new();
    for i in 0..100 {
        line.send(i * 1000);
        if i >= 10 {
            let sample = line.ack(i * 1000, 1, 0);
            assert_eq!(sample.rtt_us, Some(10_000));
            // Ten segments in ten milliseconds; the first samples begin when nothing was in flight.
            if i > 20 {
                assert_eq!((sample.rate, sample.delivered, sample.in_flight), (1_000_000, 11 * MSS, 11 * MSS));
                assert!(!sample.limited && sample.lost == 0 && sample.newly_acked == MSS);
            }
        }
    }
}

/// ACKs that arrive all at once must not raise the rate above the sending rate.
#[test]
fn compressed_acks_do_not_inflate() {
    let mut line = Line::new();
    for i in 0..10 {
        line.send(i * 1000);
    }
    line.ack(10_000, 1, 0);
    for i in 10..20 {
        line.send(i * 1000);
    }
    // Ten ACKs within 10 µs.
    let mut best = 0;
    for i in 0..10 {
        best = best.max(line.ack(30_000 + i, 1, 0).rate);
    }
    assert!(best <= 1_100_000, "{best}");
}

#[test]
fn stretch_ack_counts_all_and_samples_newest() {
    let mut line = Line::new();
    for i in 0..10 {
        line.send(i * 1000);
    }
    let sample = line.ack(20_000, 10, 0);
    assert_eq!((sample.newly_acked, sample.delivered, sample.rtt_us), (10 * MSS, 10 * MSS, Some(11_000)));
    // 10 segments in the 20 ms since the first was sent.
    assert_eq!(sample.rate, 500_000);
}

/// Covers segments sent while the application was limiting, until all of them are delivered.
#[test]
fn marks_app_limited_samples() {
    let mut line = Line::new();
    line.send(0);
    line.rate.mark_app_limited(MSS);
    line.send(1000);
    assert!(!line.ack(10_000, 1, 0).limited, "sent before");
    assert!(line.rate.is_limited());
    assert!(line.ack(11_000, 1, 0).limited);
    assert!(!line.rate.is_limited(), "the bubble is gone");
    line.send(12_000);
    assert!(!line.ack(22_000, 1, 0).limited);
}

/// Samples behind a hole in the peer's window are limited, too; but TCP_INFO, as on Linux, reports
/// only the application's limit.
#[test]
fn window_limit_is_hidden_from_tcp_info() {
    for (mark, told) in [(Rate::mark_app_limited as fn(&mut Rate, u32), true), (Rate::mark_window_limited, false)] {
        let mut line = Line::new();
        mark(&mut line.rate, 0);
        line.send(0);
        assert!(line.rate.is_limited());
        assert!(line.ack(10_000, 1, 0).limited);
        assert!(!line.rate.is_limited());
        assert_eq!(line.rate.latest, (u64::from(MSS) * 100, told));
    }
}

#[test]
fn short_interval_yields_no_sample() {
    let mut line = Line::new();
    line.send(0);
    let sample = line.ack(900, 1, 1000);
    assert_eq!((sample.rate, sample.newly_acked), (0, MSS));
    line.send(1000);
    assert!(line.ack(2000, 1, 1000).rate > 0);
}

#[test]
fn retransmission_yields_no_round_trip() {
    let mut line = Line::new();
    line.send(0);
    line.out[0].again = true;
    let sample = line.ack(5000, 1, 0);
    assert_eq!((sample.rtt_us, sample.newly_acked), (None, MSS));
    assert!(sample.rate > 0, "the rate of delivery is none the worse");
}

#[test]
fn reports_losses_since_transmission() {
    let mut line = Line::new();
    for i in 0..4 {
        line.send(i);
    }
    line.rate.begin(10_000);
    let lost = line.out.remove(0);
    assert!(line.rate.on_lost(&lost));
    let sent = line.out.remove(0);
    line.rate.on_delivered(&sent);
    let sample = line.rate.generate(0);
    assert_eq!((sample.lost, sample.newly_lost, sample.newly_acked), (MSS, MSS, MSS));
    line.send(11_000);
    let sample = line.ack(20_000, 3, 0);
    assert_eq!((sample.lost, sample.newly_lost), (0, 0), "the newest was sent after the loss");
}

/// The algorithm may be selected while segments without stamps are in flight.
#[test]
fn counts_segments_without_stamps() {
    let mut rate = Rate::new(SeqNum(5000), 0);
    rate.begin(100);
    rate.forget_start(SeqNum(4000));
    let old = Sent { stamp: Stamp::default(), sent_us: 50, seq: SeqNum(4000), span: MSS, again: false };
    rate.on_delivered(&old);
    assert!(!rate.on_lost(&old));
    let sample = rate.generate(0);
    assert_eq!((sample.newly_acked, sample.prior_delivered, sample.rate), (MSS, None, 0));
}

/// The number at which the sampler began is 2 GiB ago: it must not appear to lie ahead.
#[test]
fn start_is_forgotten() {
    let mut line = Line::new();
    line.send(0);
    line.ack(10_000, 1, 0);
    line.next += 1 << 31;
    line.send(11_000);
    let sample = line.ack(21_000, 1, 0);
    assert_eq!((sample.rtt_us, sample.prior_delivered), (Some(10_000), Some(MSS)));
    line.send(22_000);
    let sent = line.out.remove(0);
    assert!(line.rate.on_lost(&sent));
}

#[test]
fn counters_wrap() {
    let mut line = Line::new();
    line.rate.delivered = u32::MAX - 2 * MSS;
    let base = u32::MAX - 4000;
    for i in 0..10u32 {
        line.send(base.wrapping_add(i * 1000));
    }
    let sample = line.ack(base.wrapping_add(10_000), 5, 0);
    assert_eq!((sample.delivered, sample.rtt_us), (5 * MSS, Some(6000)));
    assert_eq!(sample.rate, 500_000);
}
