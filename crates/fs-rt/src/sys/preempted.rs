//! How often the scheduler has taken the CPU from the calling thread.

/// Involuntary context switches of the calling thread (getrusage(2), `RUSAGE_THREAD`): it wanted to run on, and another
/// ran. 0.2 µs.
pub(crate) fn preemptions() -> u64 {
    // SAFETY: a plain structure of integers, which zero suits.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a live structure to fill; it stays zero should the call fail.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage.ru_nivcsw as u64
}
