//! The user of the process.

/// Its effective user.
pub(crate) fn effective_user() -> u32 {
    // SAFETY: no arguments, and it cannot fail (geteuid(2)).
    unsafe { libc::geteuid() }
}
