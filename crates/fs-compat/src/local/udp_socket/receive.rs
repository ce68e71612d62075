//! Receiving datagrams. Bytes that do not fit into the buffer are lost, as with recvfrom(2).

use super::UdpSocket;
use crate::local::udp_kernel::KernelSide;
use bytes::BufMut;
use fs_core::{Error, UdpId};
use fs_rt::{CoreStack, Interest as Wait, poll_budget, spend_budget};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll, ready};
use tokio::io::ReadBuf;

/// One receive in this many asks the kernel's side first. The others ask it only if the engine's queue
/// is empty. Lower: a busy socket makes more useless system calls. Higher: datagrams of this host,
/// broadcasts and fragments wait longer behind those of the wire.
pub(super) const KERNEL_FIRST: u8 = 16;

impl UdpSocket {
    /// Receives a datagram.
    pub async fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.recv_from(buf).await.map(|(n, _)| n)
    }

    /// Like [`UdpSocket::recv`].
    pub fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_recv_from(cx, buf).map_ok(drop)
    }

    /// Like [`UdpSocket::recv`], or `WouldBlock`.
    pub fn try_recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.try_recv_from(buf).map(|(n, _)| n)
    }

    /// Receives a datagram and its sender.
    pub async fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        poll_fn(|cx| self.poll_receive(cx, buf, false)).await
    }

    /// Like [`UdpSocket::recv_from`].
    pub fn poll_recv_from(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<SocketAddr>> {
        self.poll_into(cx, buf, false)
    }

    /// Like [`UdpSocket::recv_from`], or `WouldBlock`.
    pub fn try_recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receive_now(buf, false)
    }

    /// Receives a datagram from the peer that was set, and leaves it in the queue.
    pub async fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.peek_from(buf).await.map(|(n, _)| n)
    }

    /// Receives a datagram and leaves it in the queue.
    pub async fn peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        poll_fn(|cx| self.poll_receive(cx, buf, true)).await
    }

    /// Like [`UdpSocket::peek_from`].
    pub fn poll_peek_from(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<SocketAddr>> {
        self.poll_into(cx, buf, true)
    }

    fn poll_into(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>, peek: bool) -> Poll<io::Result<SocketAddr>> {
        let (n, from) = ready!(self.poll_receive(cx, buf.initialize_unfilled(), peek))?;
        buf.advance(n);
        Poll::Ready(Ok(from))
    }

    /// Like [`UdpSocket::recv_from`], into the spare capacity of a growing buffer. Bytes that do not
    /// fit are lost.
    pub async fn recv_buf_from<B: BufMut>(&self, buf: &mut B) -> io::Result<(usize, SocketAddr)> {
        poll_fn(|cx| self.poll_grow(buf, |part| self.poll_receive(cx, part, false))).await
    }

    /// Like [`UdpSocket::recv_buf_from`].
    pub async fn recv_buf<B: BufMut>(&self, buf: &mut B) -> io::Result<usize> {
        self.recv_buf_from(buf).await.map(|(n, _)| n)
    }

    /// Like [`UdpSocket::recv_buf_from`], or `WouldBlock`.
    pub fn try_recv_buf_from<B: BufMut>(&self, buf: &mut B) -> io::Result<(usize, SocketAddr)> {
        match self.poll_grow(buf, |part| Poll::Ready(self.receive_now(part, false))) {
            Poll::Ready(received) => received,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Like [`UdpSocket::recv_buf_from`], or `WouldBlock`.
    pub fn try_recv_buf<B: BufMut>(&self, buf: &mut B) -> io::Result<usize> {
        self.try_recv_buf_from(buf).map(|(n, _)| n)
    }

    /// Receives into an intermediate buffer as large as the spare capacity of `buf`.
    fn poll_grow<B: BufMut>(
        &self,
        buf: &mut B,
        receive: impl FnOnce(&mut [u8]) -> Poll<io::Result<(usize, SocketAddr)>>,
    ) -> Poll<io::Result<(usize, SocketAddr)>> {
        // Largest UDP payload. Uses a vector's spare capacity without a new allocation, as tokio
        // does.
        let most = buf.chunk_mut().len().min(usize::from(u16::MAX));
        let mut part = vec![0; most];
        let (n, from) = ready!(receive(&mut part))?;
        buf.put_slice(&part[..n]);
        Poll::Ready(Ok((n, from)))
    }

    /// Like [`UdpSocket::peek`].
    pub fn poll_peek(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_into(cx, buf, true).map_ok(drop)
    }

    /// Like [`UdpSocket::peek`], or `WouldBlock`.
    pub fn try_peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.try_peek_from(buf).map(|(n, _)| n)
    }

    /// Like [`UdpSocket::peek_from`], or `WouldBlock`.
    pub fn try_peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receive_now(buf, true)
    }

    /// Waits for a datagram and returns its sender.
    pub async fn peek_sender(&self) -> io::Result<SocketAddr> {
        poll_fn(|cx| self.poll_peek_sender(cx)).await
    }

    /// Like [`UdpSocket::peek_sender`].
    pub fn poll_peek_sender(&self, cx: &mut Context<'_>) -> Poll<io::Result<SocketAddr>> {
        self.poll_receive(cx, &mut [0], true).map_ok(|(_, from)| from)
    }

    /// Like [`UdpSocket::peek_sender`], or `WouldBlock`.
    pub fn try_peek_sender(&self) -> io::Result<SocketAddr> {
        self.receive_now(&mut [0], true).map(|(_, from)| from)
    }

    /// Receives by `own` from the engine's side, or by `theirs` from the kernel's, without waiting.
    pub(super) fn receive_by_turns<B: ?Sized, R>(
        &self,
        buf: &mut B,
        peek: bool,
        own: impl FnOnce(&mut B) -> io::Result<R>,
        theirs: impl Fn(&mut B, &KernelSide) -> io::Result<R>,
    ) -> io::Result<R> {
        let is_kernel_first = self.turn.get() == 0;
        let received = match &self.kernel {
            Some(kernel) if is_kernel_first => theirs(buf, kernel),
            _ => Err(io::ErrorKind::WouldBlock.into()),
        };
        if !is_none(&received) {
            return self.received(received, Side::Kernel, peek);
        }
        let received = own(buf);
        match &self.kernel {
            Some(kernel) if is_none(&received) && !is_kernel_first => {
                self.received(theirs(buf, kernel), Side::Kernel, peek)
            }
            _ => self.received(received, Side::Engine, peek),
        }
    }

    /// Counts a receive. The next one after a peek begins at the side of the datagram that was seen.
    fn received<R>(&self, received: io::Result<R>, side: Side, peek: bool) -> io::Result<R> {
        let turn = self.turn.get();
        if received.is_ok() {
            self.turn.set(match side {
                _ if !peek => (turn + 1) % KERNEL_FIRST,
                Side::Kernel => 0,
                Side::Engine => turn.max(1),
            });
        }
        received
    }

    fn receive_now(&self, buf: &mut [u8], peek: bool) -> io::Result<(usize, SocketAddr)> {
        let own = |buf: &mut [u8]| self.call(|stack, id| receive(stack, id, buf, peek));
        self.receive_by_turns(buf, peek, own, |buf, kernel| self.receive_of(kernel, buf, peek))
    }

    fn receive_of(&self, kernel: &KernelSide, buf: &mut [u8], peek: bool) -> io::Result<(usize, SocketAddr)> {
        kernel.try_recv(buf, peek, self.peer_addr().ok()).map(|(len, from, _)| (len, from))
    }

    fn poll_receive(&self, cx: &mut Context<'_>, buf: &mut [u8], peek: bool) -> Poll<io::Result<(usize, SocketAddr)>> {
        ready!(poll_budget(cx));
        let received = self.receive_now(buf, peek);
        if !is_none(&received) {
            if peek || received.is_err() {
                spend_budget(cx);
            }
            return Poll::Ready(received);
        }
        self.core.wait(Wait::UdpRead, self.id.index, cx.waker());
        let Some(kernel) = &self.kernel else { return Poll::Pending };
        loop {
            ready!(kernel.poll_readable(cx))?;
            let received = self.receive_of(kernel, buf, peek);
            if !is_none(&received) {
                return Poll::Ready(self.received(received, Side::Kernel, peek));
            }
        }
    }
}

/// Where a datagram was received.
enum Side {
    Engine,
    Kernel,
}

fn is_none<R>(received: &io::Result<R>) -> bool {
    matches!(received, Err(nothing) if nothing.kind() == io::ErrorKind::WouldBlock)
}

fn receive(stack: &mut CoreStack, id: UdpId, buf: &mut [u8], peek: bool) -> Result<(usize, SocketAddr), Error> {
    let meta = stack.udp_recv(id, buf, peek)?;
    Ok((meta.len.min(buf.len()), meta.from))
}
