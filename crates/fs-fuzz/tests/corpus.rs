//! Every input of the corpora in the tree passes, including those that once failed, as do a few
//! hundred new ones, which are the same in every run.

use fs_fuzz::TARGETS;
use std::path::Path;

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
    let mut random = fastrand::Rng::with_seed(7);
    for target in TARGETS {
        for round in 0..500 {
            let len = random.usize(..target.len_max);
            let mask = if round % 2 == 0 { 0xff } else { 0x0f };
            let input: Vec<u8> = (0..len).map(|_| random.u8(..) & mask).collect();
            let run = std::panic::catch_unwind(|| (target.run)(&input));
            assert!(run.is_ok(), "{} fails on {input:02x?}", target.name);
        }
    }
}
