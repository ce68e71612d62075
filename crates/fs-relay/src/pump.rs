//! Bytes between a client's connection on the device and the kernel connection to its program.
//!
//! A direction reads only what it can pass on: it buffers at most [`BUFFER`] bytes that the
//! receiver has not accepted, and reads nothing more until they are sent. So a slow reader slows
//! its writer by TCP's own window, and an idle connection has no buffer.

use fs_compat::{BorrowedBytes, TcpStream};
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream as KernelStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};

/// Maximum number of bytes of one read, which a direction may have to buffer. Larger: fewer system
/// calls for bulk data. Smaller: other connections of the core wait less.
pub(crate) const BUFFER: usize = 64 << 10;
/// Received frames that one writev(2) sends: 64 KiB of full segments.
const FRAMES: usize = 44;
/// Reads of one direction before the task yields to the core's other tasks.
const STEPS: usize = 4;

/// Relays until both directions have ended. Returns an error if one end was reset or lost. The caller
/// then resets both.
pub(crate) async fn pump(wire: &TcpStream, program: &mut KernelStream, scratch: &RefCell<Vec<u8>>) -> io::Result<()> {
    let mut down = Down::default();
    let result = both(wire, program, &mut down, scratch).await;
    if result.is_err() {
        down.pass_rest(wire, program, scratch).await;
    }
    result
}

async fn both(
    wire: &TcpStream,
    program: &mut KernelStream,
    down: &mut Down,
    scratch: &RefCell<Vec<u8>>,
) -> io::Result<()> {
    let (mut from_program, mut to_program) = program.split();
    let mut up = Up::default();
    // Until the first direction has ended, both ends are read, so a reset of either is noticed.
    let up_ended = poll_fn(|cx| {
        let turn = [up.run(wire, &mut to_program, cx)?, down.run(wire, &mut from_program, scratch, cx)?];
        match turn {
            [Turn::Ended, _] => Poll::Ready(io::Result::Ok(true)),
            [_, Turn::Ended] => Poll::Ready(Ok(false)),
            _ => {
                if turn.contains(&Turn::Again) {
                    cx.waker().wake_by_ref();
                }
                Poll::Pending
            }
        }
    })
    .await?;
    // One end is not read any more, so the task has to watch for its reset.
    if up_ended {
        poll_fn(|cx| {
            if rest(down.run(wire, &mut from_program, scratch, cx)?, cx).is_ready() {
                return Poll::Ready(Ok(()));
            }
            ready!(wire.poll_closed(cx));
            Poll::Ready(Err(wire.take_error().ok().flatten().unwrap_or_else(reset)))
        })
        .await
    } else {
        let mut failed = pin!(from_program.ready(Interest::ERROR));
        poll_fn(|cx| {
            if rest(up.run(wire, &mut to_program, cx)?, cx).is_ready() {
                return Poll::Ready(Ok(()));
            }
            ready!(failed.as_mut().poll(cx))?;
            Poll::Ready(Err(reset()))
        })
        .await
    }
}

fn reset() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}

/// Waits for the end of the only direction that is still open.
fn rest(turn: Turn, cx: &Context<'_>) -> Poll<()> {
    match turn {
        Turn::Ended => return Poll::Ready(()),
        Turn::Again => cx.waker().wake_by_ref(),
        Turn::Waits => {}
    }
    Poll::Pending
}

/// The result of a direction's turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// A waker is registered.
    Waits,
    /// More work may be possible at once.
    Again,
    /// The receiver has got the end of the stream.
    Ended,
}

/// Bytes that were read and not yet accepted by the receiver.
#[derive(Default)]
struct Rest {
    bytes: Vec<u8>,
    start: usize,
}

impl Rest {
    fn left(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    fn keep<'a>(&mut self, parts: impl IntoIterator<Item = &'a [u8]>) {
        (self.bytes, self.start) = (Vec::new(), 0);
        parts.into_iter().for_each(|part| self.bytes.extend_from_slice(part));
    }

    /// Removes `count` bytes. Frees the memory with the last one.
    fn took(&mut self, count: usize) -> io::Result<()> {
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.start += count;
        if self.left().is_empty() {
            (self.bytes, self.start) = (Vec::new(), 0);
        }
        Ok(())
    }
}

/// From the device to the program.
#[derive(Default)]
struct Up {
    rest: Rest,
    /// The client has ended its stream or was reset. This is passed on after `rest`.
    end: Option<io::Result<()>>,
}

impl Up {
    fn run(&mut self, wire: &TcpStream, program: &mut WriteHalf<'_>, cx: &mut Context<'_>) -> io::Result<Turn> {
        for _ in 0..STEPS {
            match self.step(wire, program, cx) {
                Poll::Ready(Ok(true)) => return Ok(Turn::Ended),
                Poll::Ready(Ok(false)) => {}
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => return Ok(Turn::Waits),
            }
        }
        Ok(Turn::Again)
    }

    /// Moves some bytes. Returns `Ready(true)` after the end.
    fn step(&mut self, wire: &TcpStream, program: &mut WriteHalf<'_>, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let mut program = Pin::new(program);
        if !self.rest.left().is_empty() {
            let Poll::Ready(count) = program.poll_write(cx, self.rest.left()) else {
                // The client is not read at this point, so the task has to watch for its reset.
                // "Closed" may also mean that both ends have ended their streams.
                ready!(wire.poll_closed(cx));
                let Ok(Some(error)) = wire.take_error() else { return Poll::Pending };
                return Poll::Ready(Err(error));
            };
            return Poll::Ready(self.rest.took(count?).map(|()| false));
        }
        let frames = if self.end.is_none() { self.receive(wire, cx) } else { Vec::new() };
        if frames.is_empty() {
            let Some(end) = self.end.take() else { return Poll::Pending };
            end?;
            ready!(program.poll_shutdown(cx))?;
            return Poll::Ready(Ok(true));
        }
        let slices: Vec<IoSlice<'_>> = frames.iter().map(|frame| IoSlice::new(frame)).collect();
        let mut sent = match program.as_mut().poll_write_vectored(cx, &slices) {
            Poll::Ready(sent) => sent?,
            Poll::Pending => 0,
        };
        let mut left = slices.iter().map(|slice| &**slice).filter_map(|slice| {
            let taken = sent.min(slice.len());
            sent -= taken;
            (taken < slice.len()).then(|| &slice[taken..])
        });
        // The frames belong to the core's pool, which a slow program must not empty.
        if let Some(first) = left.next() {
            self.rest.keep(std::iter::once(first).chain(left));
        }
        Poll::Ready(Ok(false))
    }

    fn receive(&mut self, wire: &TcpStream, cx: &mut Context<'_>) -> Vec<BorrowedBytes> {
        let (mut frames, mut bytes) = (Vec::new(), 0);
        while frames.len() < FRAMES && bytes < BUFFER {
            match wire.poll_recv_borrowed(cx) {
                Poll::Ready(Ok(frame)) if frame.is_end_of_stream() => self.end = Some(Ok(())),
                Poll::Ready(Ok(frame)) => {
                    bytes += frame.len();
                    frames.push(frame);
                    continue;
                }
                Poll::Ready(Err(error)) => self.end = Some(Err(error)),
                Poll::Pending => {}
            }
            break;
        }
        frames
    }
}

/// From the program to the device.
#[derive(Default)]
struct Down {
    rest: Rest,
}

impl Down {
    fn run(
        &mut self,
        wire: &TcpStream,
        program: &mut ReadHalf<'_>,
        scratch: &RefCell<Vec<u8>>,
        cx: &mut Context<'_>,
    ) -> io::Result<Turn> {
        for _ in 0..STEPS {
            match self.step(wire, program, scratch, cx) {
                Poll::Ready(Ok(true)) => return Ok(Turn::Ended),
                Poll::Ready(Ok(false)) => {}
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => return Ok(Turn::Waits),
            }
        }
        Ok(Turn::Again)
    }

    /// Passes on what a program wrote before its connection was reset, as much as the client's window
    /// takes. A program that closes with unread bytes resets its connection after its last words.
    async fn pass_rest(&mut self, wire: &TcpStream, program: &KernelStream, scratch: &RefCell<Vec<u8>>) {
        let mut passed = false;
        poll_fn(|cx| {
            if std::mem::replace(&mut passed, true) {
                return Poll::Ready(());
            }
            let left = std::mem::take(&mut self.rest);
            let mut fits = left.left().is_empty() || wire.try_write(left.left()).is_ok_and(|n| n == left.left().len());
            let mut scratch = scratch.borrow_mut();
            // The error of a write may be known before the readiness to read, which tokio waits for.
            while fits && let Ok(count @ 1..) = rustix::io::read(program, &mut scratch[..]) {
                fits = wire.try_write(&scratch[..count]).is_ok_and(|sent| sent == count);
            }
            // The core sends the segments after this turn. A reset drops those that are not sent.
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    fn step(
        &mut self,
        wire: &TcpStream,
        program: &mut ReadHalf<'_>,
        scratch: &RefCell<Vec<u8>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<bool>> {
        if !self.rest.left().is_empty() {
            let count = ready!(write(wire, self.rest.left(), cx))?;
            return Poll::Ready(self.rest.took(count).map(|()| false));
        }
        let mut scratch = scratch.borrow_mut();
        let mut buf = ReadBuf::new(&mut scratch);
        ready!(Pin::new(program).poll_read(cx, &mut buf))?;
        let read = buf.filled();
        if read.is_empty() {
            wire.shutdown_now(Shutdown::Write)?;
            return Poll::Ready(Ok(true));
        }
        let sent = match write(wire, read, cx) {
            Poll::Ready(sent) => sent?,
            Poll::Pending => 0,
        };
        if sent < read.len() {
            self.rest.keep([&read[sent..]]);
        }
        Poll::Ready(Ok(false))
    }
}

fn write(wire: &TcpStream, bytes: &[u8], cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
    loop {
        match wire.try_write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready!(wire.poll_write_ready(cx))?,
            written => return Poll::Ready(written),
        }
    }
}
