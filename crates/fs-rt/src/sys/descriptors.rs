//! A descriptor table for one thread.

use std::io;

/// Gives the calling thread its own, empty descriptor table (close_range(2), Linux 5.9).
/// RLIMIT_NOFILE applies to each table. For threads that only use descriptors which they open
/// later.
pub(crate) fn own_descriptor_table() -> io::Result<()> {
    let all: (libc::c_uint, libc::c_uint) = (0, libc::c_uint::MAX);
    // SAFETY: no pointers. Descriptors are closed in the new table only, which no other thread has.
    let answer = unsafe { libc::syscall(libc::SYS_close_range, all.0, all.1, libc::CLOSE_RANGE_UNSHARE) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
