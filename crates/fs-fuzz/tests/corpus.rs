//! Every input of the corpora in the tree passes, including those that once failed, as do a few
//! hundred new ones, which are the same in every run.

use fs_fuzz::TARGETS;
use std::path::Path;

/// SplitMix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[test]
fn corpora_pass() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for target in TARGETS {
        let mut paths: Vec<_> =
            std::fs::read_dir(root.join(target.name)).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        assert!(!paths.is_empty(), "{} has a corpus", target.name);
        for path in paths {
            println!("{}", path.display());
            (target.run)(&std::fs::read(path).unwrap());
        }
    }
}

#[test]
fn random_inputs_pass() {
    let mut state = 7;
    for target in TARGETS {
        for round in 0..500 {
            let len = random(&mut state) as usize % target.len_max;
            let mask = if round % 2 == 0 { 0xff } else { 0x0f };
            let input: Vec<u8> = (0..len).map(|_| random(&mut state) as u8 & mask).collect();
            let run = std::panic::catch_unwind(|| (target.run)(&input));
            assert!(run.is_ok(), "{} fails on {input:02x?}", target.name);
        }
    }
}
