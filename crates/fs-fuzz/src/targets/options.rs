//! TCP options: parsers accept any input; parsers read what writers write; parsers agree with a
//! slow parser that is written from RFC 9293 3.1 alone.

use crate::input::Input;
use fs_core::internals::SeqNum;
use fs_core::internals::{
    SynOptions, Timestamps, emit_sack, emit_syn, emit_timestamps, parse_syn, sack_blocks, timestamps,
};

/// The target. See the module.
pub fn options(data: &[u8]) -> u64 {
    let mut input = Input::new(data);
    write_and_read(&mut input);
    let raw = input.bytes(60);
    let (syn, ts, sack) = (parse_syn(raw), timestamps(raw), sack_blocks(raw));
    let model = Model::read(raw);
    assert_eq!(ts, model.timestamps, "timestamps of {raw:02x?}");
    assert_eq!(sack.as_slice(), model.sack.as_slice(), "SACK blocks of {raw:02x?}");
    assert_eq!(facts(&syn), facts(&model.syn), "SYN options of {raw:02x?}");
    assert!(syn.window_scale.is_none_or(|s| s <= 14), "RFC 7323 2.3");
    u64::from(syn.mss.is_some())
        | u64::from(syn.window_scale.is_some()) << 1
        | u64::from(syn.sack_permitted) << 2
        | u64::from(ts.is_some()) << 3
        | (sack.len() as u64) << 4
        | (raw.len() as u64) << 8
        | (model.kinds as u64) << 16
}

fn write_and_read(input: &mut Input<'_>) {
    let bits = input.byte();
    let syn = SynOptions {
        mss: (bits & 1 != 0).then(|| input.word()),
        window_scale: (bits & 2 != 0).then(|| input.byte() % 15),
        sack_permitted: bits & 4 != 0,
        timestamps: (bits & 8 != 0).then(|| Timestamps { val: input.long(), ecr: input.long() }),
    };
    let mut out = [0xee; 40];
    let room = 40 - usize::from(bits >> 4) * 2;
    let n = emit_syn(&syn, &mut out[..room]);
    let expected = syn_len(&syn);
    if expected <= room {
        assert_eq!(n, expected, "no more NOPs than the alignment takes");
        assert_eq!(facts(&parse_syn(&out[..n])), facts(&syn), "a SYN's options come back");
    } else {
        assert_eq!(n, 0, "what does not fit is not written");
    }
    assert!(out[n..].iter().all(|&b| b == 0xee), "nothing is written beyond the length");
    let count = input.below(6);
    let blocks: Vec<_> = (0..count).map(|_| (SeqNum(input.long()), SeqNum(input.long()))).collect();
    let pair = Timestamps { val: input.long(), ecr: input.long() };
    let mut out = [0xee; 40];
    let at = if bits & 8 != 0 { emit_timestamps(pair, &mut out) } else { 0 };
    let n = at + emit_sack(&blocks, &mut out[at..]);
    let fits = count.min(if at > 0 { 3 } else { 4 });
    assert_eq!(sack_blocks(&out[..n]).as_slice(), &blocks[..fits], "SACK blocks come back");
    assert_eq!(timestamps(&out[..n]), (at > 0).then_some(pair), "timestamps come back");
}

/// Returns the length of a SYN's options as the engine writes them, computed from the fields: each
/// option takes whole words, and SACK-permitted shares a word with timestamps.
fn syn_len(syn: &SynOptions) -> usize {
    let one = |is_there: bool| if is_there { 4 } else { 0 };
    let sack_and_timestamps = if syn.timestamps.is_some() { 12 } else { one(syn.sack_permitted) };
    one(syn.mss.is_some()) + sack_and_timestamps + one(syn.window_scale.is_some())
}

/// Returns the fields that the slow parser also reads.
fn facts(syn: &SynOptions) -> (Option<u16>, Option<u8>, bool, Option<Timestamps>) {
    (syn.mss, syn.window_scale, syn.sack_permitted, syn.timestamps)
}

/// The slow parser.
#[derive(Default)]
struct Model {
    syn: SynOptions,
    timestamps: Option<Timestamps>,
    sack: Vec<(SeqNum, SeqNum)>,
    kinds: u8,
}

impl Model {
    fn read(bytes: &[u8]) -> Self {
        let mut model = Self::default();
        let list = split(bytes);
        let long = |b: &[u8]| u32::from_be_bytes([b[0], b[1], b[2], b[3]]);
        let pair = |b: &[u8]| Timestamps { val: long(b), ecr: long(&b[4..]) };
        model.timestamps = list.iter().find(|(kind, _)| *kind == 8).filter(|(_, d)| d.len() == 8).map(|(_, d)| pair(d));
        if let Some((_, d)) = list.iter().find(|(kind, _)| *kind == 5) {
            model.sack = d.chunks_exact(8).take(4).map(|b| (SeqNum(long(b)), SeqNum(long(&b[4..])))).collect();
        }
        for (kind, data) in list {
            model.kinds = model.kinds.wrapping_add(1 << (kind % 8));
            match (kind, data.len()) {
                (2, 2) => model.syn.mss = Some(u16::from_be_bytes([data[0], data[1]])),
                (3, 1) => model.syn.window_scale = Some(data[0].min(14)),
                (4, 0) => model.syn.sack_permitted = true,
                (8, 8) => model.syn.timestamps = Some(pair(data)),
                // A length that contradicts its kind ends the walk.
                (2..=4 | 8, _) => break,
                _ => {}
            }
        }
        model
    }
}

/// Returns the well-formed options up to the first malformed one.
fn split(mut bytes: &[u8]) -> Vec<(u8, &[u8])> {
    let mut list = Vec::new();
    loop {
        match bytes {
            [] | [0, ..] => return list,
            [1, rest @ ..] => bytes = rest,
            [kind, len, ..] if *len >= 2 && usize::from(*len) <= bytes.len() => {
                list.push((*kind, &bytes[2..usize::from(*len)]));
                bytes = &bytes[usize::from(*len)..];
            }
            _ => return list,
        }
    }
}
