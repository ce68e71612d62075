//! Forwards a request to a server, and its response.
//!
//! Everything here runs in the single task of the client's connection. Bytes are parsed in the
//! core's scratch buffer, and nothing refers to it after a return.

use super::body::{Body, Malformed};
use super::client::{Asked, Client, Record};
use super::head::{self, Answer, HEAD_MAX, Parsed};
use super::io::{STEPS, nonzero, poll_kept, read_once, send_up, write};
use super::waiting::JOINED;
use fs_stacks::Stream;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The reason why an exchange failed.
pub(super) enum Failure {
    /// The client is gone, or does not read.
    Client,
    /// The client's body is malformed.
    Malformed,
    /// The server closed before the first byte of a response.
    Unanswered,
    /// Another error of the server, before the client got any byte of the response.
    Server(&'static str),
    /// The response cannot be completed.
    Broken,
    /// No byte moved for too long.
    TimedOut,
}

/// The state of a response.
enum Stage {
    Head,
    Body(Body),
}

/// A request to one server, and its response.
pub(super) struct Exchange<'a, 'b> {
    client: &'a mut Client<'b>,
    server: &'a mut Stream,
    asked: &'a mut Asked,
    record: &'a mut Record,
    /// Bytes of the request's head that were sent.
    sent: usize,
    /// The server takes no more bytes.
    is_deaf: bool,
    /// The whole request was sent.
    pub(super) is_sent: bool,
    stage: Stage,
    /// The server's connection can be used again.
    pub(super) reuse: bool,
    /// The client's connection ends with this response.
    pub(super) close: bool,
    /// Bytes moved in both directions, except those of the request's body.
    moved: u64,
    /// Bytes of the request's body that were sent to the server.
    uploaded: u64,
    /// The sum of both when the deadline was set.
    progress: Option<u64>,
}

impl<'a, 'b> Exchange<'a, 'b> {
    pub(super) fn new(
        client: &'a mut Client<'b>,
        server: &'a mut Stream,
        asked: &'a mut Asked,
        record: &'a mut Record,
    ) -> Self {
        let close = asked.close;
        Self {
            client,
            server,
            asked,
            record,
            sent: 0,
            is_deaf: false,
            is_sent: false,
            stage: Stage::Head,
            reuse: true,
            close,
            moved: 0,
            uploaded: 0,
            progress: None,
        }
    }

    /// Ready when the client has the whole response.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.is_sent = self.poll_up(cx)?.is_ready();
        if self.poll_down(cx)?.is_ready() {
            if !self.is_sent || self.is_deaf {
                // The response was complete first, so the rest of the request is discarded.
                (self.reuse, self.close) = (false, true);
            }
            return Poll::Ready(Ok(()));
        }
        if self.is_sent {
            self.client.watch(cx).map_err(|_| Failure::Client)?;
        }
        let client = &*self.client;
        // The clock wakes the task through this waker.
        let _ = client.connection.poll_leaving(cx);
        let (clock, timeouts) = (&client.core().clock, &client.site.config.timeouts);
        let pace = client.site.upload_pace();
        let progress = self.moved + self.uploaded / pace + u64::from(self.is_sent);
        if self.progress != Some(progress) {
            self.progress = Some(progress);
            let waits_for_answer = self.is_sent && matches!(self.stage, Stage::Head);
            let limit = if waits_for_answer { timeouts.response } else { timeouts.idle };
            clock.set(client.connection, clock.after(limit));
        } else if clock.is_late(client.connection) {
            return Poll::Ready(Err(Failure::TimedOut));
        }
        Poll::Pending
    }

    /// Returns true if the client must send next.
    pub(super) fn waits_for_client(&self) -> bool {
        !self.is_sent && self.client.up.is_empty() && self.sent == self.asked.head.len()
    }

    /// Ready when the whole request was sent, or the server takes no more of it.
    fn poll_up(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        if self.is_sent {
            return Poll::Ready(Ok(()));
        }
        let mut sent = self.poll_request(cx)?;
        if self.server.is_tls() && !matches!(sent, Poll::Ready(Err(_))) {
            // Records that TLS has buffered are sent only by a flush.
            let flushed = Pin::new(&mut *self.server).poll_flush(cx);
            if sent.is_ready() {
                sent = flushed;
            }
        }
        if ready!(sent).is_err() {
            // The server may have responded before. Otherwise the next read returns the error.
            self.is_deaf = true;
            self.client.up.clear();
        }
        Poll::Ready(Ok(()))
    }

    /// The inner error is the server's.
    fn poll_request(&mut self, cx: &mut Context<'_>) -> Poll<Result<io::Result<()>, Failure>> {
        while self.sent < self.asked.head.len() {
            match ready!(Pin::new(&mut *self.server).poll_write(cx, &self.asked.head[self.sent..])).and_then(nonzero) {
                Ok(written) => {
                    self.sent += written;
                    self.moved += written as u64;
                }
                Err(error) => return Poll::Ready(Ok(Err(error))),
            }
        }
        if !self.asked.has_body {
            return Poll::Ready(Ok(Ok(())));
        }
        let site = self.client.site;
        for _ in 0..STEPS {
            if let Err(error) = ready!(poll_kept(&mut self.client.up, self.server, &mut self.uploaded, cx)) {
                return Poll::Ready(Ok(Err(error)));
            }
            if self.asked.body.is_done() {
                return Poll::Ready(Ok(Ok(())));
            }
            let mut scratch = site.scratch.borrow_mut();
            let client = &mut *self.client;
            let result = if client.held.is_empty() {
                let bytes = match ready!(read_once!(client.stream, scratch, client.core(), cx)) {
                    Ok(len @ 1..) => &scratch[..len],
                    _ => return Poll::Ready(Err(Failure::Client)),
                };
                let mut out = client.core().buffers.out.borrow_mut();
                out.clear();
                let taken = self.asked.body.take(bytes, &mut out).map_err(|Malformed| Failure::Malformed)?;
                self.record.bytes_in += taken.content;
                let part = if taken.rewritten { &out } else { &bytes[..taken.used] };
                client.held.keep(&bytes[taken.used..]);
                send_up(&mut client.up, part, self.server, &mut self.uploaded, cx)
            } else {
                let mut out = client.core().buffers.out.borrow_mut();
                out.clear();
                let held = client.held.bytes();
                let taken = self.asked.body.take(held, &mut out).map_err(|Malformed| Failure::Malformed)?;
                self.record.bytes_in += taken.content;
                let part = if taken.rewritten { &out } else { &held[..taken.used] };
                let result = send_up(&mut client.up, part, self.server, &mut self.uploaded, cx);
                drop(out);
                client.held.consume(taken.used);
                result
            };
            if let Err(error) = result {
                return Poll::Ready(Ok(Err(error)));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Ready when the client has the whole response.
    fn poll_down(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        let site = self.client.site;
        for _ in 0..STEPS {
            let client = &mut *self.client;
            if ready!(poll_kept(&mut client.down, &mut client.stream, &mut self.moved, cx)).is_err() {
                return Poll::Ready(Err(Failure::Client));
            }
            if matches!(&self.stage, Stage::Body(body) if body.is_done()) {
                return match ready!(self.poll_flush(cx)) {
                    Ok(()) => Poll::Ready(Ok(())),
                    Err(_) => Poll::Ready(Err(Failure::Client)),
                };
            }
            if let Stage::Body(Body::Length(left)) = &mut self.stage {
                let most = usize::try_from(*left).unwrap_or(usize::MAX);
                let moved = ready!(self.server.poll_forward(cx, &client.stream, most)) as u64;
                if moved > 0 {
                    *left -= moved;
                    self.moved += moved;
                    self.record.bytes_out += moved;
                    continue;
                }
            }
            let mut scratch = site.scratch.borrow_mut();
            let Poll::Ready(read) = read_once!(*self.server, scratch, site.lean, cx) else {
                // Records that TLS has buffered are sent only by a flush.
                let _ = self.poll_flush(cx);
                return Poll::Pending;
            };
            let bytes = read.as_ref().map_or(&[][..], |len| &scratch[..*len]);
            self.moved += bytes.len() as u64;
            match &self.stage {
                Stage::Body(_) if bytes.is_empty() => self.ended(read.is_ok(), cx)?,
                Stage::Body(_) => self.body_came(bytes, cx)?,
                Stage::Head if bytes.is_empty() => {
                    return Poll::Ready(Err(match self.client.answer.is_empty() {
                        true => Failure::Unanswered,
                        false => Failure::Server("ends within a head"),
                    }));
                }
                Stage::Head if self.client.answer.is_empty() => self.head_came(bytes, cx)?,
                Stage::Head => {
                    self.client.answer.keep(bytes);
                    let whole = self.client.answer.take();
                    self.head_came(&whole, cx)?;
                    self.client.core().buffers.give(whole);
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    #[inline]
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.client.from.is_tls { Pin::new(&mut self.client.stream).poll_flush(cx) } else { Poll::Ready(Ok(())) }
    }

    /// Handles the end of the server's stream within a body.
    fn ended(&mut self, orderly: bool, cx: &mut Context<'_>) -> Result<(), Failure> {
        self.reuse = false;
        let Stage::Body(body @ Body::UntilEnd) = &mut self.stage else {
            return Err(Failure::Broken);
        };
        if !orderly {
            return Err(Failure::Broken);
        }
        let client = &mut *self.client;
        let mut out = Vec::new();
        body.end(&mut out);
        write(&mut client.down, [&out, &[]], &mut client.stream, &mut self.moved, cx).map_err(|_| Failure::Client)
    }

    fn body_came(&mut self, bytes: &[u8], cx: &mut Context<'_>) -> Result<(), Failure> {
        let Stage::Body(body) = &mut self.stage else { return Ok(()) };
        let client = &mut *self.client;
        let mut out = client.core().buffers.out.borrow_mut();
        out.clear();
        let taken = body.take(bytes, &mut out).map_err(|Malformed| Failure::Broken)?;
        // More bytes than the response: they cannot be attributed.
        self.reuse &= taken.used == bytes.len();
        self.record.bytes_out += taken.content;
        let part = if taken.rewritten { &out } else { &bytes[..taken.used] };
        if part.is_empty() {
            return Ok(());
        }
        write(&mut client.down, [part, &[]], &mut client.stream, &mut self.moved, cx).map_err(|_| Failure::Client)
    }

    /// Handles bytes of one or more heads, and what follows.
    fn head_came(&mut self, mut bytes: &[u8], cx: &mut Context<'_>) -> Result<(), Failure> {
        let site = self.client.site;
        // A client whose request is not complete cannot send the next one.
        let is_incomplete = !self.is_sent || self.is_deaf;
        let close = self.close || is_incomplete || site.stop.is_requested() || site.is_retired();
        let mut out = site.lean.buffers.out.borrow_mut();
        out.clear();
        let (Answer { status, mut body, reuse }, len) = loop {
            let start = out.len();
            match head::answer(bytes, self.asked.is_head, close, &mut out) {
                Parsed::Whole(Answer { status: 101, .. }, _) => {
                    return Err(Failure::Server("switches protocols without being asked"));
                }
                // RFC 9110 15.2: passed on.
                Parsed::Whole(Answer { status: ..200, .. }, len) => bytes = &bytes[len..],
                Parsed::Whole(answer, len) => {
                    if let Some(edits) = &site.listeners[self.client.from.listener].response_edits {
                        edits.apply(&mut out, start, self.client.about());
                    }
                    break (answer, len);
                }
                Parsed::Odd(what) => return Err(Failure::Server(what)),
                Parsed::Refused(_) => return Err(Failure::Server("sends a malformed head")),
                Parsed::Partial if bytes.len() >= HEAD_MAX => {
                    return Err(Failure::Server("sends a head that is too long"));
                }
                Parsed::Partial => {
                    self.client.answer.keep(bytes);
                    let client = &mut *self.client;
                    let written = match out.is_empty() {
                        true => Ok(()),
                        false => write(&mut client.down, [&out, &[]], &mut client.stream, &mut self.moved, cx),
                    };
                    return written.map_err(|_| Failure::Client);
                }
            }
        };
        self.close = close;
        let rest = &bytes[len..];
        let head = out.len();
        let taken = body.take(rest, &mut out).map_err(|Malformed| Failure::Server("sends malformed chunks"))?;
        self.reuse = reuse && taken.used == rest.len();
        self.record.answered(status);
        self.record.bytes_out = taken.content;
        self.stage = Stage::Body(body);
        let mut second = &rest[..taken.used];
        if taken.rewritten || second.len() <= JOINED {
            if out.len() == head {
                out.extend_from_slice(second);
            }
            second = &[];
        }
        let client = &mut *self.client;
        write(&mut client.down, [&out, second], &mut client.stream, &mut self.moved, cx).map_err(|_| Failure::Client)
    }
}
