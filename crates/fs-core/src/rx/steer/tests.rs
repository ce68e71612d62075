use super::*;
use crate::time::Instant;
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;
use std::collections::HashSet;

/// Size of the kernel's default range, 32768 to 60999.
const DEFAULT_PORTS: usize = 28232;

fn secret(seed: u8) -> Secret {
    Secret([seed; 32])
}

#[test]
fn single_core_owns_every_port() {
    for cores in [0, 1] {
        let rfd = Rfd::new(cores, DEFAULT_PORTS, &secret(1));
        assert!((0..=u16::MAX).all(|port| rfd.core_of_port(port) == Some(CoreId(0))));
    }
}

#[test]
fn cores_share_the_ephemeral_range_evenly() {
    for seed in 0..50 {
        for cores in [2u16, 3, 4, 6, 8, 16, 60, 64] {
            let rfd = Rfd::new(cores, DEFAULT_PORTS, &secret(seed));
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
fn cores_share_few_ports() {
    for seed in 0..50 {
        for (cores, ports) in [(2u16, 2u16), (2, 100), (4, 100), (3, 64), (16, 100), (8, 2000), (16, 16)] {
            let rfd = Rfd::new(cores, usize::from(ports), &secret(seed));
            let first = 32768 + u16::from(seed) * 3;
            let mut shares = vec![0u16; usize::from(cores)];
            (first..first + ports)
                .filter_map(|port| rfd.core_of_port(port))
                .for_each(|core| shares[usize::from(core.0)] += 1);
            let fair = ports / cores.next_power_of_two();
            // Consecutive ports cover at least half of two powers of two.
            assert!(shares.iter().all(|share| *share >= fair.div_ceil(2)), "{cores} cores, {ports} ports: {shares:?}");
        }
    }
}

#[test]
fn bits_differ_by_secret() {
    let rfds: Vec<Rfd> = (0..200).map(|seed| Rfd::new(8, DEFAULT_PORTS, &secret(seed))).collect();
    // 3 of 12 bits in any order and one of 8 masks.
    let distinct: HashSet<_> = rfds.iter().map(|rfd| (rfd.bits, rfd.xor)).collect();
    assert!(distinct.len() > 190);
    let used: HashSet<u8> = rfds.iter().flat_map(|rfd| rfd.bits[..3].to_vec()).collect();
    assert_eq!(used.len(), PORT_BITS as usize);
    for rfd in &rfds {
        let bits: HashSet<u8> = rfd.bits[..3].iter().copied().collect();
        assert_eq!(bits.len(), 3, "a bit is used twice");
        assert_eq!(Rfd::new(8, DEFAULT_PORTS, &secret(3)).bits, rfds[3].bits, "all cores agree");
    }
}

#[test]
fn supports_any_number_of_cores() {
    for cores in [4095, 4096, 4097, 40_000, u16::MAX] {
        let rfd = Rfd::new(cores, DEFAULT_PORTS, &secret(9));
        let named: HashSet<u16> = (0..=u16::MAX).filter_map(|port| rfd.core_of_port(port)).map(|core| core.0).collect();
        assert_eq!(named.len(), usize::from(cores));
        assert!(named.iter().all(|core| *core < cores));
    }
}

#[test]
fn classes_follow_the_paper() {
    let rfd = Rfd::new(4, DEFAULT_PORTS, &secret(1));
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
        // The clock advances with the milliseconds, to within a tick, and so never goes back.
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
fn single_core_needs_no_bits() {
    let clock = TsClock::new(CoreId(0), 1);
    assert_eq!(clock.tick_ms(), 1);
    assert_eq!(clock.value(Instant::from_millis(1234), 77), 1311);
    assert_eq!(clock.owner(u32::MAX), CoreId(0));
}

#[test]
fn clocks_of_all_cores_agree_on_time() {
    // A connection that moves to another core continues with that core's clock: only the low bits
    // change.
    let at = |core, ms| TsClock::new(CoreId(core), 8).value(Instant::from_millis(ms), 0x1234_5678);
    for ms in 0..100 {
        assert_eq!(at(0, ms) & !7, at(5, ms) & !7);
        assert!(at(0, ms + 8).wrapping_sub(at(7, ms)) < 1 << 31);
    }
}
