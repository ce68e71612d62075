//! A connection's task on its core: it moves bytes between the stack and the handle's rings.

use super::bytes_unsafe::fill;
use super::doorbell;
use super::shared::{FIN, GONE, IN_OVER, OPTIONS, OUT_OVER, QUICKACK, RING, SHUT, SharedStream, TaskEnds, lock};
use crate::local;
use fs_core::Linger;
use fs_rt::CoreRef;
use std::future::Future;
use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::{Sleep, sleep};

/// Bytes that one poll moves per direction before other tasks of the core run.
const AT_ONCE: usize = 128 << 10;

/// Time for which a dropped connection waits for a peer that takes none of the bytes in the ring,
/// as long as the stack waits for a peer that keeps a zero window: window probes from 200 ms,
/// doubled up to two minutes. Shorter: bytes are lost that a slow peer would have read; longer: the
/// ring's memory is in use.
const DROPPED_WAIT: Duration = Duration::from_secs(205);

pub(super) struct Task {
    stream: local::TcpStream,
    shared: Arc<SharedStream>,
    ends: TaskEnds,
    in_open: bool,
    out_open: bool,
    over: bool,
    /// Set while the connection was dropped and its peer takes nothing: it is reset then.
    reset_at: Option<Pin<Box<Sleep>>>,
}

/// Creates the state that a handle shares with a connection of this core, and the task that serves
/// the connection.
pub(super) fn serve(stream: local::TcpStream) -> io::Result<(Arc<SharedStream>, Task)> {
    let call = doorbell::Call::new(doorbell::of_this_core(&CoreRef::require()?)?);
    let (shared, ends) =
        SharedStream::new(call, stream.local_addr()?, stream.peer_addr()?, stream.carrier(), stream.options()?);
    let task =
        Task { stream, shared: shared.clone(), ends, in_open: true, out_open: true, over: false, reset_at: None };
    Ok((shared, task))
}

impl Task {
    /// Moves received bytes into the ring. Returns `true` if more remain and other tasks should run
    /// first.
    fn take_in(&mut self, cx: &mut Context<'_>) -> bool {
        let mut moved = 0;
        while self.in_open {
            if self.ends.incoming.slots() == 0 {
                self.shared.full.store(true, Ordering::Release);
                // The handle may have read in between without seeing `full`, so check the ring
                // again.
                fence(Ordering::SeqCst);
                if self.ends.incoming.slots() == 0 {
                    break;
                }
                self.shared.full.store(false, Ordering::Relaxed);
            }
            if moved >= AT_ONCE {
                self.shared.wake_readers();
                return true;
            }
            let got = fill(&mut self.ends.incoming, |buf| {
                let before = buf.filled().len();
                self.stream.poll_recv(cx, buf).map_ok(|()| buf.filled().len() - before)
            });
            match got {
                Poll::Pending => break,
                Poll::Ready(Ok(0)) => {
                    self.in_open = false;
                    self.shared.end_of_stream();
                }
                Poll::Ready(Ok(n)) => moved += n,
                Poll::Ready(Err(error)) => {
                    self.in_open = false;
                    self.broken(&error);
                    self.shared.say(IN_OVER);
                }
            }
        }
        if moved > 0 {
            self.shared.wake_readers();
        }
        false
    }

    /// Moves written bytes to the stack. Returns as [`Task::take_in`] does.
    fn give_out(&mut self, cx: &mut Context<'_>, flags: u8) -> bool {
        let mut moved = 0;
        while self.out_open {
            let available = self.ends.outgoing.slots();
            // An error is not possible: only this task takes bytes out.
            let Ok(chunk) = self.ends.outgoing.read_chunk(available) else { break };
            let (first, second) = chunk.as_slices();
            if first.is_empty() {
                if flags & SHUT != 0 {
                    self.out_open = false;
                    // An error means that the connection is over, and the reader gets the reason.
                    let _ = self.stream.shutdown_now(Shutdown::Write);
                    self.shared.say(FIN);
                }
                break;
            }
            if moved >= AT_ONCE {
                self.shared.wake_writers();
                return true;
            }
            match self.stream.poll_send_vectored(cx, &[IoSlice::new(first), IoSlice::new(second)]) {
                Poll::Pending => break,
                Poll::Ready(Ok(n)) => {
                    chunk.commit(n);
                    moved += n;
                }
                Poll::Ready(Err(error)) => self.broken(&error),
            }
        }
        if moved > 0 {
            self.shared.wake_writers();
        }
        false
    }

    fn broken(&mut self, error: &io::Error) {
        self.shared.fail(error);
        self.out_open = false;
        self.shared.say(OUT_OVER);
    }

    /// Closes the connection after the handle was dropped. Ready when the connection may be
    /// dropped.
    fn poll_gone(&mut self, cx: &mut Context<'_>, flags: u8) -> Poll<()> {
        // As with close(2): unread data resets the connection, and so does a linger time of 0.
        let unread = self.ends.incoming.slots() < RING;
        let at_once = lock(&self.shared.options).linger == Linger::Timeout(Duration::ZERO);
        if unread || at_once {
            // An error means that the connection is over already.
            let _ = self.stream.set_zero_linger();
            return Poll::Ready(());
        }
        let before = self.ends.outgoing.slots();
        if self.give_out(cx, flags) {
            self.reset_at = None;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if !self.out_open || self.ends.outgoing.is_empty() {
            return Poll::Ready(());
        }
        // The connection is not an orphan of the stack while its bytes are here.
        if self.ends.outgoing.slots() < before {
            self.reset_at = None;
        }
        let reset_at = self.reset_at.get_or_insert_with(|| Box::pin(sleep(DROPPED_WAIT)));
        std::task::ready!(reset_at.as_mut().poll(cx));
        // As above.
        let _ = self.stream.set_zero_linger();
        Poll::Ready(())
    }
}

impl Future for Task {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        this.shared.call.answer(cx);
        let flags = this.shared.flags();
        if flags & OPTIONS != 0 {
            let options = *lock(&this.shared.options);
            // An error means that the connection is over, and the next read or write returns the
            // reason.
            let _ = this.stream.set_options(options);
        }
        if flags & QUICKACK != 0 {
            // As above.
            let _ = this.stream.set_quickack(this.shared.quickack.load(Ordering::Relaxed));
        }
        if flags & GONE != 0 {
            std::task::ready!(this.poll_gone(cx, flags));
            this.over = true;
            return Poll::Ready(());
        }
        let more_in = this.take_in(cx);
        let more_out = this.give_out(cx, flags);
        if more_in || more_out {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        // A reset must end the task even if nothing reads or writes.
        if this.out_open && this.stream.poll_closed(cx).is_ready() {
            match this.stream.take_error() {
                Ok(Some(error)) | Err(error) => this.broken(&error),
                Ok(None) => this.broken(&io::Error::from_raw_os_error(libc::EPIPE)),
            }
        }
        Poll::Pending
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.shared.call.end();
        if self.over {
            return;
        }
        // The runtime ends. The stack sends what it takes now. If it does not take all bytes, the
        // peer must not see the end of a complete stream. First, so that no write adds bytes.
        self.shared.end();
        self.give_out(&mut Context::from_waker(Waker::noop()), self.shared.flags());
        if !self.ends.outgoing.is_empty() {
            // An error means that the connection is over already.
            let _ = self.stream.set_zero_linger();
        }
    }
}
