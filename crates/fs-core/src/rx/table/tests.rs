use super::*;
use crate::config::Secret;
use crate::flow::{FlowKey, Protocol};
use alloc::vec;
use alloc::vec::Vec;
use core::hash::Hasher;
use proptest::prelude::*;
use siphasher::sip::SipHasher13;
use std::collections::{HashMap, HashSet};

/// Spreads small numbers over 64 bits.
fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ x >> 32
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u16, u32),
    Remove(u16, usize),
    Replace(u16, usize, u32),
    Find(u16, u32),
}

fn op() -> impl Strategy<Value = Op> {
    // Few keys, so that several values share a hash and removals find entries.
    let key = 0u16..64;
    prop_oneof![
        4 => (key.clone(), 0u32..1000).prop_map(|(k, v)| Op::Insert(k, v)),
        4 => (key.clone(), any::<usize>()).prop_map(|(k, i)| Op::Remove(k, i)),
        1 => (key.clone(), any::<usize>(), 0u32..1000).prop_map(|(k, i, v)| Op::Replace(k, i, v)),
        2 => (key, 0u32..1000).prop_map(|(k, v)| Op::Find(k, v)),
    ]
}

/// Checks that all overflow counts match the entries' positions.
fn check_overflow(table: &FlowTable, hashes: impl Iterator<Item = (u64, u32)>) {
    let mut passed = vec![0u64; table.buckets];
    for (hash, value) in hashes {
        let (found, _) = table.position(hash, |v| v == value).expect("an entry is lost");
        let mut index = table.home(hash);
        while index != found {
            passed[index] += 1;
            index = table.after(index);
        }
    }
    // Entries with equal hash and value are all counted at the first one's position, so the count
    // is a lower bound.
    for (index, count) in passed.into_iter().enumerate() {
        assert!(table.bucket(index)[META] >> 32 >= count);
    }
}

/// Values identify their keys, as connections do. To the table, hashes that share home and tag are
/// the same.
fn run_model(capacity: usize, spread: impl Fn(u16) -> u64, ops: Vec<Op>) {
    let mut table = FlowTable::with_capacity(capacity);
    let mut model: HashMap<u64, Vec<u32>> = HashMap::new();
    let mut len = 0;
    for op in ops {
        match op {
            Op::Insert(key, value) => {
                let value = u32::from(key) << 16 | value;
                let hash = spread(key);
                let full = len == capacity;
                assert_eq!(table.insert(hash, value), if full { Err(Full) } else { Ok(()) });
                if !full {
                    model.entry(hash).or_default().push(value);
                    len += 1;
                }
            }
            Op::Remove(key, pick) => {
                let hash = spread(key);
                let values = model.entry(hash).or_default();
                if values.is_empty() {
                    assert!(!table.remove(hash, u32::from(key) << 16));
                } else {
                    let value = values.swap_remove(pick % values.len());
                    assert!(table.remove(hash, value));
                    len -= 1;
                }
            }
            Op::Replace(key, pick, new) => {
                let new = u32::from(key) << 16 | new;
                let hash = spread(key);
                let values = model.entry(hash).or_default();
                if values.is_empty() {
                    assert!(!table.replace(hash, u32::from(key) << 16, new));
                } else {
                    let pick = pick % values.len();
                    assert!(table.replace(hash, values[pick], new));
                    values[pick] = new;
                }
            }
            Op::Find(key, value) => {
                let value = u32::from(key) << 16 | value;
                let hash = spread(key);
                let there = model.get(&hash).is_some_and(|values| values.contains(&value));
                assert_eq!(table.find(hash, |v| v == value), there.then_some(value));
                let home = table.home(hash);
                let mut at_home = (0..SLOTS).filter(|&slot| tag_at(table.bucket(home), slot) == tag_of(hash));
                assert_eq!(table.candidate(hash).is_some(), at_home.next().is_some());
                let may_be_there = table.candidate(hash).is_some() || table.goes_on(hash);
                assert!(may_be_there || !model.contains_key(&hash) || model[&hash].is_empty());
            }
        }
        assert_eq!(table.len(), len);
    }
    let mut values: Vec<u32> = table.values().collect();
    let mut expected: Vec<u32> = model.values().flatten().copied().collect();
    values.sort_unstable();
    expected.sort_unstable();
    assert_eq!(values, expected);
    check_overflow(&table, model.iter().flat_map(|(hash, values)| values.iter().map(|v| (*hash, *v))));
    // An emptied table is like a new one: no tombstone and no count remains.
    for (hash, values) in model {
        for value in values {
            assert!(table.remove(hash, value));
        }
    }
    assert_eq!(table.len(), 0);
    assert!(table.words.iter().all(|word| *word == 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn agrees_with_a_map(capacity in 1usize..200, ops in proptest::collection::vec(op(), 1..600)) {
        run_model(capacity, |key| mix(key.into()), ops);
    }

    /// All entries are in a few chains, with equal tags.
    #[test]
    fn agrees_with_a_map_when_hashes_collide(capacity in 1usize..200, ops in proptest::collection::vec(op(), 1..600)) {
        run_model(capacity, |key| u64::from(key % 3) << 48 | u64::from(key / 3 % 3 * 0x7fff) << 16, ops);
    }

    #[test]
    fn zero_lanes_are_exact(x in any::<u64>(), zeroes in 0u8..16) {
        let x = (0..4).filter(|lane| zeroes >> lane & 1 == 1).fold(x, |x, lane| x & !(0xffff << (lane * 16)));
        let expected = (0..4).filter(|lane| x >> (lane * 16) & 0xffff == 0).fold(0, |m, lane| m | 0x8000 << (lane * 16));
        prop_assert_eq!(zero_lanes(x), expected);
    }

    #[test]
    fn hashes_are_siphash_1_3(secret in any::<[u8; 32]>(), a in any::<[u8; 16]>(), b in any::<[u8; 16]>(), ports in any::<(u16, u16)>()) {
        let secret = Secret(secret);
        let (k0, k1) = derive_key(&secret, b"flow table");
        let hasher = FlowHasher::new(&secret);
        let (local_port, remote_port) = ports;
        let reference = |local: &[u8], remote: &[u8], protocol: u8| {
            let mut sip = SipHasher13::new_with_keys(k0, k1);
            sip.write(local);
            sip.write(remote);
            sip.write(&local_port.to_be_bytes());
            sip.write(&remote_port.to_be_bytes());
            sip.write(&[protocol]);
            sip.finish()
        };
        let v4 = |x: &[u8; 16]| u32::from_be_bytes([x[0], x[1], x[2], x[3]]);
        let four = FlowKey::V4 { local: v4(&a), remote: v4(&b), local_port, remote_port };
        let six = FlowKey::V6 { local: a, remote: b, local_port, remote_port };
        for (protocol, number) in [(Protocol::Tcp, 6), (Protocol::Udp, 17)] {
            prop_assert_eq!(hasher.hash(protocol, &four), reference(&a[..4], &b[..4], number));
            prop_assert_eq!(hasher.hash(protocol, &six), reference(&a, &b, number));
        }
    }
}

#[test]
fn churn_leaves_no_trace() {
    let capacity = 7_000;
    let mut table = FlowTable::with_capacity(capacity);
    let (mut next, mut oldest) = (0u64, 0u64);
    let passed = |table: &FlowTable| (0..table.buckets).map(|i| table.bucket(i)[META] >> 32).sum::<u64>();
    while next < capacity as u64 {
        table.insert(mix(next), next as u32).unwrap();
        next += 1;
    }
    assert_eq!(table.insert(mix(next), next as u32), Err(Full));
    let at_first = passed(&table);
    for round in 0..100 * capacity {
        assert!(table.remove(mix(oldest), oldest as u32));
        oldest += 1;
        table.insert(mix(next), next as u32).unwrap();
        next += 1;
        if round % 997 == 0 {
            let probe = oldest + round as u64 % capacity as u64;
            assert_eq!(table.find(mix(probe), |v| v == probe as u32), Some(probe as u32));
            assert_eq!(table.find(mix(oldest - 1), |v| v == (oldest - 1) as u32), None);
        }
    }
    // An entry that is inserted into a full table finds its home full more often than one inserted
    // while the table was filled. The rate must be the same after a hundred generations as after
    // two.
    let count = passed(&table);
    assert!(at_first * 100 < capacity as u64, "{at_first} of {capacity} entries away from home");
    assert!(count * 100 < capacity as u64 * 6, "{count} of {capacity} entries away from home");
}

#[test]
fn buckets_are_cache_lines() {
    for n in [0, 1, 7, 8, 1000, 100_000] {
        let table = FlowTable::with_capacity(n);
        assert_eq!(table.bucket(0).as_ptr() as usize % 64, 0);
        assert!(table.start + table.buckets * WORDS <= table.words.len());
        assert!(table.capacity() <= table.buckets * LOAD);
    }
}

#[test]
fn debug_output_hides_the_key() {
    let hasher = FlowHasher::new(&Secret([7; 32]));
    assert_eq!(std::format!("{hasher:?}"), "FlowHasher(..)");
    assert_eq!(std::format!("{:?}", FlowTable::with_capacity(8)), "FlowTable { len: 0, capacity: 8, buckets: 2 }");
}

#[test]
fn keys_depend_on_label_and_secret() {
    let mut seen = HashSet::new();
    assert!(seen.insert(derive_key(&Secret([0; 32]), b"a")));
    assert!(seen.insert(derive_key(&Secret([0; 32]), b"b")));
    assert!(seen.insert(derive_key(&Secret([0; 32]), b"ab")));
    for i in 0..32 {
        let mut bytes = [0; 32];
        bytes[i] = 1;
        let (k0, k1) = derive_key(&Secret(bytes), b"a");
        assert_ne!(k0, k1);
        assert!(seen.insert((k0, k1)));
    }
}
