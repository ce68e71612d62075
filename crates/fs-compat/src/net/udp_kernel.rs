//! What the kernel does for a UDP socket: the datagrams that the XDP program and the engine leave to it.
//!
//! The port is reserved by a socket of the kernel, and that socket takes part. It receives what comes in fragments, by
//! broadcast, by multicast and over loopback, and it sends what is larger than the MTU or goes to one of those. In
//! standalone addressing there is none: such datagrams are `EMSGSIZE` and `EINVAL`.

use fs_rt::PortLease;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::task::{Context, Poll};
use tokio::net::UdpSocket;

#[derive(Debug)]
pub(super) struct KernelSide {
    socket: UdpSocket,
}

impl KernelSide {
    pub(super) fn of(lease: &PortLease) -> io::Result<Option<Self>> {
        let Some(fd) = lease.kernel_socket()? else { return Ok(None) };
        Ok(Some(Self { socket: UdpSocket::from_std(fd.into())? }))
    }

    /// For its options.
    pub(super) fn options(&self) -> &UdpSocket {
        &self.socket
    }

    pub(super) fn try_send(&self, buf: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.socket.try_send_to(buf, to)
    }

    pub(super) fn poll_send(&self, cx: &mut Context<'_>, buf: &[u8], to: SocketAddr) -> Poll<io::Result<usize>> {
        self.socket.poll_send_to(cx, buf, to)
    }

    /// The next datagram, of `only` if that is given. No system call while none has come.
    pub(super) fn try_recv(
        &self,
        buf: &mut [u8],
        peek: bool,
        only: Option<SocketAddr>,
    ) -> io::Result<(usize, SocketAddr)> {
        loop {
            let (len, from) = if peek { self.socket.try_peek_from(buf)? } else { self.socket.try_recv_from(buf)? };
            let from = match from.ip().to_canonical() {
                // With its scope.
                IpAddr::V6(_) => from,
                ip => SocketAddr::new(ip, from.port()),
            };
            if only.is_none_or(|only| only == from) {
                return Ok((len, from));
            }
            if peek {
                // Of somebody else: it would stay in front for ever.
                self.socket.try_recv_from(&mut [0])?;
            }
        }
    }

    /// There may be a datagram.
    pub(super) fn is_readable(&self) -> bool {
        self.socket.try_io(tokio::io::Interest::READABLE, || Ok(())).is_ok()
    }

    /// Ready when there may be a datagram.
    pub(super) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_recv_ready(cx)
    }
}
