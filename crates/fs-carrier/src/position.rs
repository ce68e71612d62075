//! Positions in the stream of ring bytes.

/// Bits of a position: those of the word without its flags.
const BITS: u32 = 48;
const MASK: u64 = (1 << BITS) - 1;

/// A number of ring bytes since the beginning, modulo 2^48.
///
/// Positions wrap after 281 TB, five hours at 15 GB/s. They have no order: only the distance from a
/// known earlier position has a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Position(u64);

impl Position {
    /// Makes a position of the lower 48 bits of `bits`.
    #[inline]
    #[must_use]
    pub fn new(bits: u64) -> Self {
        Position(bits & MASK)
    }

    /// Returns the 48 bits.
    #[inline]
    #[must_use]
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Returns the position `by` bytes later.
    #[inline]
    #[must_use]
    pub fn advance(self, by: u64) -> Self {
        Position::new(self.0.wrapping_add(by))
    }

    /// Returns how many bytes lie between `earlier` and this position.
    #[inline]
    #[must_use]
    pub fn since(self, earlier: Position) -> u64 {
        self.0.wrapping_sub(earlier.0) & MASK
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn distances_survive_the_wrap() {
        let before = Position::new(MASK - 3);
        let after = before.advance(10);
        assert_eq!(after.bits(), 6);
        assert_eq!(after.since(before), 10);
        assert_eq!(before.since(before), 0);
    }
}
