use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use smoltcp::wire::TcpOption;
use std::vec::Vec;

fn timestamps_strategy() -> impl Strategy<Value = Timestamps> {
    any::<(u32, u32)>().prop_map(|(val, ecr)| Timestamps { val, ecr })
}

fn syn() -> impl Strategy<Value = SynOptions> {
    use proptest::option::of;
    (of(any::<u16>()), of(0u8..=14), any::<bool>(), of(timestamps_strategy())).prop_map(
        |(mss, window_scale, sack_permitted, timestamps)| SynOptions { mss, window_scale, sack_permitted, timestamps },
    )
}

/// Returns the number of words of a SYN's options, counted from the fields, with no more NOPs than
/// alignment requires. MSS one, SACK-permitted one or combined with timestamps, timestamps three,
/// window scale one.
fn words(syn: &SynOptions) -> usize {
    let sack_and_timestamps = match (syn.sack_permitted, syn.timestamps) {
        (false, None) => 0,
        (true, None) => 1,
        (_, Some(_)) => 3,
    };
    usize::from(syn.mss.is_some()) + sack_and_timestamps + usize::from(syn.window_scale.is_some())
}

/// Reads all options with smoltcp.
fn oracle(mut bytes: &[u8]) -> Vec<TcpOption<'_>> {
    let mut options = Vec::new();
    while let Ok((rest, option)) = TcpOption::parse(bytes) {
        if option == TcpOption::EndOfList {
            break;
        }
        options.push(option);
        bytes = rest;
    }
    options
}

#[test]
fn reads_linuxs_options() {
    let bytes = [2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];
    let syn = SynOptions {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some(Timestamps { val: 1, ecr: 0 }),
    };
    assert_eq!(parse_syn(&bytes), syn);
    let mut out = [0; 40];
    assert_eq!(emit_syn(&syn, &mut out), bytes.len());
    assert_eq!(out[..20], bytes);
    assert_eq!(emit_syn(&syn, &mut out[..19]), 0, "too small");
}

#[test]
fn keeps_options_before_malformed_one() {
    let mss = [2, 4, 5, 0xb4];
    for bad in
        [&[3u8, 0, 7][..], &[3, 1, 7], &[3, 4, 7], &[3], &[3, 2], &[8, 9, 0, 0, 0, 0, 0, 0, 0], &[254, 40], &[4, 3, 0]]
    {
        let options = parse_syn(&[&mss[..], bad].concat());
        assert_eq!(options, SynOptions { mss: Some(1460), ..SynOptions::default() }, "{bad:?}");
    }
    // Options after a malformed one are ignored.
    assert_eq!(parse_syn(&[3, 0, 7, 2, 4, 5, 0xb4]), SynOptions::default());
    // Unknown options are skipped; nothing follows the end.
    assert_eq!(parse_syn(&[254, 3, 9, 2, 4, 5, 0xb4]).mss, Some(1460));
    assert_eq!(parse_syn(&[0, 2, 4, 5, 0xb4]).mss, None);
    assert_eq!(parse_syn(&[3, 3, 200]).window_scale, Some(14));
}

#[test]
fn finds_timestamps_anywhere() {
    let ts = Timestamps { val: 0x0102_0304, ecr: 0x0506_0708 };
    let option = [8, 10, 1, 2, 3, 4, 5, 6, 7, 8];
    assert_eq!(timestamps(&[&[1, 1], &option[..]].concat()), Some(ts));
    assert_eq!(timestamps(&option), Some(ts));
    assert_eq!(timestamps(&[&[1, 1, 5, 10, 0, 0, 0, 0, 0, 0, 0, 0], &option[..], &[0, 0]].concat()), Some(ts));
    assert_eq!(timestamps(&[]), None);
    assert_eq!(timestamps(&[1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7]), None);
    assert_eq!(timestamps(&[1, 1, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8]), None);
}

#[test]
fn writes_sack_blocks_that_fit() {
    let blocks: Vec<_> = (0..5u32).map(|n| (SeqNum(n * 100), SeqNum(n * 100 + 10))).collect();
    let mut out = [0; 40];
    assert_eq!(emit_sack(&blocks, &mut out), 36);
    assert_eq!(sack_blocks(&out[..36]).as_slice(), &blocks[..4]);
    assert_eq!(emit_sack(&blocks, &mut out[..28]), 28, "beside timestamps");
    assert_eq!(sack_blocks(&out[..28]).as_slice(), &blocks[..3]);
    assert_eq!(emit_sack(&blocks, &mut out[..11]), 0);
    assert_eq!(emit_sack(&[], &mut out), 0);
    assert!(sack_blocks(&[5, 9, 0, 0, 0, 1, 0, 0, 0]).is_empty());
    let mut full = SackBlocks::EMPTY;
    assert!((0..4).all(|n| full.push(SeqNum(n), SeqNum(n + 1))) && !full.push(SeqNum(9), SeqNum(10)));
    assert_eq!(full.len(), 4);
}

proptest! {
    #[test]
    fn reads_what_it_writes_as_smoltcp_does(syn in syn()) {
        let mut out = [0; 40];
        let len = emit_syn(&syn, &mut out);
        prop_assert_eq!(len, 4 * words(&syn));
        prop_assert_eq!(parse_syn(&out[..len]), syn);
        prop_assert_eq!(timestamps(&out[..len]), syn.timestamps);
        let mut expected = Vec::new();
        expected.extend(syn.mss.map(TcpOption::MaxSegmentSize));
        expected.extend(syn.sack_permitted.then_some(TcpOption::SackPermitted));
        expected.extend(syn.timestamps.map(|ts| TcpOption::TimeStamp { tsval: ts.val, tsecr: ts.ecr }));
        expected.extend(syn.window_scale.map(TcpOption::WindowScale));
        let mut read = oracle(&out[..len]);
        read.retain(|option| *option != TcpOption::NoOperation);
        prop_assert_eq!(read, expected);
    }

    #[test]
    fn timestamps_and_sack_together(ts in timestamps_strategy(), blocks in vec(any::<(u32, u32)>(), 0..6)) {
        let blocks: Vec<_> = blocks.into_iter().map(|(start, end)| (SeqNum(start), SeqNum(end))).collect();
        let mut out = [0; 40];
        let ts_len = emit_timestamps(ts, &mut out);
        prop_assert_eq!(ts_len, TIMESTAMPS_LEN);
        let len = ts_len + emit_sack(&blocks, &mut out[ts_len..]);
        prop_assert!(len.is_multiple_of(4));
        prop_assert_eq!(timestamps(&out[..len]), Some(ts));
        let expected = &blocks[..blocks.len().min(3)];
        let read = sack_blocks(&out[..len]);
        prop_assert_eq!(read.as_slice(), expected);
        let theirs = oracle(&out[..len]).into_iter().find_map(|option| match option {
            TcpOption::SackRange(ranges) => Some(ranges),
            _ => None,
        });
        let theirs: Vec<_> = theirs.into_iter().flatten().flatten().map(|(a, b)| (SeqNum(a), SeqNum(b))).collect();
        prop_assert_eq!(theirs, expected);
    }

    #[test]
    fn any_bytes(bytes in vec(prop_oneof![0u8..12, any::<u8>()], 0..=40)) {
        let syn = parse_syn(&bytes);
        prop_assert!(syn.window_scale.is_none_or(|shift| shift <= 14));
        prop_assert!(sack_blocks(&bytes).len() <= 4);
        let slow = if bytes.is_empty() { None } else { timestamps_slow(&bytes) };
        prop_assert_eq!(timestamps(&bytes), slow, "the fast path reads as the slow one");
    }
}
