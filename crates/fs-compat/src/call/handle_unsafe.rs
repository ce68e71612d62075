//! [`Handle`]: who closes a descriptor.
#![allow(unsafe_code)]

use super::close;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

/// An owned socket descriptor: closed through the table, so that the peer of an accelerated connection sees the end.
/// `Option<Handle>` is no larger, as with std's `OwnedFd`.
#[derive(Debug)]
pub(crate) struct Handle(ManuallyDrop<OwnedFd>);

impl Handle {
    /// Takes over `fd`, which a call of this module made and which nobody else closes.
    pub(crate) fn made(fd: RawFd) -> Handle {
        assert!(fd >= 0, "a descriptor is not negative");
        // SAFETY: an open descriptor (or, from `FromRawFd`, what its caller vouches for) that `drop` closes, once.
        Handle(ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Takes over a descriptor that comes from elsewhere: what is not connected yet may be accelerated from now on.
    pub(crate) fn adopt(fd: OwnedFd) -> Handle {
        fs_socket::adopt(fd.as_raw_fd());
        Handle(ManuallyDrop::new(fd))
    }

    /// Somebody else's descriptor, which stays theirs: not to be dropped.
    pub(crate) fn borrow(fd: RawFd) -> ManuallyDrop<Handle> {
        fs_socket::confirm(fd);
        ManuallyDrop::new(Handle::made(fd))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Gives the descriptor away, open. What is not a connection through shared memory is the kernel's alone then.
    pub(crate) fn release(self) -> OwnedFd {
        let fd = ManuallyDrop::new(self).fd();
        fs_socket::hand_over(fd);
        // SAFETY: open, and owned by nobody else now that `self` is not dropped.
        unsafe { OwnedFd::from_raw_fd(fd) }
    }

    pub(crate) fn release_raw(self) -> RawFd {
        self.release().into_raw_fd()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Nobody could act on an error here: Linux frees the number whatever close(2) answers.
        let _ = close(self.fd());
    }
}
