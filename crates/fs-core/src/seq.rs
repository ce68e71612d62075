//! Sequence numbers (RFC 9293 section 3.4). Modulo 2^32 there is no total order, only "before" and
//! "after" within half the space.

use core::fmt;

/// A TCP sequence number. Deliberately without `PartialOrd`: use [`SeqNum::before`] and friends.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct SeqNum(pub u32);

impl SeqNum {
    /// Returns `self < other` (RFC 9293 3.4).
    #[inline]
    pub fn before(self, other: SeqNum) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// Returns `self > other`.
    #[inline]
    pub fn after(self, other: SeqNum) -> bool {
        other.before(self)
    }

    /// Returns `self <= other`.
    #[inline]
    pub fn at_or_before(self, other: SeqNum) -> bool {
        !self.after(other)
    }

    /// Returns `self >= other`.
    #[inline]
    pub fn at_or_after(self, other: SeqNum) -> bool {
        !self.before(other)
    }

    /// Returns the distance from `earlier` to `self`, which must not be before it (else the result
    /// wraps).
    #[inline]
    pub fn since(self, earlier: SeqNum) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Returns the signed distance from `other` to `self`.
    #[inline]
    pub fn delta(self, other: SeqNum) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }

    /// Returns the later of the two.
    #[inline]
    pub fn max(self, other: SeqNum) -> SeqNum {
        if self.before(other) { other } else { self }
    }

    /// Returns the earlier of the two.
    #[inline]
    pub fn min(self, other: SeqNum) -> SeqNum {
        if self.before(other) { self } else { other }
    }
}

impl core::ops::Add<u32> for SeqNum {
    type Output = SeqNum;
    #[inline]
    fn add(self, n: u32) -> SeqNum {
        SeqNum(self.0.wrapping_add(n))
    }
}

impl core::ops::AddAssign<u32> for SeqNum {
    #[inline]
    fn add_assign(&mut self, n: u32) {
        self.0 = self.0.wrapping_add(n);
    }
}

impl core::ops::Sub<u32> for SeqNum {
    type Output = SeqNum;
    #[inline]
    fn sub(self, n: u32) -> SeqNum {
        SeqNum(self.0.wrapping_sub(n))
    }
}

impl fmt::Debug for SeqNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
