//! An eventfd: the doorbell that wakes a sleeping core.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd};

/// A non-blocking eventfd.
#[derive(Debug)]
pub(crate) struct EventFd(File);

impl EventFd {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointers; the result is checked.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` is new and has no other owner.
        Ok(Self(unsafe { File::from_raw_fd(fd) }))
    }

    /// Makes the eventfd readable. EAGAIN (the counter is at its maximum) means that it is readable
    /// already.
    pub(crate) fn notify(&self) {
        if let Err(error) = (&self.0).write(&1u64.to_ne_bytes())
            && error.kind() != io::ErrorKind::WouldBlock
        {
            tracing::error!(%error, "cannot notify a core by its eventfd");
        }
    }

    /// Makes it unreadable.
    pub(crate) fn clear(&self) {
        // The only error is EAGAIN: it was not readable.
        let _ = (&self.0).read(&mut [0; 8]);
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
