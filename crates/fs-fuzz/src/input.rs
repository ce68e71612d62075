//! Decisions from a fuzzer's bytes.

use arbitrary::Unstructured;

/// A script in bytes: once they run out, every decision is the first choice.
pub struct Input<'a>(Unstructured<'a>);

impl<'a> Input<'a> {
    /// Reads decisions from `data`.
    pub fn new(data: &'a [u8]) -> Self {
        Self(Unstructured::new(data))
    }

    /// Returns true if no bytes are left.
    pub fn is_done(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns a byte.
    pub fn byte(&mut self) -> u8 {
        self.0.arbitrary().unwrap_or(0)
    }

    /// Returns two bytes.
    pub fn word(&mut self) -> u16 {
        self.0.arbitrary().unwrap_or(0)
    }

    /// Returns four bytes.
    pub fn long(&mut self) -> u32 {
        self.0.arbitrary().unwrap_or(0)
    }

    /// Returns a number below `n`, which is at most 256.
    pub fn below(&mut self, n: usize) -> usize {
        self.byte() as usize % n.max(1)
    }

    /// Returns a number in `0..=max`.
    pub fn up_to(&mut self, max: u32) -> u32 {
        self.0.int_in_range(0..=max).unwrap_or(0)
    }

    /// Returns one of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Returns true in about `n` of 256 cases.
    pub fn chance(&mut self, n: u8) -> bool {
        self.byte() < n
    }

    /// Returns up to `max` bytes unchanged.
    pub fn bytes(&mut self, max: usize) -> &'a [u8] {
        let n = max.min(self.0.len());
        self.0.bytes(n).unwrap_or_default()
    }

    /// Returns a number near a relevant one, mostly equal or adjacent.
    pub fn near(&mut self, base: u32, window: u32) -> u32 {
        let delta = match self.below(16) {
            0..=3 => 0,
            4 => 1,
            5 => u32::MAX,
            6 => window,
            7 => window.wrapping_sub(1),
            8 => window.wrapping_add(1),
            9 => window / 2,
            10 => 0u32.wrapping_sub(window),
            11 => 0x7fff_ffff,
            12 => 0x8000_0000,
            13 => u32::from(self.byte()),
            14 => 0u32.wrapping_sub(u32::from(self.byte())),
            _ => self.long(),
        };
        base.wrapping_add(delta)
    }
}
