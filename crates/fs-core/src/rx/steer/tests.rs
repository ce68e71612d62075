use super::*;
use crate::flow::FlowKey;
use crate::time::Instant;
use alloc::vec;
use alloc::vec::Vec;
use core::net::SocketAddr;
use proptest::prelude::*;
use std::collections::HashSet;

/// The key of Microsoft's "Verifying the RSS hash calculation".
const KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b,
    0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac,
    0x01, 0xfa,
];

/// Destination (local), source (remote), hash with ports; all of Microsoft's examples.
const VECTORS: [(&str, &str, u32); 8] = [
    ("161.142.100.80:1766", "66.9.149.187:2794", 0x51ccc178),
    ("65.69.140.83:4739", "199.92.111.2:14230", 0xc626b0ea),
    ("12.22.207.184:38024", "24.19.198.95:12898", 0x5c2b394a),
    ("209.142.163.6:2217", "38.27.205.30:48228", 0xafc7327f),
    ("202.188.127.2:1303", "153.39.163.191:44251", 0x10e828a2),
    ("[3ffe:2501:200:3::1]:1766", "[3ffe:2501:200:1fff::7]:2794", 0x40207d3d),
    ("[ff02::1]:4739", "[3ffe:501:8::260:97ff:fe40:efab]:14230", 0xdde51bbf),
    ("[fe80::200:f8ff:fe21:67cf]:38024", "[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251", 0x02d1feef),
];

fn flow(local: &str, remote: &str) -> FlowKey {
    let parse = |s: &str| s.parse::<SocketAddr>().unwrap();
    FlowKey::new(parse(local), parse(remote)).unwrap()
}

#[test]
fn toeplitz_gives_microsofts_vectors() {
    for (local, remote, expected) in VECTORS {
        assert_eq!(toeplitz(&KEY, &flow(local, remote)), expected, "{remote} -> {local}");
    }
}

#[test]
fn toeplitz_takes_any_key() {
    let (local, remote, _) = VECTORS[5];
    let flow = flow(local, remote);
    assert_eq!(toeplitz(&[], &flow), 0);
    let mut padded = [0; 40];
    padded[..10].copy_from_slice(&KEY[..10]);
    assert_eq!(toeplitz(&KEY[..10], &flow), toeplitz(&padded, &flow));
    let long: Vec<u8> = KEY.iter().copied().chain([0xff; 12]).collect();
    assert_eq!(toeplitz(&long, &flow), toeplitz(&KEY, &flow), "only the first 40 bytes count");
}

#[test]
fn queue_by_indirection() {
    let mut view = RssView { key: KEY.to_vec(), indirection: (0..128).map(|i| i % 3).collect() };
    for (local, remote, hash) in VECTORS {
        assert_eq!(view.queue_of(&flow(local, remote)), (hash % 128 % 3) as u16);
    }
    view.indirection = vec![];
    assert_eq!(view.queue_of(&flow(VECTORS[0].0, VECTORS[0].1)), 0);
}

fn secret(seed: u8) -> Secret {
    Secret([seed; 32])
}

#[test]
fn one_core_owns_every_port() {
    for cores in [0, 1] {
        let rfd = Rfd::new(cores, &secret(1));
        assert!((0..=u16::MAX).all(|port| rfd.core_of_port(port) == Some(CoreId(0))));
    }
}

#[test]
fn cores_share_the_ephemeral_range_evenly() {
    for seed in 0..50 {
        for cores in [2u16, 3, 4, 6, 8, 16, 60, 64] {
            let rfd = Rfd::new(cores, &secret(seed));
            let mut shares = vec![0u32; usize::from(cores)];
            for port in 32768..=60999 {
                if let Some(core) = rfd.core_of_port(port) {
                    shares[usize::from(core.0)] += 1;
                }
            }
            let fair = 28232 / u32::from(cores).next_power_of_two();
            let all_fair = shares.iter().all(|share| share.abs_diff(fair) * 100 <= fair * 16);
            assert!(all_fair, "{cores} cores, fair {fair}: {shares:?}");
        }
    }
}

#[test]
fn bits_differ_from_start_to_start() {
    let rfds: Vec<Rfd> = (0..200).map(|seed| Rfd::new(8, &secret(seed))).collect();
    // 3 of 12 bits in any order and one of 8 masks.
    let distinct: HashSet<_> = rfds.iter().map(|rfd| (rfd.bits, rfd.xor)).collect();
    assert!(distinct.len() > 190);
    let used: HashSet<u8> = rfds.iter().flat_map(|rfd| rfd.bits[..3].to_vec()).collect();
    assert_eq!(used.len(), PORT_BITS as usize);
    for rfd in &rfds {
        let bits: HashSet<u8> = rfd.bits[..3].iter().copied().collect();
        assert_eq!(bits.len(), 3, "a bit is used twice");
        assert_eq!(Rfd::new(8, &secret(3)).bits, rfds[3].bits, "all cores agree");
    }
}

#[test]
fn any_number_of_cores_works() {
    for cores in [4095, 4096, 4097, 40_000, u16::MAX] {
        let rfd = Rfd::new(cores, &secret(9));
        let named: HashSet<u16> = (0..=u16::MAX).filter_map(|port| rfd.core_of_port(port)).map(|core| core.0).collect();
        assert_eq!(named.len(), usize::from(cores));
        assert!(named.iter().all(|core| *core < cores));
    }
}

#[test]
fn classes_follow_the_paper() {
    let rfd = Rfd::new(4, &secret(1));
    let never = || -> bool { panic!("the listen table is asked only when ports do not tell") };
    assert_eq!(rfd.classify(40_000, 443, never), Class::Active);
    assert_eq!(rfd.classify(443, 40_000, never), Class::Passive);
    assert_eq!(rfd.classify(22, 1023, never), Class::Active, "the rules have an order");
    assert_eq!(rfd.classify(8080, 40_000, || true), Class::Passive);
    assert_eq!(rfd.classify(50_000, 8080, || false), Class::Active);
    assert_eq!(rfd.classify(1024, 1024, || true), Class::Passive);
}

proptest! {
    #[test]
    fn timestamps_name_their_owner(cores in 1u16..600, core in any::<u16>(), offset in any::<u32>(), ns in any::<u64>(), step in 0u64..1 << 50) {
        let core = CoreId(core % cores);
        let clock = TsClock::new(core, cores);
        let ns = ns >> 1;
        let (a, b) = (clock.value(Instant(ns), offset), clock.value(Instant(ns + step), offset));
        prop_assert_eq!(clock.owner(a), core);
        prop_assert_eq!(clock.owner(b), core);
        // It advances as the milliseconds do, to within a tick, and so never goes back.
        let advance = i64::from(b.wrapping_sub(a));
        prop_assert!(advance.abs_diff((step / 1_000_000) as u32 as i64) <= u64::from(clock.tick_ms()));
        if step / 1_000_000 >= u64::from(clock.tick_ms()) && step < 1 << 50 {
            prop_assert!(advance > 0);
        }
        if step < 24 * 86_400_000_000_000 {
            prop_assert!(b.wrapping_sub(a) < 1 << 31, "went back");
        }
        prop_assert!((1..=1024).contains(&clock.tick_ms()));
    }
}

#[test]
fn one_core_needs_no_bits() {
    let clock = TsClock::new(CoreId(0), 1);
    assert_eq!(clock.tick_ms(), 1);
    assert_eq!(clock.value(Instant::from_millis(1234), 77), 1311);
    assert_eq!(clock.owner(u32::MAX), CoreId(0));
}

#[test]
fn clocks_of_all_cores_agree_on_time() {
    // A connection that moves to another core goes on with that core's clock: only the low bits change.
    let at = |core, ms| TsClock::new(CoreId(core), 8).value(Instant::from_millis(ms), 0x1234_5678);
    for ms in 0..100 {
        assert_eq!(at(0, ms) & !7, at(5, ms) & !7);
        assert!(at(0, ms + 8).wrapping_sub(at(7, ms)) < 1 << 31);
    }
}
