//! Which thread this is, for nothing.

/// The thread pointer: one register, different for every living thread, never 0.
#[inline]
pub fn me() -> usize {
    let pointer: usize;
    // SAFETY: reads the thread pointer; on x86_64 the ABI keeps it at fs:0 too.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        core::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, preserves_flags, readonly));
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, preserves_flags, nomem));
    }
    pointer
}
