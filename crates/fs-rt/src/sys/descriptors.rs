//! A table of descriptors for one thread.

use std::io;

/// Gives the calling thread a table of descriptors of its own, with nothing in it (close_range(2), Linux 5.9). RLIMIT_NOFILE
/// counts for each table. For threads that use no descriptor but those that they open from here on.
pub(crate) fn own_descriptor_table() -> io::Result<()> {
    let all: (libc::c_uint, libc::c_uint) = (0, libc::c_uint::MAX);
    // SAFETY: no pointers. What is closed is closed in the new table, which nobody else has: no descriptor that another part
    // of the program owns is touched.
    let answer = unsafe { libc::syscall(libc::SYS_close_range, all.0, all.1, libc::CLOSE_RANGE_UNSHARE) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
