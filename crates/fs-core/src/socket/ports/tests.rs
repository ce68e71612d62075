use super::*;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec;
use proptest::prelude::*;
use std::collections::HashSet;

const SECRET: Secret = Secret([42; 32]);

fn allocator(core: u16, cores: u16, ports: &PortSet) -> PortAllocator {
    PortAllocator::new(&SECRET, CoreId(core), Rfd::new(cores, 28232, &SECRET), ports)
}

fn default_range() -> PortSet {
    PortSet::from_range(32768..=60999)
}

fn local() -> IpAddr {
    [10, 0, 0, 1].into()
}

fn remote(host: u8) -> SocketAddr {
    (IpAddr::from([10, 0, 0, host]), 80).into()
}

proptest! {
    #[test]
    fn set_agrees_with_an_ordered_set(ops in proptest::collection::vec((0u8..4, any::<u16>(), 0u16..300), 1..60)) {
        let (mut set, mut model) = (PortSet::new(), BTreeSet::new());
        for (op, port, span) in ops {
            let range = port..=port.saturating_add(span);
            match op {
                0 => prop_assert_eq!(set.insert(port), model.insert(port)),
                1 => prop_assert_eq!(set.remove(port), model.remove(&port)),
                2 => { set.insert_range(range.clone()); model.extend(range) }
                _ => range.for_each(|port| assert_eq!(set.remove(port), model.remove(&port))),
            }
            prop_assert_eq!(set.contains(port), model.contains(&port));
            prop_assert_eq!(set.len(), model.len());
            prop_assert_eq!(set.is_empty(), model.is_empty());
        }
        prop_assert!(set.iter().eq(model.iter().copied()));
        prop_assert!(set.ranges().flatten().eq(model.iter().copied()));
        let ranges: Vec<_> = set.ranges().collect();
        prop_assert!(ranges.windows(2).all(|w| u32::from(*w[0].end()) + 1 < u32::from(*w[1].start())), "not maximal");
        prop_assert_eq!(model.iter().copied().collect::<PortSet>(), set);
    }
}

#[test]
fn set_includes_both_ends() {
    let mut all = PortSet::from_range(0..=u16::MAX);
    assert_eq!(all.len(), 65536);
    assert_eq!(all.ranges().collect::<Vec<_>>(), [0..=u16::MAX]);
    (1..u16::MAX).for_each(|port| assert!(all.remove(port)));
    assert_eq!(all.iter().collect::<Vec<_>>(), [0, u16::MAX]);
    assert_eq!(std::format!("{all:?}"), "{0..=0, 65535..=65535}");
    #[expect(clippy::reversed_empty_ranges, reason = "what it is about")]
    let reversed = PortSet::from_range(9..=3);
    assert!(reversed.is_empty() && PortSet::default().is_empty());
}

#[test]
fn ports_name_their_core_and_cores_share_all() {
    let (rfd, range) = (Rfd::new(4, 28232, &SECRET), default_range());
    let mut all = BTreeSet::new();
    for core in 0..4 {
        let mut allocator = allocator(core, 4, &range);
        all.extend(allocator.ports().iter().copied());
        for host in 0..200 {
            let port = allocator.pick(local(), remote(host), Choice::Named, |_| true).unwrap();
            assert_eq!(rfd.core_of_port(port), Some(CoreId(core)));
            assert!(range.contains(port));
        }
    }
    assert_eq!(all.len(), range.len(), "no port is lost, and none has two owners");
}

#[test]
fn uses_every_port_of_a_destination() {
    let mut allocator = allocator(0, 1, &default_range());
    let mut taken = HashSet::new();
    let mut tries = 0;
    while let Some(port) = allocator.pick(local(), remote(1), Choice::Named, |port| {
        tries += 1;
        !taken.contains(&port)
    }) {
        assert!(taken.insert(port));
    }
    // The noise skips one port in 17 of the first round, and the search is bounded: a few ports may
    // remain.
    assert!(taken.len() > 28232 * 98 / 100, "only {} ports", taken.len());
    assert!(tries < 28232 * 12, "{tries} tries");
    // Another destination can use all of them.
    assert!(allocator.pick(local(), remote(2), Choice::Named, |_| true).is_some());
}

/// 16 cores, to which the device steers replies by a hash that is not visible in the ports.
/// Together they can use nearly all ports for one destination, and none takes another's.
#[test]
fn cores_share_all_ports_by_device_hash() {
    let range = PortSet::from_range(20_000..=48_671);
    let owner = |port: u16| (u32::from(port).wrapping_mul(0x9e37_79b1) >> 28) as u16;
    let mut taken = HashSet::new();
    let mut worst = 0;
    for core in 0..16 {
        let mut allocator = allocator(core, 16, &range);
        let mut tries = 0;
        while let Some(port) = allocator.pick(local(), remote(1), Choice::All, |port| {
            tries += 1;
            owner(port) == core && !taken.contains(&port)
        }) {
            assert!(taken.insert(port));
            worst = worst.max(std::mem::take(&mut tries));
        }
    }
    assert!(taken.len() >= 28_000, "{} of {}", taken.len(), range.len());
    assert!(worst <= 2 * 16 * 512, "{worst} tries for one port");
}

#[test]
fn steady_churn_takes_one_try_and_reuses_late() {
    let mut allocator = allocator(1, 2, &default_range());
    let (mut open, mut order, mut tries) = (HashSet::new(), VecDeque::new(), 0);
    for _ in 0..100_000 {
        let port = allocator
            .pick(local(), remote(1), Choice::Named, |port| {
                tries += 1;
                !open.contains(&port)
            })
            .unwrap();
        open.insert(port);
        order.push_back(port);
        if order.len() > 10_000 {
            open.remove(&order.pop_front().unwrap());
        }
    }
    assert!(tries < 101_000, "{tries} tries for 100,000 ports");
}

#[test]
fn search_passes_run_of_used_ports() {
    let mut allocator = allocator(0, 1, &default_range());
    for _ in 0..1000 {
        // Only the last 5 % are free, after 26,820 consecutive ports in use.
        let port = allocator.pick(local(), remote(1), Choice::Named, |port| port > 59_588).unwrap();
        assert!(port > 59_588);
    }
    let mut tries = 0;
    assert_eq!(
        allocator.pick(local(), remote(1), Choice::Named, |_| {
            tries += 1;
            false
        }),
        None
    );
    assert_eq!(tries, TRIES_IN_ORDER + TRIES_AT_RANDOM);
}

#[test]
fn destinations_start_at_different_ports() {
    let mut allocator = allocator(0, 1, &default_range());
    let firsts: HashSet<u16> =
        (0..=255).map(|host| allocator.pick(local(), remote(host), Choice::Named, |_| true).unwrap()).collect();
    assert!(firsts.len() > 240, "only {} different ones of 256", firsts.len());
    let mut other = PortAllocator::new(&Secret([43; 32]), CoreId(0), Rfd::new(1, 28232, &SECRET), &default_range());
    let same = (0..=255)
        .filter(|host| {
            let pick = |allocator: &mut PortAllocator| allocator.pick(local(), remote(*host), Choice::Named, |_| true);
            pick(&mut allocator) == pick(&mut other)
        })
        .count();
    assert!(same < 8, "the secret decides");
}

#[test]
fn mapped_addresses_share_a_destination() {
    let mapped = "[::ffff:10.0.0.7]:80".parse().unwrap();
    let allocator = allocator(0, 1, &default_range());
    assert_eq!(allocator.hash(local(), remote(7)), allocator.hash(local(), mapped));
}

#[test]
fn few_ports_and_none() {
    let mut allocator = allocator(0, 1, &PortSet::from_iter([0, 5000, 5001]));
    assert_eq!(allocator.ports(), [5000, 5001], "port 0 is no port");
    let mut tried = vec![];
    assert_eq!(
        allocator.pick(local(), remote(1), Choice::Named, |port| {
            tried.push(port);
            false
        }),
        None
    );
    tried.sort_unstable();
    assert_eq!(tried, [5000, 5001], "each port once");
    allocator.set_ports(&PortSet::new());
    assert_eq!(allocator.pick(local(), remote(1), Choice::Named, |_| true), None);
    allocator.set_ports(&PortSet::from_range(7..=7));
    assert_eq!(allocator.pick(local(), remote(1), Choice::Named, |_| true), Some(7));
}
