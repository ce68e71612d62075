//! A hint to the processor that memory will be needed soon. Unlike a load whose result nobody waits for, it holds nothing
//! up: a load that misses stops the processor once so many later instructions are done that no more can be kept track of,
//! about as many as one packet takes.
#![no_std]

mod hint_unsafe;

/// Bytes that come together.
const LINE: usize = 64;

/// The line in which `at` begins will be needed soon.
#[inline(always)]
pub fn line<T>(at: &T) {
    hint_unsafe::prefetch(core::ptr::from_ref(at).cast());
}

/// All of `at`, which is aligned to cache lines, will be needed soon.
#[inline(always)]
pub fn lines<T>(at: &T) {
    let begin = core::ptr::from_ref(at).cast::<u8>();
    for offset in (0..size_of::<T>()).step_by(LINE) {
        hint_unsafe::prefetch(begin.wrapping_add(offset));
    }
}

/// The `bytes` in front of `at` will be needed soon.
#[inline(always)]
pub fn before<T: ?Sized>(at: &T, bytes: usize) {
    let end = core::ptr::from_ref(at).cast::<u8>();
    for back in (1..bytes).step_by(LINE) {
        hint_unsafe::prefetch(end.wrapping_sub(back));
    }
    // Where the first of them is may be a line more.
    hint_unsafe::prefetch(end.wrapping_sub(bytes));
}

#[cfg(test)]
mod tests {
    /// That nothing happens is all that can be seen of it.
    #[test]
    fn what_is_hinted_at_stays_as_it_is() {
        let many = [7u64; 100];
        super::line(&many[3]);
        super::lines(&many);
        super::line(&());
        super::before(&many[50..], 100);
        assert_eq!(many, [7; 100]);
    }
}
