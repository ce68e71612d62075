//! Signals that must not end the daemon.

/// Ignores SIGXFSZ: a file beyond RLIMIT_FSIZE is the error EFBIG then.
pub(crate) fn ignore_file_size_signal() {
    // SAFETY: SIG_IGN runs no code of ours.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}
