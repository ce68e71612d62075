//! Conversions to and from descriptors.
#![allow(unsafe_code)]

use super::tcp_listener::TcpListener;
use super::tcp_stream::TcpStream;
use super::udp_socket::UdpSocket;
use crate::socket2::Socket;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

macro_rules! descriptors {
    ($($type:ident),*) => {$(
        impl AsFd for $type {
            fn as_fd(&self) -> BorrowedFd<'_> {
                self.socket.as_fd()
            }
        }

        impl AsRawFd for $type {
            fn as_raw_fd(&self) -> RawFd {
                self.socket.as_raw_fd()
            }
        }

        impl IntoRawFd for $type {
            fn into_raw_fd(self) -> RawFd {
                self.socket.into_raw_fd()
            }
        }

        impl FromRawFd for $type {
            unsafe fn from_raw_fd(fd: RawFd) -> Self {
                // SAFETY: the caller owns the descriptor and gives it away.
                Self { socket: unsafe { Socket::from_raw_fd(fd) } }
            }
        }

        impl From<OwnedFd> for $type {
            fn from(fd: OwnedFd) -> Self {
                Self { socket: fd.into() }
            }
        }

        impl From<$type> for OwnedFd {
            fn from(this: $type) -> OwnedFd {
                this.socket.into()
            }
        }

        /// Conversion to set options for which the type has no method.
        impl From<Socket> for $type {
            fn from(socket: Socket) -> Self {
                Self { socket }
            }
        }

        impl From<$type> for Socket {
            fn from(this: $type) -> Socket {
                this.socket
            }
        }

        impl From<std::net::$type> for $type {
            fn from(std: std::net::$type) -> Self {
                OwnedFd::from(std).into()
            }
        }
    )*};
}

descriptors!(TcpStream, TcpListener, UdpSocket);
