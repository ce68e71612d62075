//! [`Handle`], the owner of a descriptor.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

/// An owned socket descriptor. Dropping it closes it through the table, so that the peer of an
/// accelerated connection sees the end. `Option<Handle>` is no larger, as with std's `OwnedFd`.
#[derive(Debug)]
pub(crate) struct Handle(ManuallyDrop<OwnedFd>);

impl Handle {
    /// Takes ownership of `fd`, which a call of this module created and nothing else closes.
    pub(crate) fn made(fd: RawFd) -> Handle {
        assert!(fd >= 0, "a descriptor is not negative");
        // SAFETY: `fd` is open (or, from `FromRawFd`, its caller guarantees it), and only `drop`
        // closes it.
        Handle(ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Takes ownership of a descriptor from elsewhere. If it is not connected yet, it may be
    /// accelerated from now on.
    pub(crate) fn adopt(fd: OwnedFd) -> Handle {
        fs_socket::adopt(fd.as_raw_fd());
        Handle(ManuallyDrop::new(fd))
    }

    /// Borrows a descriptor that somebody else owns. It must not be dropped.
    pub(crate) fn borrow(fd: RawFd) -> ManuallyDrop<Handle> {
        fs_socket::confirm(fd);
        ManuallyDrop::new(Handle::made(fd))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Gives up ownership of the open descriptor. Unless it is a connection through shared memory,
    /// it is the kernel's alone from then on.
    pub(crate) fn release(self) -> OwnedFd {
        let fd = ManuallyDrop::new(self).fd();
        fs_socket::hand_over(fd);
        // SAFETY: open, and without an owner because `self` is not dropped.
        unsafe { OwnedFd::from_raw_fd(fd) }
    }

    pub(crate) fn release_raw(self) -> RawFd {
        self.release().into_raw_fd()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Errors are ignored: Linux frees the number whatever close(2) returns.
        let fd = self.fd();
        if fs_socket::close(fd).is_none() {
            // SAFETY: takes no pointers; this is the descriptor's owner.
            unsafe { libc::close(fd) };
        }
    }
}
