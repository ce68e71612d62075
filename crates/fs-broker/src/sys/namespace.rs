//! Network namespaces of threads.

use std::io;

/// Moves the calling thread into a new network namespace, which ends with its last descriptor, socket
/// and thread.
pub(crate) fn enter_new_namespace() -> io::Result<()> {
    // SAFETY: only the thread's view of the network changes. No pointers.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
