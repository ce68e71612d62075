//! The only module of the lean path that polls: forwarding a request to a server, its response, and
//! waiting for requests.
//!
//! Everything here runs in the single task of the client's connection. Bytes are parsed in the
//! core's scratch buffer, and nothing refers to it after a return.

use super::body::{Body, Malformed};
use super::buffers::Kept;
use super::client::{Asked, Client, Record};
use super::head::{self, Answer, HEAD_MAX, Parsed};
use crate::refusal::Refusal;
use crate::upstream::Use;
use fs_stacks::Stream;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes of a body that are copied behind its head, so that both are in one buffer. Too low: two
/// packets instead of one. Too high: the copy costs more than the second part of a vectored write.
pub(super) const JOINED: usize = 2048;
/// Pipelined bytes that are kept while a request is served. Further bytes stay in the socket.
const HELD_MAX: usize = 64 << 10;
/// Reads per direction and turn before other connections get their turn.
const STEPS: usize = 16;
/// How long a client's further bytes are read and dropped, so that a reset does not discard its
/// response (RFC 9112 9.6). Too short: it is lost on slow lines. Too long: a finished connection
/// stays open.
const LINGER: Duration = Duration::from_secs(5);

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

/// The client's next action.
pub(super) enum Next {
    Request(Asked),
    Odd(&'static str),
    Refused(Refusal),
    /// Nothing more.
    Closed,
}

/// Reads once. `None` is the end of the stream.
macro_rules! read {
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

fn nonzero(written: usize) -> io::Result<usize> {
    if written == 0 { Err(io::ErrorKind::WriteZero.into()) } else { Ok(written) }
}

/// Writes bytes that are kept for a peer. Counts the written bytes.
#[inline]
fn poll_kept(kept: &mut Kept, to: &mut Stream, moved: &mut u64, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
    while !kept.is_empty() {
        let written = nonzero(ready!(Pin::new(&mut *to).poll_write(cx, kept.bytes()))?)?;
        *moved += written as u64;
        kept.consume(written);
    }
    Poll::Ready(Ok(()))
}

/// Writes two parts after the kept bytes, and keeps the rest.
#[inline]
fn write(kept: &mut Kept, parts: [&[u8]; 2], to: &mut Stream, moved: &mut u64, cx: &mut Context<'_>) -> io::Result<()> {
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

impl Client<'_> {
    /// Waits for a request.
    pub(super) fn poll_request(&mut self, cx: &mut Context<'_>) -> Poll<Next> {
        let site = self.site;
        loop {
            if let Some(next) = self.look_at_held() {
                return Poll::Ready(next);
            }
            let mut scratch = site.scratch.borrow_mut();
            let bytes = match read!(self.stream, scratch, self.core(), cx) {
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
                match read!(self.stream, scratch, self.core(), cx) {
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
    used: &'a Use,
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
        used: &'a Use,
        record: &'a mut Record,
    ) -> Self {
        let close = asked.close;
        Self {
            client,
            server,
            asked,
            used,
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
            self.watch_client(cx)?;
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
        let sent = ready!(self.poll_request(cx))?;
        if sent.is_err() {
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
                let bytes = match ready!(read!(client.stream, scratch, client.core(), cx)) {
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
            let Poll::Ready(read) = read!(*self.server, scratch, site.lean, cx) else {
                // Nothing else would send records that TLS has buffered.
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
        let close = self.close || !self.is_sent || site.stop.is_requested() || site.is_retired();
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
                        edits.apply(&mut out, start, self.client.from.peer.ip());
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
        self.record.answered(status, self.used.server().addr);
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

    /// A client that closes while its response is in progress ends the request. Bytes of further
    /// requests are kept.
    fn watch_client(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        let client = &mut *self.client;
        while client.held.bytes().len() < HELD_MAX {
            let mut scratch = client.site.scratch.borrow_mut();
            match read!(client.stream, scratch, client.core(), cx) {
                Poll::Pending => break,
                Poll::Ready(Ok(len @ 1..)) => client.held.keep(&scratch[..len]),
                Poll::Ready(_) => return Err(Failure::Client),
            }
        }
        Ok(())
    }
}

#[inline]
fn send_up(up: &mut Kept, part: &[u8], to: &mut Stream, sent: &mut u64, cx: &mut Context<'_>) -> io::Result<()> {
    if part.is_empty() { Ok(()) } else { write(up, [part, &[]], to, sent, cx) }
}
