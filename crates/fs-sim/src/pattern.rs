//! Bytes that can be checked at any offset: byte `i` of a stream is a function of the stream's seed and `i`.

use crate::rng::{GOLDEN, mix};

#[inline]
fn word(seed: u64, index: u64) -> [u8; 8] {
    mix(seed.wrapping_add(index.wrapping_mul(GOLDEN))).to_le_bytes()
}

/// Writes the stream's bytes from `offset` on.
pub fn fill(seed: u64, offset: u64, buf: &mut [u8]) {
    let lead = (offset % 8) as usize;
    let mut index = offset / 8;
    let mut rest = buf;
    if lead != 0 {
        let n = (8 - lead).min(rest.len());
        let (head, tail) = rest.split_at_mut(n);
        head.copy_from_slice(&word(seed, index)[lead..lead + n]);
        (rest, index) = (tail, index + 1);
    }
    for chunk in rest.chunks_mut(8) {
        chunk.copy_from_slice(&word(seed, index)[..chunk.len()]);
        index += 1;
    }
}

/// Checks that bytes are the stream's from `offset` on. Returns the offset of the first wrong one
/// otherwise.
pub fn check(seed: u64, offset: u64, buf: &[u8]) -> Result<(), u64> {
    let mut want = [0u8; 512];
    let mut at = offset;
    for chunk in buf.chunks(want.len()) {
        let want = &mut want[..chunk.len()];
        fill(seed, at, want);
        if want != chunk {
            let bad = want.iter().zip(chunk).position(|(a, b)| a != b).unwrap_or(0);
            return Err(at + bad as u64);
        }
        at += chunk.len() as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_is_equal_at_any_offset() {
        let mut whole = [0u8; 300];
        fill(7, 0, &mut whole);
        for start in 0..40 {
            for len in [0, 1, 7, 8, 9, 63, 200] {
                let mut part = vec![0; len];
                fill(7, start as u64, &mut part);
                assert_eq!(part, whole[start..start + len]);
                assert_eq!(check(7, start as u64, &part), Ok(()));
            }
        }
        whole[123] ^= 1;
        assert_eq!(check(7, 0, &whole), Err(123));
        assert_eq!(check(8, 200, &whole[200..]), Err(200));
    }
}
