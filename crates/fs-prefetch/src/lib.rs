//! Prefetch hints for the processor. Unlike a load, a prefetch does not stall: a load that misses
//! blocks the processor once its reorder buffer is full, after about as many instructions as one
//! packet takes.
#![no_std]

mod hint_unsafe;

/// Size of a cache line in bytes.
const LINE: usize = 64;

/// Prefetches the line in which `at` begins.
#[inline(always)]
pub fn line<T>(at: &T) {
    hint_unsafe::prefetch(core::ptr::from_ref(at).cast());
}

/// Prefetches all lines of `at`, which is aligned to cache lines.
#[inline(always)]
pub fn lines<T>(at: &T) {
    let begin = core::ptr::from_ref(at).cast::<u8>();
    for offset in (0..size_of::<T>()).step_by(LINE) {
        hint_unsafe::prefetch(begin.wrapping_add(offset));
    }
}

/// Prefetches the `bytes` in front of `at`.
#[inline(always)]
pub fn before<T: ?Sized>(at: &T, bytes: usize) {
    let end = core::ptr::from_ref(at).cast::<u8>();
    for back in (1..bytes).step_by(LINE) {
        hint_unsafe::prefetch(end.wrapping_sub(back));
    }
    // The first byte may be on an additional line.
    hint_unsafe::prefetch(end.wrapping_sub(bytes));
}

#[cfg(test)]
mod tests {
    /// A prefetch must not change the bytes.
    #[test]
    fn prefetch_changes_nothing() {
        let many = [7u64; 100];
        super::line(&many[3]);
        super::lines(&many);
        super::line(&());
        super::before(&many[50..], 100);
        assert_eq!(many, [7; 100]);
    }
}
