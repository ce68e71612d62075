//! The requests of a client's connection: the choice of a server for each, and the proxy's own
//! responses.

use super::body::Body;
use super::client::{Asked, CLIENT_GONE, Client, Record};
use super::exchange::{Exchange, Failure};
use super::head;
use super::waiting::Next;
use crate::clients::Busy;
use crate::log_entry::{Entry, LOGGED_FIELDS, Request, What};
use crate::refusal::{Redirect, Refusal, Reply};
use crate::routes::{self, Destination, Facts, Fields};
use crate::stats::Answer;
use crate::upstream::{Pick, Upstream, Use};
use bytes::Bytes;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Instant;

/// The state of the connection after a response.
enum Then {
    Next,
    Close,
    /// The client may still be sending.
    Linger,
}

/// A request in progress, counted and logged when it is dropped: a stop drops requests.
struct Noted<'a, 'b> {
    client: &'a mut Client<'b>,
    asked: Asked,
    record: Record,
    busy: Option<Busy>,
}

impl<'a, 'b> Noted<'a, 'b> {
    fn new(client: &'a mut Client<'b>, asked: Asked) -> Self {
        let (record, busy) = (Record::new(asked.content), Some(client.connection.busy()));
        Self { client, asked, record, busy }
    }
}

impl Drop for Noted<'_, '_> {
    fn drop(&mut self) {
        let Self { client, asked, record, busy } = self;
        drop(busy.take());
        client.note(asked, record);
        for kept in [&mut client.up, &mut client.answer] {
            kept.clear();
        }
        client.core().buffers.give(std::mem::take(&mut asked.head));
    }
}

impl Client<'_> {
    /// Serves requests until the connection ends (`None`), or until a request arrives that hyper
    /// must serve: returns the bytes that were read of it.
    pub(super) async fn serve(&mut self) -> Option<Bytes> {
        let clock = &self.core().clock;
        loop {
            clock.set(self.connection, clock.after(self.site.config.timeouts.idle));
            let then = match poll_fn(|cx| self.poll_request(cx)).await {
                Next::Closed => Then::Close,
                Next::Odd(why) => {
                    tracing::debug!("{}: served by hyper: {why}", self.from.peer);
                    clock.clear(self.connection);
                    return Some(self.held.take().into());
                }
                Next::Refused(refusal) => Box::pin(self.refuse_unread(refusal)).await,
                // Boxed, so that a connection that waits does not have its memory.
                Next::Request(asked) => Box::pin(self.answer(asked)).await,
            };
            match then {
                Then::Next => {}
                // Without TLS a close is enough.
                Then::Close if !self.from.is_tls => return None,
                Then::Close | Then::Linger => {
                    self.finish(matches!(then, Then::Linger)).await;
                    return None;
                }
            }
        }
    }

    /// Responds to bytes that are no request that could be forwarded.
    async fn refuse_unread(&mut self, refusal: Refusal) -> Then {
        self.site.listener_stats(self.from.listener).failed.add(1);
        let asked = Asked {
            head: Vec::new(),
            body: Body::NONE,
            content: 0,
            has_body: false,
            close: true,
            is_head: false,
            may_repeat: false,
            started: Instant::now(),
        };
        let mut noted = Noted::new(self, asked);
        noted.client.refuse(&noted.asked, &mut noted.record, refusal).await
    }

    async fn answer(&mut self, asked: Asked) -> Then {
        let mut noted = Noted::new(self, asked);
        noted.client.ask(&mut noted.asked, &mut noted.record).await
    }

    /// Tries servers until one responds, or no more may be tried.
    async fn ask(&mut self, asked: &mut Asked, record: &mut Record) -> Then {
        let site = self.site;
        if !self.connection.may_ask(&site.config.limits) {
            return self.refuse(asked, record, Refusal::TOO_MANY).await;
        }
        let routed;
        let (upstream, key) = match site.listeners[self.from.listener].routes.direct() {
            Some(upstream) => (upstream, None),
            None => match self.destination(asked) {
                (Destination::Upstream(upstream), key) => {
                    routed = upstream;
                    (&routed, key)
                }
                (Destination::Redirect(status, location), _) => {
                    return self.refuse(asked, record, Redirect(status, location)).await;
                }
                (Destination::Nowhere, _) => return self.refuse(asked, record, Refusal::NO_ROUTE).await,
            },
        };
        for edits in [&site.listeners[self.from.listener].request_edits, &upstream.request_edits].into_iter().flatten()
        {
            edits.apply_to_head(&mut asked.head, self.about());
        }
        let mut tried = Vec::new();
        let mut unreached = Refusal::UNREACHABLE;
        let (mut may_reuse, mut was_sent) = (true, false);
        // The use of a server whose kept connection had ended: it gets the request over a new one.
        let mut same = None;
        loop {
            let used = match same.take() {
                Some(used) => used,
                None => {
                    let used = match upstream.pick(&tried, key) {
                        Pick::Used(used) => used,
                        // Boxed, as below.
                        Pick::Busy => match Box::pin(self.wait_for_server(upstream, &tried, key)).await {
                            Ok(used) => used,
                            Err(Some(busy)) => return self.refuse(asked, record, busy).await,
                            Err(None) => return self.gone(),
                        },
                        Pick::Nobody => {
                            if tried.is_empty() {
                                site.complain_of(upstream);
                            }
                            return self.refuse(asked, record, unreached).await;
                        }
                    };
                    if !tried.is_empty() && !upstream.may_retry() {
                        return self.refuse(asked, record, unreached).await;
                    }
                    used
                }
            };
            record.server = Some((used.server().addr, used.server().index()));
            let kept = if may_reuse { used.server().lean.take() } else { None };
            let is_reused = kept.is_some();
            let mut server = match kept {
                Some(server) => server,
                // Boxed, because it is several times as large as the rest, and rarely needed.
                None => match Box::pin(site.connect(used.server(), site.config.timeouts.connect)).await {
                    Ok(server) => server,
                    Err(error) => {
                        unreached = Refusal::why_unreached(&error);
                        used.complain(&format_args!("cannot connect: {error}"));
                        tried.push(used.index);
                        continue;
                    }
                },
            };
            if was_sent {
                used.server().stats().retries.add(1);
            }
            let mut exchange = Exchange::new(self, &mut server, asked, record);
            let result = poll_fn(|cx| exchange.poll(cx)).await;
            let (is_sent, waits_for_client) = (exchange.is_sent, exchange.waits_for_client());
            let Exchange { reuse, close, .. } = exchange;
            let failure = match result {
                Ok(()) => {
                    record.is_broken = false;
                    used.server().answered();
                    if is_reused {
                        used.server().stats().reused.add(1);
                    }
                    if reuse {
                        used.server().lean.put(server);
                    }
                    return match close {
                        false => Then::Next,
                        // The client wants a close, and has sent everything.
                        true if asked.close && asked.body.is_done() && self.held.is_empty() => Then::Close,
                        true => Then::Linger,
                    };
                }
                Err(failure) => failure,
            };
            // A partially written response cannot be used for another server.
            self.answer.clear();
            was_sent = true;
            match failure {
                Failure::Unanswered if is_reused && asked.may_repeat => {
                    may_reuse = false;
                    same = Some(used);
                }
                Failure::Unanswered => {
                    used.complain(&"no answer: connection closed before message completed");
                    // A server may close idle connections at any time.
                    if !is_reused {
                        used.server().failed();
                    }
                    if !asked.may_repeat {
                        return self.refuse(asked, record, Refusal::BROKE_OFF).await;
                    }
                    tried.push(used.index);
                    unreached = Refusal::BROKE_OFF;
                }
                failure => return self.failed(asked, record, &used, failure, (is_sent, waits_for_client)).await,
            }
        }
    }

    /// Waits until a server has room. Returns no refusal if the client is gone.
    async fn wait_for_server(
        &mut self,
        upstream: &Rc<Upstream>,
        tried: &[usize],
        key: Option<u64>,
    ) -> Result<Use, Option<Refusal>> {
        let mut turn = pin!(upstream.wait(tried, key));
        poll_fn(|cx| match self.watch(cx) {
            Ok(()) => turn.as_mut().poll(cx).map_err(Some),
            Err(_) => Poll::Ready(Err(None)),
        })
        .await
    }

    /// The client has reset its connection, or does not read.
    fn gone(&self) -> Then {
        self.site.listener_stats(self.from.listener).failed.add(1);
        Then::Close
    }

    /// Returns where a request goes, and its key for an upstream that needs one.
    fn destination(&self, asked: &Asked) -> (Destination, Option<u64>) {
        head::read_again(&asked.head, |head| {
            let (method, target) = (head.method.unwrap_or_default(), head.path.unwrap_or_default());
            let facts = Facts { method, target, fields: Fields::Lines(head.headers) };
            let destination = self.site.listeners[self.from.listener].routes.destination(&facts);
            let key = match &destination {
                Destination::Upstream(to) => routes::key(to.hash.as_ref(), self.from.peer.ip(), Some(&facts)),
                _ => None,
            };
            (destination, key)
        })
    }

    /// Handles a failure that ends the request.
    async fn failed(
        &mut self,
        asked: &Asked,
        record: &mut Record,
        used: &Use,
        failure: Failure,
        (is_sent, waits_for_client): (bool, bool),
    ) -> Then {
        let refusal = match failure {
            Failure::Server(what) => {
                used.complain(&what);
                used.server().failed();
                Refusal::BROKE_PROTOCOL
            }
            Failure::Malformed if record.has_answer() => Refusal::BROKE_OFF,
            Failure::Malformed => Refusal(400, "the chunks are malformed"),
            Failure::TimedOut if !is_sent && waits_for_client => Refusal::TIMED_OUT,
            Failure::TimedOut => {
                if !record.has_answer() {
                    used.complain(&format_args!("no answer within {:?}", self.site.config.timeouts.response));
                }
                Refusal::SILENT
            }
            Failure::Broken | Failure::Unanswered => {
                used.complain(&"answer broken off");
                Refusal::BROKE_OFF
            }
            Failure::Client => return self.gone(),
        };
        if record.has_answer() {
            // A part of another response was sent, so only the end of the connection can signal the
            // error.
            let _ = poll_fn(|cx| self.poll_sent(cx)).await;
            return Then::Close;
        }
        self.refuse(asked, record, refusal).await
    }

    /// Responds instead of a server. The connection continues if the whole request has been read.
    async fn refuse(&mut self, asked: &Asked, record: &mut Record, reply: impl Reply) -> Then {
        record.status = reply.status();
        record.server = record.server.filter(|_| Refusal::is_of_server(record.status));
        let site = self.site;
        let close = asked.close || !asked.body.is_done() || site.stop.is_requested() || site.is_retired();
        let mut out = self.core().buffers.take();
        reply.write(asked.is_head, close, &mut out);
        self.down.keep(&out);
        self.core().buffers.give(out);
        let clock = &self.core().clock;
        clock.set(self.connection, clock.after(site.config.timeouts.idle));
        match poll_fn(|cx| self.poll_sent(cx)).await {
            Err(_) => Then::Close,
            Ok(()) if close => Then::Linger,
            Ok(()) => Then::Next,
        }
    }

    /// Counts an exchange and logs it.
    fn note(&self, asked: &Asked, record: &Record) {
        let Record { status, server, bytes_in, bytes_out, is_broken } = *record;
        let took = asked.started.elapsed();
        let answers = server.filter(|_| status != CLIENT_GONE).map(|(_, index)| index);
        self.site.count_answer(self.from.listener, answers, Answer::new(status, took));
        let stats = self.site.listener_stats(self.from.listener);
        stats.bytes_in.add(bytes_in);
        stats.bytes_out.add(bytes_out);
        if !self.site.has_log() {
            return;
        }
        let line = asked.head.split(|&byte| byte == b'\r').next().unwrap_or_default();
        let line = String::from_utf8_lossy(line.strip_suffix(b" HTTP/1.1").unwrap_or_default());
        let (method, target) = line.split_once(' ').unwrap_or_default();
        let server = server.map(|(addr, _)| addr);
        let log = |[referer, agent, id]: [Option<&[u8]>; 3]| {
            let version = "HTTP/1.1";
            let what = What::Request(Request { status, method, target, version, referer, agent, id, is_broken });
            let (listener, client) = (&*self.site.listeners[self.from.listener].name, self.from.peer);
            self.site.log(&Entry { listener, client, server, bytes_in, bytes_out, took, what });
        };
        match self.site.logs_fields() {
            false => log([None; 3]),
            true => head::read_again(&asked.head, |head| {
                let fields = Fields::Lines(head.headers);
                log(LOGGED_FIELDS.map(|name| fields.get(name)));
            }),
        }
    }
}
