use super::*;
use core::net::{Ipv4Addr, Ipv6Addr};
use proptest::collection::vec;
use proptest::prelude::*;
use smoltcp::wire::{IpProtocol, checksum as oracle};
use std::vec::Vec;

/// RFC 1071 section 4.1, word by word.
fn naive(bytes: &[u8]) -> u16 {
    let mut sum = 0u64;
    for word in bytes.chunks(2) {
        sum += u64::from(u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or(0)]));
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        vec(any::<u8>(), 0..300),
        // Many carries.
        vec(prop_oneof![Just(0xff), Just(0), any::<u8>()], 0..300),
        vec(any::<u8>(), 1400..9100),
    ]
}

#[test]
fn example_of_rfc_1071() {
    let sum = Sum::of(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
    assert_eq!(sum.fold(), 0xddf2);
    assert_eq!(sum.finish(), !0xddf2);
}

#[test]
fn extremes() {
    assert_eq!(Sum::ZERO.fold(), 0);
    assert_eq!(Sum::of(&[]).fold(), 0);
    assert_eq!(Sum::of(&[0; 100]).fold(), 0);
    assert_eq!(Sum::of(&[0xff; 65535]).fold(), naive(&[0xff; 65535]));
    assert_eq!(Sum(u64::MAX).fold(), 0xffff);
    assert_eq!(Sum(u64::MAX).add(Sum(u64::MAX)).fold(), 0xffff);
    assert_eq!(Sum(u64::MAX).add(Sum::word(1)).fold(), 1);
}

proptest! {
    #[test]
    fn equals_the_naive_sum(bytes in bytes()) {
        prop_assert_eq!(Sum::of(&bytes).fold(), naive(&bytes));
        prop_assert_eq!(Sum::of_short(&bytes).fold(), naive(&bytes));
        prop_assert_eq!(Sum::of(&bytes).fold(), oracle::data(&bytes));
    }

    #[test]
    fn folds_any_value_like_its_words(value in any::<u64>(), other in any::<u64>()) {
        prop_assert_eq!(Sum(value).fold(), naive(&value.to_ne_bytes()));
        let both = [value.to_ne_bytes(), other.to_ne_bytes()].concat();
        prop_assert_eq!(Sum(value).add(Sum(other)).fold(), naive(&both));
    }

    #[test]
    fn pieces_add_up_at_any_offset(bytes in bytes(), cuts in vec(any::<prop::sample::Index>(), 0..5)) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let mut running = RunningSum::default();
        for window in cuts.windows(2) {
            running.push(&bytes[window[0]..window[1]]);
        }
        prop_assert_eq!(running.sum().fold(), naive(&bytes));
    }

    #[test]
    fn swap_equals_shift_by_one(bytes in vec(any::<u8>(), 1..200)) {
        let moved = [&[0][..], &bytes].concat();
        prop_assert_eq!(Sum::of(&bytes).swap().fold(), naive(&moved));
        prop_assert_eq!(Sum::of(&bytes).swap_if(true).fold(), naive(&moved));
        prop_assert_eq!(Sum::of(&bytes).swap_if(false).fold(), naive(&bytes));
    }

    #[test]
    fn copy_and_sum_copies_all(src in bytes(), room in 0usize..9200) {
        let mut dst = std::vec![0xa5; room];
        let sum = copy_and_sum(&mut dst, &src);
        let len = room.min(src.len());
        prop_assert_eq!(&dst[..len], &src[..len]);
        prop_assert!(dst[len..].iter().all(|byte| *byte == 0xa5));
        prop_assert_eq!(sum.fold(), naive(&src[..len]));
    }

    #[test]
    fn pseudo_headers(src in any::<[u8; 16]>(), dst in any::<[u8; 16]>(), len in 0u32..=65535, tcp in any::<bool>()) {
        let proto = if tcp { IpProtocol::Tcp } else { IpProtocol::Udp };
        let v6 = oracle::pseudo_header_v6(&Ipv6Addr::from(src), &Ipv6Addr::from(dst), proto, len);
        prop_assert_eq!(Sum::pseudo_v6(&src, &dst, proto.into(), len).fold(), v6);
        let (src4, dst4) = (src[..4].try_into().unwrap(), dst[..4].try_into().unwrap());
        let (src4, dst4) = (u32::from_be_bytes(src4), u32::from_be_bytes(dst4));
        let v4 = oracle::pseudo_header_v4(&Ipv4Addr::from(src4), &Ipv4Addr::from(dst4), proto, len);
        prop_assert_eq!(Sum::pseudo_v4(src4, dst4, proto.into(), len).fold(), v4);
        let key = crate::flow::FlowKey::V4 { local: dst4, remote: src4, local_port: 1, remote_port: 2 };
        prop_assert_eq!(Sum::pseudo(&key, proto.into(), len).fold(), v4);
        let key = crate::flow::FlowKey::V6 { local: dst, remote: src, local_port: 1, remote_port: 2 };
        prop_assert_eq!(Sum::pseudo(&key, proto.into(), len).fold(), v6);
    }

    #[test]
    fn finished_checksum_is_valid(mut bytes in vec(any::<u8>(), 20..100)) {
        bytes[16..18].fill(0);
        let sum = Sum::of(&bytes).finish();
        bytes[16..18].copy_from_slice(&sum.to_be_bytes());
        prop_assert!(Sum::of(&bytes).is_valid());
        bytes[3] ^= 1;
        prop_assert!(!Sum::of(&bytes).is_valid());
    }
}
