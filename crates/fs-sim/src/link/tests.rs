use super::*;

fn run(config: LinkConfig, packets: usize) -> (Link, Vec<Delivery>) {
    let mut link = Link::new(config, Framing::Ip, Rng::new(1));
    let mut out = Vec::new();
    for i in 0..packets {
        link.send(Instant::from_micros(i as u64), &(i as u64).to_be_bytes(), &mut out);
    }
    (link, out)
}

#[test]
fn clean_link_only_delays() {
    let (_, out) = run(LinkConfig::clean(Duration::from_micros(5)), 10);
    let want = |i: u64| Delivery { at: Instant::from_micros(i + 5), bytes: i.to_be_bytes().to_vec() };
    assert_eq!(out, (0..10).map(want).collect::<Vec<_>>());
}

#[test]
fn applies_configured_rates() {
    let config = LinkConfig {
        loss_ppm: 50_000,
        duplicate_ppm: 20_000,
        corrupt_ppm: 10_000,
        reorder_ppm: 30_000,
        reorder_by: Duration::from_micros(50),
        ..LinkConfig::clean(Duration::from_micros(100))
    };
    let (link, out) = run(config, 100_000);
    assert!((4_500..5_500).contains(&link.stats.lost), "{:?}", link.stats);
    assert!((1_700..2_300).contains(&link.stats.duplicated), "{:?}", link.stats);
    assert!((800..1_200).contains(&link.stats.corrupted), "{:?}", link.stats);
    assert!((2_500..3_500).contains(&link.stats.reordered), "{:?}", link.stats);
    assert_eq!(out.len() as u64, 100_000 - link.stats.lost + link.stats.duplicated);
    assert!(out.windows(2).any(|w| w[1].at < w[0].at), "nothing was overtaken");
}

#[test]
fn slow_link_queues_then_drops() {
    // 8 bytes at 64 kb/s take 1 ms each; packets arrive every µs.
    let (link, out) = run(LinkConfig { rate_bps: 64_000, queue: 3, ..LinkConfig::clean(Duration::ZERO) }, 10);
    assert_eq!(out.iter().map(|d| d.at.as_millis()).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(link.stats.overflowed, 7);
}

#[test]
fn red_average_decays_when_idle() {
    // 8 bytes at 64 Mb/s take 1 µs each; packets arrive twice as fast, until the average is above
    // the drop threshold.
    let aqm = Aqm::Red { min: 1, max: 10, max_ppm: 0 };
    let config = LinkConfig { rate_bps: 64_000_000, queue: 100, aqm, ..LinkConfig::clean(Duration::ZERO) };
    let mut link = Link::new(config, Framing::Ip, Rng::new(1));
    let send = |link: &mut Link, at: Instant| {
        let mut out = Vec::new();
        link.send(at, &[0; 8], &mut out);
        out.len()
    };
    let passed: usize = (0..10_000).map(|i| send(&mut link, Instant::from_nanos(500 * i))).sum();
    assert!(passed < 9_000 && link.stats.dropped > 0, "{:?}", link.stats);
    let full = Instant::from_nanos(500 * 10_000);
    // One packet per second, as after timeouts: each finds the link idle.
    assert_eq!((1..5).map(|s| send(&mut link, full + Duration::from_secs(s))).sum::<usize>(), 4);
}

#[test]
fn checksum_detects_all_damage() {
    let sum = |b: &[u8]| {
        let s: u32 = b.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
        let s = (s & 0xffff) + (s >> 16);
        (s & 0xffff) + (s >> 16)
    };
    let mut rng = Rng::new(3);
    for i in 0..10_000u64 {
        let mut bytes = [0u8; 20];
        crate::pattern::fill(i, 0, &mut bytes);
        bytes[..4].copy_from_slice(&[0, 0, 0xff, 0xff]);
        let before = sum(&bytes);
        corrupt(&mut bytes, &mut rng);
        assert_ne!(before, sum(&bytes));
    }
}

/// Makes an IPv4 packet with this ECN field and 1000 bytes.
fn ip(ecn: u8) -> Vec<u8> {
    let mut packet = vec![0; 1000];
    packet[..20].copy_from_slice(&[0x45, ecn, 3, 0xe8, 0, 0, 0, 0, 64, 17, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2]);
    packet
}

/// Returns the deliveries of packets that arrive at twice a link's rate: 1000 bytes each half
/// millisecond at 8 Mb/s.
fn overload(aqm: Aqm, ecn: u8, packets: u64) -> (LinkStats, Vec<Delivery>) {
    let config = LinkConfig { aqm, ..LinkConfig::bottleneck(8_000_000, Duration::ZERO, 100_000) };
    let mut link = Link::new(config, Framing::Ip, Rng::new(1));
    let mut out = Vec::new();
    for i in 0..packets {
        link.send(Instant::from_micros(i * 500), &ip(ecn), &mut out);
    }
    (link.stats, out)
}

#[test]
fn threshold_marks_ecn_packets_and_drops_none() {
    let (stats, out) = overload(Aqm::Mark { at: 20 }, 2, 1000);
    assert_eq!(out.len(), 1000);
    // The queue grows by one packet for every two that arrive.
    assert!((955..=962).contains(&stats.marked), "{stats:?}");
    let last = &out[999].bytes;
    assert_eq!(last[1], 3);
    assert_eq!(wire::check(last, Framing::Ip, false, 1500), Ok(()), "the header's checksum");
    let (stats, out) = overload(Aqm::Mark { at: 20 }, 0, 1000);
    assert_eq!((stats.marked, stats.dropped, out.len()), (0, 0, 1000));
}

#[test]
fn red_begins_between_its_thresholds() {
    let red = Aqm::Red { min: 50, max: 150, max_ppm: 100_000 };
    let (stats, _) = overload(red, 0, 300);
    assert_eq!(stats.dropped, 0, "the average lags behind");
    let (stats, _) = overload(red, 0, 5000);
    assert!((500..2500).contains(&stats.dropped), "{stats:?}");
    let (stats, _) = overload(red, 1, 5000);
    assert!(stats.dropped == 0 && stats.marked > 500, "{stats:?}");
}

#[test]
fn codel_waits_an_interval_then_drops_faster() {
    let codel = Aqm::CoDel { target: Duration::from_millis(5), interval: Duration::from_millis(100) };
    // The first packet waits 5 ms when it leaves at 10 ms; the interval ends at 110 ms, at packet
    // 110.
    assert_eq!(overload(codel, 0, 105).0.dropped, 0);
    let (early, late) = (overload(codel, 0, 2000).0.dropped, overload(codel, 0, 4000).0.dropped);
    assert!(early > 5 && late > 2 * early, "{early} {late}");
}

#[test]
fn applies_configured_bursts() {
    // One packet in 1000 begins a burst of 10 on average: 1 % in total.
    let burst = Burst { begin_ppm: 1_000, lasts: Duration::from_micros(20), loss_ppm: 1_000_000 };
    let (link, out) = run(LinkConfig { burst: Some(burst), ..LinkConfig::clean(Duration::ZERO) }, 200_000);
    assert!((1_500..2_500).contains(&link.stats.burst_lost), "{:?}", link.stats);
    let gaps = out.windows(2).filter(|w| w[1].at.since(w[0].at) > Duration::from_micros(1)).count();
    assert!((140..260).contains(&gaps), "{gaps} bursts");
}

#[test]
fn queues_are_bounded_in_bytes_and_links_go_down() {
    let config = LinkConfig { queue_bytes: 24, ..LinkConfig::bottleneck(64_000, Duration::ZERO, 100) };
    let (link, out) = run(config, 10);
    assert_eq!((out.len(), link.stats.overflowed, link.stats.queue_max), (3, 7, 3));
    let (link, out) = run(LinkConfig { up: false, ..LinkConfig::clean(Duration::ZERO) }, 10);
    assert_eq!((out.len(), link.stats.down), (0, 10));
}
