//! Copies between two connections in both directions, each until its own end.
//!
//! Bytes pass through one buffer that all connections of a core share: they are read and written at
//! once. Only bytes that the receiver does not take get their own memory (at most one buffer per
//! direction), and nothing more is read in that direction until they are sent. So a relay that
//! keeps up, or is idle, has no buffer.

use crate::clients::Connection;
use crate::splice::Candidate;
use fs_splice::Flow;
use fs_stacks::Stream;
use fs_stacks::counters::Counter;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Bytes that a direction may buffer, and that are read at once. A piece with its headers fits one
/// merged packet of 65,535 bytes (decision 0029). Higher: each piece leaves as two packets. Lower: more
/// packets for a body.
pub(crate) const BUFFER: usize = 63 << 10;
/// Steps per turn before other connections get their turn.
const STEPS: usize = 16;

/// State that a relay shares with the others of its core, and its limits.
pub(crate) struct Shared<'a> {
    /// The client's connection, which may have to make a place for another.
    pub(crate) connection: &'a Connection,
    pub(crate) scratch: &'a RefCell<Vec<u8>>,
    pub(crate) idle: Duration,
    /// Bytes from the client.
    pub(crate) bytes_in: &'a Counter,
    /// Bytes to the client.
    pub(crate) bytes_out: &'a Counter,
    /// Bytes that were moved before the relay, and that are counted already.
    pub(crate) before: Moved,
    /// All bytes so far, also for a relay that is dropped.
    pub(crate) moved: &'a Cell<Moved>,
    /// The relay may leave user space.
    pub(crate) splice: Candidate<'a>,
}

impl Shared<'_> {
    /// Records what this relay has moved.
    pub(crate) fn note(&self, Moved { from_client, to_client }: Moved) {
        let Moved { from_client: more_in, to_client: more_out } = self.before;
        self.moved.set(Moved { from_client: from_client + more_in, to_client: to_client + more_out });
    }
}

/// One end, with bytes that were already read for it.
pub(crate) struct End {
    pub(crate) stream: Stream,
    /// Bytes to send to this end first.
    pub(crate) first: Vec<u8>,
}

/// The bytes moved in each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) from_client: u64,
    pub(crate) to_client: u64,
}

/// Both connections of a relay: the client's, and the server's.
pub(crate) struct Ends {
    pub(crate) a: Stream,
    pub(crate) b: Stream,
    /// Both directions have ended.
    pub(crate) is_whole: bool,
}

/// The result of a relay.
pub(crate) enum Outcome {
    Over(io::Result<()>),
    /// The relay continues outside of user space.
    Spliced(Box<Flow>, Ends, Directions),
}

/// The two directions of a relay.
pub(crate) struct Directions {
    up: Direction,
    down: Direction,
}

impl Drop for Ends {
    /// Also runs if the proxy ends first. A FIN would mean to both sides that all bytes have
    /// arrived.
    fn drop(&mut self) {
        if !self.is_whole {
            // An error means that the connection is gone.
            let _ = self.a.set_zero_linger();
            let _ = self.b.set_zero_linger();
        }
    }
}

/// Relays until both directions have ended, no byte moves within the idle time, or the flow leaves
/// user space. Passes a reset on to the other side.
pub(crate) async fn relay(client: End, server: End, shared: &mut Shared<'_>) -> Outcome {
    let mut ends = Ends { a: client.stream, b: server.stream, is_whole: false };
    let mut both = Directions { up: Direction::new(server.first), down: Direction::new(client.first) };
    shared.note(Moved::default());
    let result = {
        let mut timer = std::pin::pin!(tokio::time::sleep(shared.idle));
        let (mut seen, mut moved) = (0, 0);
        poll_fn(|cx| {
            if both.run(&mut ends, shared.scratch, cx)? {
                return Poll::Ready(Ok(None));
            }
            if both.moves() != moved {
                moved = both.moves();
                shared.connection.moved();
                shared.note(both.moved());
                if both.is_even()
                    && let Some(flow) = shared.splice.poll(&ends.a, &ends.b, moved, both.bytes())
                {
                    return Poll::Ready(Ok(Some(flow)));
                }
            }
            if shared.connection.poll_leaving(cx).is_ready() {
                // Both ends are reset below: a port that waits for the peers' FINs would still be
                // in use.
                return Poll::Ready(Err(evicted()));
            }
            poll_idle(timer.as_mut(), cx, shared.idle, moved, &mut seen)
        })
        .await
    };
    let result = match result {
        Ok(None) => Ok(()),
        Ok(Some(flow)) => return Outcome::Spliced(flow, ends, both),
        Err(error) => Err(error),
    };
    shared.bytes_in.add(both.up.bytes);
    shared.bytes_out.add(both.down.bytes);
    ends.is_whole = result.is_ok();
    shared.note(both.moved());
    Outcome::Over(result)
}

/// The error of a connection that makes a place for another.
pub(crate) fn evicted() -> io::Error {
    io::Error::other("idle longest, closed for another client")
}

/// The error of a connection without a byte in the idle time.
pub(crate) fn idle_for(period: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("nothing moved for {period:?}"))
}

impl Directions {
    /// Moves as many bytes as possible now. Returns true if both directions have ended.
    pub(crate) fn run(
        &mut self,
        ends: &mut Ends,
        scratch: &RefCell<Vec<u8>>,
        cx: &mut Context<'_>,
    ) -> io::Result<bool> {
        let Ends { a, b, .. } = ends;
        let mut again = self.up.run(a, b, scratch, cx)?;
        again |= self.down.run(b, a, scratch, cx)?;
        if self.up.is_done() && self.down.is_done() {
            return Ok(true);
        }
        if again {
            cx.waker().wake_by_ref();
        }
        Ok(false)
    }

    /// Returns the number of reads and writes that moved bytes.
    pub(crate) fn moves(&self) -> u64 {
        self.up.moves + self.down.moves
    }

    fn bytes(&self) -> u64 {
        self.up.bytes + self.down.bytes
    }

    /// Returns the bytes that were read.
    pub(crate) fn moved(&self) -> Moved {
        Moved { from_client: self.up.bytes, to_client: self.down.bytes }
    }

    /// Returns true if both directions are open, and all bytes that were read are written.
    pub(crate) fn is_even(&self) -> bool {
        [&self.up, &self.down].iter().all(|way| matches!(way.state, State::Open) && way.start >= way.rest.len())
    }

    /// Returns true if all bytes that were read, and the ends of streams, are passed on.
    pub(crate) fn is_settled(&self) -> bool {
        [&self.up, &self.down].iter().all(|way| !matches!(way.state, State::Ended) && way.start >= way.rest.len())
    }

    /// Returns which streams have ended: the client's, the server's.
    pub(crate) fn ended(&self) -> [bool; 2] {
        [&self.up, &self.down].map(|way| !matches!(way.state, State::Open))
    }
}

/// Moving bytes does not reset the timer. It checks once per period whether any moved.
fn poll_idle(
    mut timer: Pin<&mut Sleep>,
    cx: &mut Context<'_>,
    period: Duration,
    moves: u64,
    seen: &mut u64,
) -> Poll<io::Result<Option<Box<Flow>>>> {
    loop {
        ready!(timer.as_mut().poll(cx));
        if moves == *seen {
            return Poll::Ready(Err(idle_for(period)));
        }
        *seen = moves;
        timer.as_mut().reset(Instant::now() + period);
    }
}

enum State {
    /// Reading and writing.
    Open,
    /// The source has ended, and the end has to be sent to the destination.
    Ended,
    Done,
}

struct Direction {
    state: State,
    /// Bytes that the destination has not taken yet, starting at `start`.
    rest: Vec<u8>,
    start: usize,
    bytes: u64,
    /// Number of reads and writes that moved bytes.
    moves: u64,
}

impl Direction {
    fn new(rest: Vec<u8>) -> Self {
        Self { state: State::Open, rest, start: 0, bytes: 0, moves: 0 }
    }

    fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// Moves as many bytes as possible now. Returns true if there may be more.
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
                let moved = ready!(from.poll_forward(cx, to, usize::MAX));
                if moved > 0 {
                    self.bytes += moved as u64;
                    self.moves += 2;
                    return Poll::Ready(Ok(()));
                }
                let mut scratch = scratch.borrow_mut();
                let mut buf = ReadBuf::new(&mut scratch);
                match Pin::new(from).poll_read(cx, &mut buf) {
                    Poll::Ready(result) => result?,
                    Poll::Pending => {
                        // Records that TLS has buffered are sent only by a flush.
                        ready!(Pin::new(to).poll_flush(cx))?;
                        // No bytes wait, so the memory is freed.
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

    /// Records a write of `new` bytes, or of those in `rest`.
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
    use fs_stacks::testing::{PATIENCE, narrow_tls_pair};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    /// The source is silent but does not end, so no further write would send records that TLS has
    /// buffered.
    #[tokio::test]
    async fn buffered_tls_records_are_sent() {
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
            read = tokio::time::timeout(PATIENCE, read) => read.expect("all of it"),
        }
    }
}
