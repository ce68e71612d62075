//! A client's connection between requests: waits for the next one, sends the rest of a response, and
//! closes.

use super::body::Malformed;
use super::client::{Asked, Client};
use super::head::{self, HEAD_MAX, Parsed};
use super::io::{STEPS, poll_kept, read_once};
use crate::refusal::Refusal;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes of a body that are copied behind its head, so that both are in one buffer. Too low: two
/// packets instead of one. Too high: the copy costs more than the second part of a vectored write.
pub(super) const JOINED: usize = 2048;
/// Pipelined bytes that are kept while a request is served. Further bytes stay in the socket.
const HELD_MAX: usize = 64 << 10;
/// Time for which a client's further bytes are read and dropped, so that a reset does not discard
/// its response (RFC 9112 9.6). Too short: the response is lost on slow lines. Too long: a finished
/// connection stays open.
const LINGER: Duration = Duration::from_secs(5);

/// The client's next action.
pub(super) enum Next {
    Request(Asked),
    Odd(&'static str),
    Refused(Refusal),
    /// Nothing more.
    Closed,
}

impl Client<'_> {
    /// Waits for a request.
    pub(super) fn poll_request(&mut self, cx: &mut Context<'_>) -> Poll<Next> {
        let site = self.site;
        loop {
            if let Some(next) = self.look_at_held() {
                return Poll::Ready(next);
            }
            let mut scratch = site.scratch.borrow_mut();
            let bytes = match read_once!(self.stream, scratch, self.core(), cx) {
                Poll::Ready(Ok(len @ 1..)) => &scratch[..len],
                Poll::Ready(_) => return Poll::Ready(Next::Closed),
                Poll::Pending => return self.wait(cx),
            };
            if !self.held.is_empty() || site.is_retired() {
                self.held.keep(bytes);
                continue;
            }
            match self.parse(bytes) {
                Parsed::Whole(asked, used) => {
                    self.held.keep(&bytes[used..]);
                    return Poll::Ready(Next::Request(asked));
                }
                Parsed::Odd(why) => {
                    self.held.keep(bytes);
                    return Poll::Ready(Next::Odd(why));
                }
                Parsed::Refused(refusal) => return Poll::Ready(Next::Refused(refusal)),
                Parsed::Partial if self.core().buffers.is_full() => {
                    return Poll::Ready(Next::Refused(Refusal::NO_CONNECTION_LEFT));
                }
                Parsed::Partial => {
                    self.held.keep(bytes);
                    self.seen = bytes.len();
                    self.drop_empty_lines();
                    if !self.held.is_empty() {
                        // One deadline for the whole head, however it arrives.
                        self.core().clock.set(self.connection, self.core().clock.after(site.config.timeouts.idle));
                    }
                }
            }
        }
    }

    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<Next> {
        let has_to_go = self.connection.poll_leaving(cx).is_ready();
        let is_late = self.core().clock.is_late(self.connection);
        if is_late && !self.held.is_empty() && !has_to_go {
            return Poll::Ready(Next::Refused(Refusal::TIMED_OUT));
        }
        if has_to_go || is_late || (self.site.stop.is_requested() && self.held.is_empty()) {
            return Poll::Ready(Next::Closed);
        }
        Poll::Pending
    }

    /// Reads during a request, because only a read shows that the client has reset its connection: an
    /// error, which ends the request. A client that ends its stream has only no further requests. Bytes
    /// of further requests, or of the body of one that waits for a server, are kept.
    pub(super) fn watch(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while !self.has_ended && self.held.bytes().len() < HELD_MAX {
            let mut scratch = self.site.scratch.borrow_mut();
            match read_once!(self.stream, scratch, self.core(), cx) {
                Poll::Pending => break,
                Poll::Ready(Ok(0)) => self.has_ended = true,
                Poll::Ready(Ok(len)) => self.held.keep(&scratch[..len]),
                Poll::Ready(Err(error)) => return Err(error),
            }
        }
        Ok(())
    }

    fn look_at_held(&mut self) -> Option<Next> {
        let held = self.held.bytes();
        if held.len() <= self.seen {
            return None;
        }
        if self.site.is_retired() {
            // A request for the next configuration.
            return Some(Next::Odd("another configuration"));
        }
        // A head that arrives byte by byte is not parsed with each byte.
        let new = &held[self.seen.saturating_sub(3)..];
        let may_be_whole = self.seen == 0
            || new.windows(2).any(|two| two == b"\n\n")
            || new.windows(3).any(|three| three == b"\n\r\n");
        self.seen = held.len();
        match if may_be_whole { self.parse(held) } else { Parsed::Partial } {
            Parsed::Whole(asked, used) => {
                self.held.consume(used);
                self.seen = 0;
                Some(Next::Request(asked))
            }
            Parsed::Odd(why) => Some(Next::Odd(why)),
            Parsed::Refused(refusal) => Some(Next::Refused(refusal)),
            Parsed::Partial if held.len() >= HEAD_MAX => Some(Next::Refused(Refusal::HEAD_TOO_LONG)),
            Parsed::Partial => {
                self.drop_empty_lines();
                None
            }
        }
    }

    /// Empty lines before a request are ignored (RFC 9112 2.2): a connection with only those is
    /// idle.
    fn drop_empty_lines(&mut self) {
        let empty = self.held.bytes().chunks(2).take_while(|two| two == b"\r\n").count() * 2;
        self.held.consume(empty);
        self.seen = self.held.bytes().len();
    }

    /// Parses the request at the start of `bytes`, with the part of its body that is sent with the
    /// head.
    fn parse(&self, bytes: &[u8]) -> Parsed<Asked> {
        let mut head = self.core().buffers.take();
        let parsed = match head::request(bytes, &self.added, &mut head) {
            Parsed::Whole(mut request, len) => {
                let has_body = !request.body.is_done();
                let (mut used, mut content) = (0, 0);
                if has_body {
                    let part = &bytes[len..];
                    let part = &part[..part.len().min(JOINED)];
                    match request.body.take(part, &mut head) {
                        Ok(taken) => {
                            (used, content) = (taken.used, taken.content);
                            if !taken.rewritten {
                                head.extend_from_slice(&part[..used]);
                            }
                        }
                        Err(Malformed) => return Parsed::Refused(Refusal(400, "the chunks are malformed")),
                    }
                }
                return Parsed::Whole(Asked::new(request, head, has_body, content), len + used);
            }
            Parsed::Partial => Parsed::Partial,
            Parsed::Odd(why) => Parsed::Odd(why),
            Parsed::Refused(refusal) => Parsed::Refused(refusal),
        };
        self.core().buffers.give(head);
        parsed
    }

    /// Sends the bytes that are kept for the client. Also ready if the client does not take them in
    /// time.
    pub(super) fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let is_over = self.connection.poll_leaving(cx).is_ready() || self.core().clock.is_late(self.connection);
        let sent = poll_kept(&mut self.down, &mut self.stream, &mut 0, cx);
        match sent {
            Poll::Ready(Ok(())) => Pin::new(&mut self.stream).poll_flush(cx),
            Poll::Pending if is_over => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            sent => sent,
        }
    }

    /// Closes the connection. With `linger`, reads the client's further bytes first.
    pub(super) async fn finish(&mut self, linger: bool) {
        self.held.clear();
        self.core().clock.set(self.connection, self.core().clock.after(LINGER));
        let mut said = false;
        std::future::poll_fn(|cx| {
            let mut is_over = self.connection.poll_leaving(cx).is_ready() || self.core().clock.is_late(self.connection);
            if !said {
                match Pin::new(&mut self.stream).poll_shutdown(cx) {
                    Poll::Ready(Ok(())) => said = true,
                    Poll::Ready(Err(_)) => return Poll::Ready(()),
                    Poll::Pending if is_over => return Poll::Ready(()),
                    Poll::Pending => return Poll::Pending,
                }
            }
            is_over |= self.site.stop.is_requested();
            if !linger || is_over {
                return Poll::Ready(());
            }
            let mut scratch = self.site.scratch.borrow_mut();
            for _ in 0..STEPS {
                match read_once!(self.stream, scratch, self.core(), cx) {
                    Poll::Ready(Ok(1..)) => {}
                    Poll::Ready(_) => return Poll::Ready(()),
                    Poll::Pending => return Poll::Pending,
                }
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}
