//! Occupied slots of a wheel: a ring of bits with a summary word, so that the next one is found in
//! three steps at any distance.

/// `64 * WORDS` bits, at most 4096 (the summary is one word).
#[derive(Clone, Debug)]
pub(super) struct Bitmap<const WORDS: usize> {
    words: [u64; WORDS],
    /// Bit i: `words[i]` is not zero.
    summary: u64,
}

impl<const WORDS: usize> Bitmap<WORDS> {
    const LEN: usize = 64 * WORDS;

    pub(super) const fn new() -> Self {
        assert!(WORDS > 0 && WORDS <= 64);
        Self { words: [0; WORDS], summary: 0 }
    }

    #[inline]
    pub(super) fn set(&mut self, bit: usize) {
        self.words[bit / 64] |= 1 << (bit % 64);
        self.summary |= 1 << (bit / 64);
    }

    #[inline]
    pub(super) fn clear(&mut self, bit: usize) {
        let word = &mut self.words[bit / 64];
        *word &= !(1 << (bit % 64));
        if *word == 0 {
            self.summary &= !(1 << (bit / 64));
        }
    }

    /// Returns the distance from `from` to the next set bit at or after it, around the ring.
    #[inline]
    pub(super) fn distance(&self, from: usize) -> Option<usize> {
        let (word, bit) = (from / 64, from % 64);
        let here = self.words[word] >> bit;
        if here != 0 {
            return Some(here.trailing_zeros() as usize);
        }
        // The whole words after this one, or from the start of the ring. This word's low bits come
        // last.
        let after = if word == 63 { 0 } else { self.summary >> (word + 1) << (word + 1) };
        let found = if after != 0 { after } else { self.summary };
        if found == 0 {
            return None;
        }
        let word = found.trailing_zeros() as usize;
        let at = word * 64 + self.words[word].trailing_zeros() as usize;
        Some((at + Self::LEN - from) % Self::LEN)
    }
}
