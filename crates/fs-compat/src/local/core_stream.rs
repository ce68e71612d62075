//! A connection that the core's own engine carries over the runtime's devices.

use crate::borrowed_unsafe::SendBuffer;
use crate::error::{IntoIo, to_io_error};
use fs_core::{Connect, Error, Ready as CoreReady, TcpId, TcpState};
use fs_rt::{CoreRef, CoreStack, Interest as Wait, PortLease, poll_budget, spend_budget};
use std::future::poll_fn;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Deref;
use std::task::{Context, Poll, ready};
use tokio::io::{Interest, Ready};

#[derive(Debug)]
pub(super) struct CoreStream {
    pub(super) core: CoreRef,
    pub(super) id: TcpId,
    /// Reserves the bound or listened-on port while the connection lives.
    _lease: Option<PortLease>,
}

impl CoreStream {
    pub(super) fn new(core: CoreRef, id: TcpId, lease: Option<PortLease>) -> Self {
        Self { core, id, _lease: lease }
    }

    /// Connects and offers the first bytes to send. Returns how many of them were taken.
    pub(super) async fn connect(
        core: CoreRef,
        connect: Connect,
        lease: Option<PortLease>,
        data: &[u8],
    ) -> io::Result<(Self, usize)> {
        let (id, taken) = core.stack(|stack| stack.tcp_connect_with(connect, data)).io()?;
        // From here on, cancelling the connect closes the socket.
        let stream = Self::new(core, id, lease.map(|lease| lease.for_connection()));
        poll_fn(|cx| stream.poll_connected(cx)).await?;
        stream.core.opened_tcp(id);
        Ok((stream, taken))
    }

    fn poll_connected(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let connected = self.poll_op(cx, Wait::TcpWrite, |stack, id| {
            if !stack.tcp_ready(id)?.intersects(CoreReady::WRITE | CoreReady::CLOSED) {
                return Err(Error::WouldBlock);
            }
            stack.tcp_take_error(id)?.map_or(Ok(()), Err)
        });
        connected.map(IntoIo::io)
    }

    /// Calls the stack for this connection, and registers `cx` if the result is `WouldBlock`.
    #[inline]
    pub(super) fn poll_op<R>(
        &self,
        cx: &mut Context<'_>,
        wait: Wait,
        f: impl FnOnce(&mut CoreStack, TcpId) -> Result<R, Error>,
    ) -> Poll<Result<R, Error>> {
        self.core.poll_op(cx, wait, self.id.index, |stack| f(stack, self.id))
    }

    #[inline]
    pub(super) fn call<R>(&self, f: impl FnOnce(&mut CoreStack, TcpId) -> Result<R, Error>) -> io::Result<R> {
        if !self.core.is_here() {
            return Err(to_io_error(Error::BadSocket));
        }
        self.core.stack(|stack| f(stack, self.id)).io()
    }

    #[inline]
    pub(super) fn inspect<R>(&self, f: impl FnOnce(&CoreStack, TcpId) -> Result<R, Error>) -> io::Result<R> {
        self.core.inspect(|stack| f(stack, self.id)).io()
    }

    #[inline]
    pub(super) fn wait(&self, wait: Wait, cx: &Context<'_>) {
        self.core.wait(wait, self.id.index, cx.waker());
    }

    pub(super) fn poll_closed(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.inspect(|stack, id| stack.tcp_ready(id)).is_ok_and(|ready| !ready.intersects(CoreReady::CLOSED)) {
            self.wait(Wait::TcpRead, cx);
            self.wait(Wait::TcpWrite, cx);
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    /// Returns the part of `interest` that is ready now.
    pub(super) fn ready_now(&self, interest: Interest) -> io::Result<Ready> {
        let (ready, state) = self.inspect(|stack, id| Ok((stack.tcp_ready(id)?, stack.tcp_state(id)?)))?;
        if !interest.is_readable() && !interest.is_writable() && !interest.is_priority() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mut answer = Ready::EMPTY;
        if interest.is_readable() && ready.intersects(CoreReady::READ | CoreReady::CLOSED) {
            answer |= Ready::READABLE;
        }
        if interest.is_writable() && ready.intersects(CoreReady::WRITE | CoreReady::CLOSED) {
            answer |= Ready::WRITABLE;
        }
        // As of tcp_poll's EPOLLHUP and EPOLLRDHUP.
        let is_over = matches!(state, TcpState::Closing | TcpState::LastAck | TcpState::TimeWait | TcpState::Closed);
        if interest.is_readable() && (is_over || state == TcpState::CloseWait) {
            answer |= Ready::READ_CLOSED;
        }
        if interest.is_writable() && is_over {
            answer |= Ready::WRITE_CLOSED;
        }
        if interest.is_priority() && ready.intersects(CoreReady::PRIORITY | CoreReady::CLOSED) {
            answer |= Ready::PRIORITY;
        }
        Ok(answer)
    }

    pub(super) fn poll_ready(&self, cx: &mut Context<'_>, interest: Interest) -> Poll<io::Result<Ready>> {
        ready!(poll_budget(cx));
        let answer = self.ready_now(interest)?;
        if !answer.is_empty() {
            spend_budget(cx);
            return Poll::Ready(Ok(answer));
        }
        if interest.is_readable() || interest.is_priority() {
            self.wait(Wait::TcpRead, cx);
        }
        if interest.is_writable() {
            self.wait(Wait::TcpWrite, cx);
        }
        Poll::Pending
    }

    pub(super) async fn send_buffer(&self, buffer: SendBuffer) -> io::Result<()> {
        let mut buffer = Some(buffer);
        poll_fn(|cx| {
            ready!(poll_budget(cx));
            let Some(mine) = buffer.take() else { return Poll::Ready(Ok(())) };
            // The guard owns the frame until it is queued, so a cancelled send frees it.
            if let Err(error) = self.inspect(|stack, id| match stack.tcp_ready(id)? {
                ready if ready.intersects(CoreReady::WRITE | CoreReady::CLOSED) => Ok(()),
                _ => Err(Error::WouldBlock),
            }) {
                if error.kind() != io::ErrorKind::WouldBlock {
                    spend_budget(cx);
                    return Poll::Ready(Err(error));
                }
                buffer = Some(mine);
                self.wait(Wait::TcpWrite, cx);
                return Poll::Pending;
            }
            let Some(frame) = mine.into_frame() else { return Poll::Ready(Ok(())) };
            match self.core.stack(|stack| stack.tcp_send_frame(self.id, frame)) {
                Ok(()) => Poll::Ready(Ok(())),
                Err((Error::WouldBlock, frame)) => {
                    buffer = Some(SendBuffer::from_frame(self.core.clone(), frame));
                    self.wait(Wait::TcpWrite, cx);
                    Poll::Pending
                }
                Err((error, frame)) => {
                    drop(SendBuffer::from_frame(self.core.clone(), frame));
                    spend_budget(cx);
                    Poll::Ready(Err(to_io_error(error)))
                }
            }
        })
        .await
    }
}

pub(super) fn recv_vectored(stack: &mut CoreStack, id: TcpId, bufs: &mut [IoSliceMut<'_>]) -> Result<usize, Error> {
    let mut any = false;
    each(bufs.iter_mut().map(|buf| &mut **buf), |buf| {
        // After the last queued byte a call would take the error that ended the connection.
        if any && stack.tcp_queued(id)?.0 == 0 {
            return Ok(0);
        }
        any = true;
        stack.tcp_recv(id, buf)
    })
}

pub(super) fn send_vectored(stack: &mut CoreStack, id: TcpId, bufs: &[IoSlice<'_>]) -> Result<usize, Error> {
    each(bufs.iter().map(|buf| &**buf), |buf| stack.tcp_send(id, buf))
}

/// Moves the bytes of several buffers in order, until one is moved only in part.
fn each<B: Deref<Target = [u8]>>(
    bufs: impl Iterator<Item = B>,
    mut one: impl FnMut(B) -> Result<usize, Error>,
) -> Result<usize, Error> {
    let mut total = 0;
    for buf in bufs.filter(|buf| !buf.is_empty()) {
        let len = buf.len();
        match one(buf) {
            Ok(n) => {
                total += n;
                if n < len {
                    break;
                }
            }
            // The next call returns the error.
            Err(_) if total > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(total)
}

impl Drop for CoreStream {
    fn drop(&mut self) {
        self.core.close_tcp(self.id);
    }
}
