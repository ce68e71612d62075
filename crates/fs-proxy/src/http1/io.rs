//! Reads and writes of the lean path. Bytes are read into the core's scratch buffer.

use super::buffers::Kept;
use fs_stacks::Stream;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::AsyncWrite;

/// Reads per direction and turn before other connections get their turn.
pub(super) const STEPS: usize = 16;

/// Reads once. `None` is the end of the stream.
macro_rules! read_once {
    ($stream:expr, $scratch:ident, $core:expr, $cx:expr) => {{
        let len = $core.buffers.piece($scratch.len());
        let mut buf = ReadBuf::new(&mut $scratch[..len]);
        match Pin::new(&mut $stream).poll_read($cx, &mut buf) {
            Poll::Ready(result) => {
                let len = buf.filled().len();
                Poll::Ready(result.map(|()| len))
            }
            Poll::Pending => Poll::Pending,
        }
    }};
}

pub(super) fn nonzero(written: usize) -> io::Result<usize> {
    if written == 0 { Err(io::ErrorKind::WriteZero.into()) } else { Ok(written) }
}

/// Writes bytes that are kept for a peer. Counts the written bytes.
#[inline]
pub(super) fn poll_kept(
    kept: &mut Kept,
    to: &mut Stream,
    moved: &mut u64,
    cx: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    while !kept.is_empty() {
        let written = nonzero(ready!(Pin::new(&mut *to).poll_write(cx, kept.bytes()))?)?;
        *moved += written as u64;
        kept.consume(written);
    }
    Poll::Ready(Ok(()))
}

/// Writes two parts after the kept bytes, and keeps the rest.
#[inline]
pub(super) fn write(
    kept: &mut Kept,
    parts: [&[u8]; 2],
    to: &mut Stream,
    moved: &mut u64,
    cx: &mut Context<'_>,
) -> io::Result<()> {
    let [first, second] = parts;
    let mut written = 0;
    if kept.is_empty() {
        let polled = match second {
            [] => Pin::new(to).poll_write(cx, first),
            _ => Pin::new(to).poll_write_vectored(cx, &parts.map(IoSlice::new)),
        };
        if let Poll::Ready(result) = polled {
            written = nonzero(result?)?;
            *moved += written as u64;
        }
    }
    kept.keep(&first[written.min(first.len())..]);
    kept.keep(&second[written.saturating_sub(first.len())..]);
    Ok(())
}

#[inline]
pub(super) fn send_up(
    up: &mut Kept,
    part: &[u8],
    to: &mut Stream,
    sent: &mut u64,
    cx: &mut Context<'_>,
) -> io::Result<()> {
    if part.is_empty() { Ok(()) } else { write(up, [part, &[]], to, sent, cx) }
}

pub(super) use read_once;
