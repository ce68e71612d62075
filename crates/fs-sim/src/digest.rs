//! A running hash of all packets: two runs are equal if their digests are.

use crate::rng::mix;
use fs_core::Instant;

/// The hash so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest(pub u64);

impl Digest {
    /// Adds a packet.
    pub fn packet(&mut self, at: Instant, from: usize, bytes: &[u8]) {
        let mut h = mix(self.0 ^ at.as_nanos() ^ (from as u64) << 56);
        let mut words = bytes.chunks_exact(8);
        for w in &mut words {
            // The multiplication propagates bits upwards only; the rotation moves them down again.
            let w = u64::from_le_bytes([w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]]);
            h = (h ^ w).wrapping_mul(crate::rng::GOLDEN).rotate_left(29);
        }
        for &b in words.remainder() {
            h = (h ^ u64::from(b)).wrapping_mul(crate::rng::GOLDEN).rotate_left(29);
        }
        self.0 = mix(h ^ bytes.len() as u64);
    }
}
