//! [`Socket`] to and from descriptors and std's types.
//!
//! The descriptor of an accelerated connection is a kernel socket that is not itself connected. It
//! can be given away and taken back within this process. std's own `read` and `write` on it do not
//! reach the connection and return ENOTCONN. Every other socket that is given away is the kernel's
//! from then on and works with any code. A socket that is taken over before it connects, or while
//! it listens, may be accelerated.
#![allow(unsafe_code)]

use super::socket::Socket;
use crate::call::Handle;
use std::net;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net as unix;

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the handle owns the descriptor for as long as `self` is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.fd()) }
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd()
    }
}

impl IntoRawFd for Socket {
    fn into_raw_fd(self) -> RawFd {
        self.handle.release_raw()
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
        Socket { handle: Handle::adopt(fd) }
    }
}

impl From<Socket> for OwnedFd {
    fn from(socket: Socket) -> OwnedFd {
        socket.handle.release()
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
