//! The Internet checksum (RFC 1071).
//!
//! Sums are kept in the machine's byte order and only turned at the end: a one's-complement sum of
//! byte-swapped words is the byte-swapped sum (RFC 1071 section 2 (B)).

#[cfg(test)]
mod tests;

/// Bytes per iteration of the inner loop: with SSE2, four registers of sums and four of carries,
/// half of the registers. Twice as many would spill; half as many would stall on dependencies.
const STRIDE: usize = 64;

/// Shorter runs of bytes are summed word by word: up to this length that takes fewer instructions
/// than lanes, whose sums must be added at the end.
const LANES_FROM: usize = 4 * STRIDE;

/// Parallel sums of 64-bit words that the compiler vectorizes: of the whole words (wrapping), and
/// of their upper halves. The exact sum of the lower halves follows from both, which is cheaper
/// than splitting each word.
#[derive(Clone, Copy, Default)]
struct Lanes {
    whole: [u64; STRIDE / 8],
    upper: [u64; STRIDE / 8],
}

impl Lanes {
    /// One loop for each kind of sum, so that the compiler vectorizes each.
    #[inline(always)]
    fn add(&mut self, block: &[u8; STRIDE]) {
        let mut words = [0; STRIDE / 8];
        for (word, bytes) in words.iter_mut().zip(block.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        for (whole, word) in self.whole.iter_mut().zip(&words) {
            *whole = whole.wrapping_add(*word);
        }
        for (upper, word) in self.upper.iter_mut().zip(&words) {
            *upper += word >> 32;
        }
    }

    #[inline(always)]
    fn sum(&self) -> Sum {
        let upper = self.upper.iter().sum();
        halves(self.whole.iter().fold(0, |sum: u64, word| sum.wrapping_add(*word)), upper)
    }
}

/// Returns the sum of words' lower and upper halves, from the wrapped sum of the words and the sum
/// of their upper halves. It cannot overflow: a half is below 2^32, and 2^31 words would be a slice
/// of 2^34 bytes.
#[inline(always)]
fn halves(whole: u64, upper: u64) -> Sum {
    let lower = whole.wrapping_sub(upper << 32);
    Sum(lower + upper)
}

/// A partial one's-complement sum of 16-bit words.
///
/// All 64 bits are significant: only [`Sum::fold`] reduces them modulo 2^16 - 1. Zero is the sum of
/// nothing. Bytes are summed as if they began at an even offset; see [`Sum::swap`] for the other
/// case.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// The sum of no bytes.
    pub const ZERO: Sum = Sum(0);

    /// Returns the sum of some bytes, the first being the high byte of a word. An odd last byte is
    /// padded with zero.
    #[inline]
    pub fn of(bytes: &[u8]) -> Sum {
        if bytes.len() < LANES_FROM { Sum::of_short(bytes) } else { Sum::of_long(bytes) }
    }

    /// Sums with [`Lanes`], from words instead of blocks of bytes: for blocks the compiler
    /// generates scalar code here, with twice as many instructions.
    fn of_long(bytes: &[u8]) -> Sum {
        const WORDS: usize = STRIDE / 8;
        let (words, rest) = bytes.as_chunks::<8>();
        let (blocks, more) = words.as_chunks::<WORDS>();
        let mut lanes = Lanes::default();
        for block in blocks {
            let words = block.map(u64::from_ne_bytes);
            for (whole, word) in lanes.whole.iter_mut().zip(&words) {
                *whole = whole.wrapping_add(*word);
            }
            for (upper, word) in lanes.upper.iter_mut().zip(&words) {
                *upper += word >> 32;
            }
        }
        let mut sum = lanes.sum();
        for word in more {
            sum = sum.add(Sum(u64::from_ne_bytes(*word)));
        }
        sum.add(Sum::of_rest(rest))
    }

    /// Like [`Sum::of`], for headers and other short runs of bytes.
    #[inline]
    pub fn of_short(bytes: &[u8]) -> Sum {
        let (words, rest) = bytes.as_chunks::<8>();
        let mut sum = Sum::ZERO;
        for word in words {
            sum = sum.add(Sum(u64::from_ne_bytes(*word)));
        }
        sum.add(Sum::of_rest(rest))
    }

    /// Sums fewer than eight bytes.
    #[inline]
    fn of_rest(bytes: &[u8]) -> Sum {
        if bytes.is_empty() {
            return Sum::ZERO;
        }
        let (words, rest) = bytes.as_chunks::<4>();
        let sum: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
        let last = match *rest {
            [a] => [a, 0, 0, 0],
            [a, b] => [a, b, 0, 0],
            [a, b, c] => [a, b, c, 0],
            _ => return Sum(sum),
        };
        Sum(sum + u64::from(u32::from_ne_bytes(last)))
    }

    /// Returns the sum of one 16-bit field, in host order.
    #[inline]
    pub fn word(word: u16) -> Sum {
        Sum(u64::from(word.to_be()))
    }

    /// Returns the sum of two parts, each starting at an even offset.
    #[inline]
    #[allow(clippy::should_implement_trait, reason = "`+` would hide that this is not integer addition")]
    pub fn add(self, other: Sum) -> Sum {
        let (sum, carry) = self.0.overflowing_add(other.0);
        Sum(sum + u64::from(carry))
    }

    /// Returns the sum of the same bytes at odd offsets: for a part that starts at an odd offset.
    #[inline]
    pub fn swap(self) -> Sum {
        // Times 2^8 modulo 2^64 - 1, which is a multiple of 2^16 - 1.
        Sum(self.0.rotate_left(8))
    }

    /// Like [`Sum::swap`] if `odd`.
    #[inline]
    pub fn swap_if(self, odd: bool) -> Sum {
        Sum(self.0.rotate_left(u32::from(odd) * 8))
    }

    /// Returns the 16-bit sum, not complemented, in host order. Zero only for a sum of zeros.
    #[inline]
    pub fn fold(self) -> u16 {
        let sum = (self.0 & 0xffff_ffff) + (self.0 >> 32);
        let sum = (sum & 0xffff) + ((sum >> 16) & 0xffff) + (sum >> 32);
        // At most 0x1fffe: the first line yields at most 0x1_ffff_fffe. So one more fold is enough.
        let sum = (sum & 0xffff) + (sum >> 16);
        u16::from_be(sum as u16)
    }

    /// Returns the checksum for a header's field, in host order.
    #[inline]
    pub fn finish(self) -> u16 {
        !self.fold()
    }

    /// Returns true if a sum over data *with* its checksum field shows no damage.
    #[inline]
    pub fn is_valid(self) -> bool {
        self.fold() == 0xffff
    }

    /// Returns the sum of the pseudo-header of RFC 9293 3.1 and RFC 768. Addresses in host order;
    /// `len` is that of the transport header and payload.
    #[inline]
    pub fn pseudo_v4(src: u32, dst: u32, proto: u8, len: u32) -> Sum {
        Sum(u64::from(src.to_be()) + u64::from(dst.to_be()) + u64::from(u32::from(proto).to_be()))
            .add(Sum(u64::from(len.to_be())))
    }

    /// Returns the sum of the pseudo-header of RFC 8200 8.1.
    #[inline]
    pub fn pseudo_v6(src: &[u8; 16], dst: &[u8; 16], proto: u8, len: u32) -> Sum {
        Sum::of_short(src)
            .add(Sum::of_short(dst))
            .add(Sum(u64::from(u32::from(proto).to_be()) + u64::from(len.to_be())))
    }

    /// Returns the sum of the pseudo-header of a packet of this flow. It is the same in both
    /// directions.
    #[inline]
    pub fn pseudo(key: &crate::flow::FlowKey, proto: u8, len: u32) -> Sum {
        match key {
            crate::flow::FlowKey::V4 { local, remote, .. } => Sum::pseudo_v4(*local, *remote, proto, len),
            crate::flow::FlowKey::V6 { local, remote, .. } => Sum::pseudo_v6(local, remote, proto, len),
        }
    }
}

/// A sum over consecutive pieces of any length, which handles odd offsets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RunningSum {
    sum: Sum,
    odd: bool,
}

impl RunningSum {
    /// Adds the next bytes.
    #[inline]
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.push_sum(Sum::of(bytes), bytes.len());
    }

    /// Adds the sum of the next `len` bytes.
    #[inline]
    pub(crate) fn push_sum(&mut self, sum: Sum, len: usize) {
        self.sum = self.sum.add(sum.swap_if(self.odd));
        self.odd ^= len % 2 == 1;
    }

    /// Returns the sum of all pieces.
    #[inline]
    pub(crate) fn sum(self) -> Sum {
        self.sum
    }
}

/// Copies `src` to the start of `dst` (up to the shorter length) and returns the sum of the copied
/// bytes, reading them once.
#[inline]
pub(crate) fn copy_and_sum(dst: &mut [u8], src: &[u8]) -> Sum {
    let len = dst.len().min(src.len());
    let (dst, src) = (&mut dst[..len], &src[..len]);
    if len < LANES_FROM {
        dst.copy_from_slice(src);
        return Sum::of_short(src);
    }
    copy_and_sum_long(dst, src)
}

fn copy_and_sum_long(dst: &mut [u8], src: &[u8]) -> Sum {
    let (dst_blocks, dst_rest) = dst.as_chunks_mut::<STRIDE>();
    let (src_blocks, src_rest) = src.as_chunks::<STRIDE>();
    let mut lanes = Lanes::default();
    for (to, from) in dst_blocks.iter_mut().zip(src_blocks) {
        let block = *from;
        lanes.add(&block);
        *to = block;
    }
    dst_rest.copy_from_slice(src_rest);
    lanes.sum().add(Sum::of_short(src_rest))
}
