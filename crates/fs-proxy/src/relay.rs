//! Copies between two connections, both ways, each direction to its own end.
//!
//! Bytes go through one buffer that all connections of a core share: read, written at once, gone. Only what the
//! receiving side does not take gets memory of its own (at most one buffer per direction), and nothing more is read from
//! that side until it has gone. So a relay that keeps up, or is idle, holds no buffer.

use crate::clients::Connection;
use fs_example_common::Stream;
use fs_example_common::counters::Counter;
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Bytes that a direction may hold.
pub(crate) const BUFFER: usize = 64 << 10;
/// Steps in one turn before other connections get theirs.
const STEPS: usize = 16;

/// What a relay shares with the others of its core, and its limits.
pub(crate) struct Shared<'a> {
    /// The client's, which may have to make room for another.
    pub(crate) connection: &'a Connection,
    pub(crate) scratch: &'a RefCell<Vec<u8>>,
    pub(crate) idle: Duration,
    /// Bytes from the client.
    pub(crate) bytes_in: &'a Counter,
    /// Bytes to the client.
    pub(crate) bytes_out: &'a Counter,
}

/// One end, with what has already been read for it.
pub(crate) struct End {
    pub(crate) stream: Stream,
    /// Bytes that this end still has to be sent.
    pub(crate) first: Vec<u8>,
}

/// How many bytes went each way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) from_client: u64,
    pub(crate) to_client: u64,
}

/// Relays until both directions have ended, or nothing moves for the idle time. A reset on one side is passed on to the
/// other.
pub(crate) async fn relay(client: End, server: End, shared: Shared<'_>) -> (Moved, io::Result<()>) {
    let (mut a, mut b) = (client.stream, server.stream);
    let mut up = Direction::new(server.first);
    let mut down = Direction::new(client.first);
    let result = {
        let mut timer = std::pin::pin!(tokio::time::sleep(shared.idle));
        let (mut seen, mut moved) = (0, 0);
        poll_fn(|cx| {
            let mut again = up.run(&mut a, &mut b, shared.scratch, cx)?;
            again |= down.run(&mut b, &mut a, shared.scratch, cx)?;
            if up.is_done() && down.is_done() {
                return Poll::Ready(Ok(()));
            }
            if again {
                cx.waker().wake_by_ref();
            }
            if up.moves + down.moves != moved {
                moved = up.moves + down.moves;
                shared.connection.moved();
            }
            if shared.connection.poll_leaving(cx).is_ready() {
                // Both ends are reset, below: a port that waits for the peers' ends would be as good as taken.
                return Poll::Ready(Err(io::Error::other("idle longest, closed for another client")));
            }
            poll_idle(timer.as_mut(), cx, shared.idle, up.moves + down.moves, &mut seen)
        })
        .await
    };
    shared.bytes_in.add(up.bytes);
    shared.bytes_out.add(down.bytes);
    if result.is_err() {
        // Dropping with FIN would tell the other side that all is well. It fails where the connection is gone.
        let _ = a.set_zero_linger();
        let _ = b.set_zero_linger();
    }
    (Moved { from_client: up.bytes, to_client: down.bytes }, result)
}

/// The timer is not touched while bytes move: it looks, once a period, whether any did.
fn poll_idle(
    mut timer: Pin<&mut Sleep>,
    cx: &mut Context<'_>,
    period: Duration,
    moves: u64,
    seen: &mut u64,
) -> Poll<io::Result<()>> {
    loop {
        ready!(timer.as_mut().poll(cx));
        if moves == *seen {
            let message = format!("nothing moved for {period:?}");
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)));
        }
        *seen = moves;
        timer.as_mut().reset(Instant::now() + period);
    }
}

enum State {
    /// Reading and writing.
    Open,
    /// The source has ended; the destination is to be told.
    Ended,
    Done,
}

struct Direction {
    state: State,
    /// What the destination has not taken yet, from `start` on.
    rest: Vec<u8>,
    start: usize,
    bytes: u64,
    /// Reads and writes that moved something.
    moves: u64,
}

impl Direction {
    fn new(rest: Vec<u8>) -> Self {
        Self { state: State::Open, rest, start: 0, bytes: 0, moves: 0 }
    }

    fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// Moves what can be moved now. True when there may be more.
    fn run(
        &mut self,
        from: &mut Stream,
        to: &mut Stream,
        scratch: &RefCell<Vec<u8>>,
        cx: &mut Context<'_>,
    ) -> io::Result<bool> {
        for _ in 0..STEPS {
            if self.step(from, to, scratch, cx)?.is_pending() || self.is_done() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn step(
        &mut self,
        from: &mut Stream,
        to: &mut Stream,
        scratch: &RefCell<Vec<u8>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if self.start < self.rest.len() {
            let sent = ready!(Pin::new(&mut *to).poll_write(cx, &self.rest[self.start..]))?;
            return Poll::Ready(self.sent(sent, None));
        }
        match self.state {
            State::Open => {
                let mut scratch = scratch.borrow_mut();
                let mut buf = ReadBuf::new(&mut scratch);
                match Pin::new(from).poll_read(cx, &mut buf) {
                    Poll::Ready(result) => result?,
                    Poll::Pending => {
                        // What TLS holds back has nobody else to send it.
                        ready!(Pin::new(to).poll_flush(cx))?;
                        // Quiet: the memory of the last jam is not needed.
                        (self.rest, self.start) = (Vec::new(), 0);
                        return Poll::Pending;
                    }
                }
                let read = buf.filled();
                if read.is_empty() {
                    self.state = State::Ended;
                    return Poll::Ready(Ok(()));
                }
                self.bytes += read.len() as u64;
                self.moves += 1;
                match Pin::new(to).poll_write(cx, read) {
                    Poll::Ready(sent) => Poll::Ready(self.sent(sent?, Some(read))),
                    Poll::Pending => {
                        self.keep(read);
                        Poll::Pending
                    }
                }
            }
            State::Ended => {
                ready!(Pin::new(to).poll_shutdown(cx))?;
                self.state = State::Done;
                Poll::Ready(Ok(()))
            }
            State::Done => Poll::Ready(Ok(())),
        }
    }

    /// Takes note of a write of `new` bytes, or of those in `rest`.
    fn sent(&mut self, sent: usize, new: Option<&[u8]>) -> io::Result<()> {
        if sent == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.moves += 1;
        match new {
            Some(new) if sent < new.len() => self.keep(&new[sent..]),
            Some(_) => {}
            None => self.start += sent,
        }
        Ok(())
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.rest.clear();
        self.rest.extend_from_slice(bytes);
        self.start = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fs_example_common::testing::narrow_tls_pair;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    /// The source has nothing more to say and does not end: no write follows that would send what TLS holds back.
    #[tokio::test]
    async fn records_that_tls_holds_back_are_sent() {
        const LENGTH: usize = 60_000;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut source = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut from = Stream::Kernel(listener.accept().await.unwrap().0);
        let (mut client, mut to) = narrow_tls_pair().await;
        source.write_all(&[1; LENGTH]).await.unwrap();
        let (mut direction, scratch) = (Direction::new(Vec::new()), RefCell::new(vec![0; BUFFER]));
        let relaying = poll_fn(|cx| {
            assert!(!direction.run(&mut from, &mut to, &scratch, cx).unwrap());
            Poll::<()>::Pending
        });
        let read = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            client.read_exact(&mut vec![0; LENGTH]).await.unwrap();
        };
        tokio::select! {
            () = relaying => {}
            read = tokio::time::timeout(Duration::from_secs(10), read) => read.expect("all of it"),
        }
    }
}
