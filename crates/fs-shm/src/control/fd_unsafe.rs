//! A descriptor that is closed by the system call itself.
//!
//! `OwnedFd` closes through libc's `close`, which in a preloaded process is our own function, with the table that the
//! caller may be in the middle of changing.
#![allow(unsafe_code)]

use core::mem::ManuallyDrop;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

/// An owned descriptor.
#[derive(Debug)]
pub struct Fd(ManuallyDrop<OwnedFd>);

impl Fd {
    /// As what std and rustix give out.
    pub fn into_owned_fd(self) -> OwnedFd {
        let raw = self.into_raw_fd();
        // SAFETY: `raw` was ours, and is nobody's since `into_raw_fd`.
        unsafe { OwnedFd::from_raw_fd(raw) }
    }
}

impl From<OwnedFd> for Fd {
    fn from(fd: OwnedFd) -> Self {
        Self(ManuallyDrop::new(fd))
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Fd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl IntoRawFd for Fd {
    fn into_raw_fd(self) -> RawFd {
        let this = ManuallyDrop::new(self);
        this.0.as_raw_fd()
    }
}

impl FromRawFd for Fd {
    unsafe fn from_raw_fd(fd: RawFd) -> Self {
        // SAFETY: the caller says that the descriptor is open and its to give away.
        Self(ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd) }))
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours and not used again.
        unsafe { rustix::io::close(self.0.as_raw_fd()) }
    }
}
