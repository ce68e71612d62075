//! [`Socket`] to and from descriptors and std's types.
#![allow(unsafe_code)]

use super::socket::Socket;
use std::mem::ManuallyDrop;
use std::net;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net as unix;

/// Returns a socket that is not to be dropped, on a descriptor that has another owner.
pub(super) fn borrow(fd: BorrowedFd<'_>) -> ManuallyDrop<Socket> {
    // SAFETY: it is never dropped, so the descriptor keeps its owner.
    ManuallyDrop::new(unsafe { Socket::from_raw_fd(fd.as_raw_fd()) })
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd()
    }
}

impl IntoRawFd for Socket {
    fn into_raw_fd(self) -> RawFd {
        self.handle.into_raw_fd()
    }
}

impl FromRawFd for Socket {
    unsafe fn from_raw_fd(fd: RawFd) -> Socket {
        // SAFETY: the caller owns the descriptor and gives it away.
        unsafe { OwnedFd::from_raw_fd(fd) }.into()
    }
}

impl From<OwnedFd> for Socket {
    fn from(fd: OwnedFd) -> Socket {
        Socket { handle: fd }
    }
}

impl From<Socket> for OwnedFd {
    fn from(socket: Socket) -> OwnedFd {
        socket.handle
    }
}

/// Conversions through `OwnedFd`.
macro_rules! through_fd {
    ($($other:ty),*) => {$(
        impl From<$other> for Socket {
            fn from(other: $other) -> Socket {
                OwnedFd::from(other).into()
            }
        }

        impl From<Socket> for $other {
            fn from(socket: Socket) -> $other {
                OwnedFd::from(socket).into()
            }
        }
    )*};
}

through_fd!(net::TcpStream, net::TcpListener, net::UdpSocket, unix::UnixStream, unix::UnixListener, unix::UnixDatagram);
