//! The instruction. Does nothing on architectures other than x86-64 and ARM64.
#![allow(unsafe_code)]

/// Loads the line of `at` into the first-level cache, for reading or writing (a line that no other
/// core holds arrives in a writable state).
#[inline(always)]
pub(crate) fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        #[allow(unused_unsafe, reason = "newer compilers have it as a safe function")]
        // SAFETY: a prefetch has no effect visible to the program, and no address makes it fault;
        // every x86-64 has the instruction.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(at.cast());
        }
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}
