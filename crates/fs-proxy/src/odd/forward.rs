//! Forwards one request to a server, and its response.

use super::body::{Lease, WebBody};
use super::client::Client;
use super::exchange::Exchange;
use super::headers::{self, Framing};
use super::options::BUFFER_MAX;
use super::pool::{Http1, Sender};
use super::request_body::{Progress, RequestBody};
use crate::config::Timeouts;
use crate::http1::head::LINES_MAX;
use crate::refusal::Refusal;
use crate::routes::{self, Destination, Facts, Fields};
use crate::stats::ServerIndex;
use crate::upstream::{Pick, Upstream, Use};
use fs_stacks::Stream;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version, header, request};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::Builder;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Responds to a client's request. Every failure becomes a status.
pub(crate) async fn forward(client: &Rc<Client>, request: Request<Incoming>) -> Response<WebBody> {
    let (mut head, body) = request.into_parts();
    let site = &client.site;
    let is_alone = !client.connection.has_request();
    let mut exchange = Exchange::new(site.clone(), client.listener, client.peer, client.connection.busy(), &head);
    exchange.keep_fields(&head.headers);
    if !client.connection.may_ask(&site.config.limits) {
        return refuse(Refusal::TOO_MANY, exchange);
    }
    let mut upgrade = headers::wanted_upgrade(&head);
    let accepts_trailers = headers::accepts_trailers(&head.headers);
    let version = head.version;
    if let Err(refusal) = headers::to_server(&mut head, client.origin(), upgrade.as_ref()) {
        let mut response = refuse(refusal, exchange);
        if version != Version::HTTP_2 {
            // What follows may not be what the client means, as on the lean path.
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        return response;
    }
    let (destination, key) = destination(client, &head);
    let upstream = match destination {
        Destination::Upstream(upstream) => upstream,
        Destination::Redirect(status, location) => return redirect(status, &location, exchange),
        Destination::Nowhere => return refuse(Refusal::NO_ROUTE, exchange),
    };
    if upstream.is_http2 {
        // An HTTP/2 stream is not switched to another protocol: a server may ignore the request for
        // it (RFC 9110 7.8).
        upgrade = None;
        for name in [header::CONNECTION, header::UPGRADE] {
            head.headers.remove(name);
        }
        if accepts_trailers {
            // gRPC refuses requests without it.
            head.headers.insert(header::TE, HeaderValue::from_static("trailers"));
        }
    } else {
        if !is_alone {
            exchange.place = client.connection.another(Instant::now() + site.config.timeouts.connect).await;
            if exchange.place.is_none() {
                return refuse(Refusal::NO_CONNECTION_LEFT, exchange);
            }
        }
        if !body.is_end_stream() {
            headers::delimit_body(&mut head.headers);
        }
    }
    for edits in [&site.listeners[client.listener].request_edits, &upstream.request_edits].into_iter().flatten() {
        edits.apply_to(&mut head.headers, client.about());
    }
    exchange.keep_fields(&head.headers);
    // The messages of a gRPC stream may be far apart.
    let pace = if upstream.is_http2 { 1 } else { site.upload_pace() };
    let limits = (site.config.timeouts.idle, pace);
    let (body, progress) = RequestBody::new(&client.connection, body, head.extensions.remove(), limits);
    exchange.progress = Some(progress.clone());
    let request = Request::from_parts(head, body);
    let may_reuse = upgrade.is_none();
    match attempts(client, (&upstream, key), request, &progress, upgrade, &mut exchange.server).await {
        Ok((response, sender, used)) => answer(client, response, Lease { sender, may_reuse, used, progress }, exchange),
        Err(refusal) => refuse(refusal, exchange),
    }
}

/// Returns where a request goes, and its key for an upstream that needs one.
fn destination(client: &Client, head: &request::Parts) -> (Destination, Option<u64>) {
    let target = head.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    let facts = Facts { method: head.method.as_str(), target, fields: Fields::Map(&head.headers) };
    let destination = client.site.listeners[client.listener].routes.destination(&facts);
    let key = match &destination {
        Destination::Upstream(upstream) => routes::key(upstream.hash.as_ref(), client.peer.ip(), Some(&facts)),
        _ => None,
    };
    (destination, key)
}

type Answer = (Response<Incoming>, Sender, Use);

/// Tries servers until one responds, or no more may be tried.
async fn attempts(
    client: &Rc<Client>,
    (upstream, key): (&Rc<Upstream>, Option<u64>),
    mut request: Request<RequestBody>,
    progress: &Rc<Progress>,
    upgrade: Option<HeaderValue>,
    last: &mut Option<(SocketAddr, ServerIndex)>,
) -> Result<Answer, Refusal> {
    let site = &client.site;
    let mut tried = Vec::new();
    let mut unreached = Refusal::UNREACHABLE;
    let (mut may_reuse, mut was_sent) = (upgrade.is_none(), false);
    // The use of a server whose kept connection had ended: it gets the request over a new one.
    let mut same = None;
    loop {
        let used = match same.take() {
            Some(used) => used,
            None => {
                let used = match upstream.pick(&tried, key) {
                    Pick::Used(used) => used,
                    // A client that resets its connection ends this task.
                    Pick::Busy => upstream.wait(&tried, key).await?,
                    Pick::Nobody => {
                        if tried.is_empty() {
                            site.complain_of(upstream);
                        }
                        return Err(unreached);
                    }
                };
                if !tried.is_empty() && !upstream.may_retry() {
                    return Err(unreached);
                }
                used
            }
        };
        *last = Some((used.server().addr, used.server().index()));
        headers::ensure_host(&mut request, used.server().addr);
        if upstream.is_http2 {
            headers::to_http2(&mut request, used.server().tls.is_some())?;
        }
        let kept = if may_reuse { kept(upstream, &used) } else { None };
        let reused = kept.is_some();
        let mut sender = match kept {
            Some(sender) => sender,
            None => match connect(client, upstream, &used, upgrade.is_some()).await {
                Ok(sender) => sender,
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
        let replay = Replay::of(&request);
        // A kept connection may have ended a moment ago. Then nothing was sent, and the request is
        // returned.
        let sent = sender.send(request);
        let timeouts = &site.config.timeouts;
        let (unsent, error) = match wait_for_answer(sent, timeouts, progress).await {
            Some(Ok(response)) => {
                used.server().answered();
                if reused {
                    used.server().stats().reused.add(1);
                }
                return Ok((response, sender, used));
            }
            Some(Err(failure)) => failure,
            None => {
                sender.give_up();
                used.complain(&format_args!("no answer within {:?}", timeouts.response));
                return Err(Refusal::SILENT);
            }
        };
        if progress.failed.get() {
            return Err(client_failed(progress));
        }
        request = match (unsent, replay) {
            // Never sent, so any server may get it: from a kept connection to a new one of the same
            // server, else to the next server.
            (Some(request), _) => request,
            // RFC 9110 9.2.2: idempotent and without a body.
            (None, Some(replay)) => replay.into_request(),
            (None, None) => {
                complain_of_answer(&used, error.as_ref());
                if !reused {
                    used.server().failed();
                }
                return Err(Refusal::BROKE_OFF);
            }
        };
        was_sent = true;
        if reused {
            may_reuse = false;
            same = Some(used);
        } else {
            complain_of_answer(&used, error.as_ref());
            used.server().failed();
            unreached = Refusal::BROKE_OFF;
            tried.push(used.index);
        }
    }
}

fn complain_of_answer(used: &Use, error: Option<&hyper::Error>) {
    match error {
        Some(error) => match std::error::Error::source(error) {
            Some(cause) => used.complain(&format_args!("no answer: {error}: {cause}")),
            None => used.complain(&format_args!("no answer: {error}")),
        },
        None => used.complain(&"closed before the request"),
    }
}

/// Waits until the server has had the whole request for the time of a response, or an upload makes no
/// progress. After an upload that time starts late, by at most `idle`.
async fn wait_for_answer<T>(answer: impl Future<Output = T>, timeouts: &Timeouts, progress: &Progress) -> Option<T> {
    let mut answer = std::pin::pin!(answer);
    loop {
        let (before, was_sent) = (progress.bytes.get(), progress.done.get());
        let limit = if was_sent { timeouts.response } else { timeouts.idle };
        match timeout(limit, answer.as_mut()).await {
            Ok(answer) => return Some(answer),
            // During a long upload the server is not slow. A stalled upload has its own limit.
            Err(_) if (progress.bytes.get(), progress.done.get()) != (before, was_sent) => {}
            Err(_) => return None,
        }
    }
}

fn client_failed(progress: &Progress) -> Refusal {
    if progress.stalled.get() { Refusal::TIMED_OUT } else { Refusal(400, "the request did not arrive completely") }
}

/// A request that may be sent a second time.
struct Replay {
    head: request::Parts,
    body: RequestBody,
}

impl Replay {
    fn of(request: &Request<RequestBody>) -> Option<Self> {
        let safe = [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE, Method::PUT, Method::DELETE];
        if !safe.contains(request.method()) || !request.body().is_end_stream() {
            return None;
        }
        let mut copy = Request::new(());
        *copy.method_mut() = request.method().clone();
        *copy.uri_mut() = request.uri().clone();
        *copy.headers_mut() = request.headers().clone();
        Some(Self { head: copy.into_parts().0, body: RequestBody::empty(request.body().progress()) })
    }

    fn into_request(self) -> Request<RequestBody> {
        Request::from_parts(self.head, self.body)
    }
}

/// Returns a connection that is open already.
fn kept(upstream: &Upstream, used: &Use) -> Option<Sender> {
    #[cfg(feature = "http2")]
    if upstream.is_http2 {
        return used.server().http2.take().map(Sender::Http2);
    }
    debug_assert!(!upstream.is_http2);
    used.server().pool.take()
}

/// Opens a connection, and starts its task.
async fn connect(client: &Rc<Client>, upstream: &Upstream, used: &Use, upgrade: bool) -> io::Result<Sender> {
    let site = &client.site;
    let open = site.connect(used.server(), site.config.timeouts.connect);
    #[cfg(feature = "http2")]
    if upstream.is_http2 {
        // It includes the time for which other requests open connections.
        let place = client.connection.another(Instant::now() + site.config.timeouts.connect);
        return used.server().http2.take_or_open(place, open).await.map(Sender::Http2);
    }
    debug_assert!(!upstream.is_http2);
    let stream = open.await?;
    let mut builder = Builder::new();
    builder.max_buf_size(BUFFER_MAX).max_headers(LINES_MAX);
    let started = builder.handshake::<TokioIo<Stream>, RequestBody>(TokioIo::new(stream)).await;
    let (sender, connection) = started.map_err(io::Error::other)?;
    let addr = used.server().addr;
    let (in_use, unused) = oneshot::channel();
    let limit = site.config.timeouts.idle;
    if upgrade {
        let (give, take) = oneshot::channel();
        client.tunnel.server.set(Some(take));
        tokio::task::spawn_local(async move {
            match while_used(connection.without_shutdown(), unused, limit).await {
                // Not needed if the server did not switch protocols.
                Some(Ok(parts)) => drop(give.send((addr, parts))),
                Some(Err(error)) => tracing::debug!("{addr}: {error}"),
                None => {}
            }
        });
    } else {
        tokio::task::spawn_local(async move {
            if let Some(Err(error)) = while_used(connection, unused, limit).await {
                tracing::debug!("{addr}: {error}");
            }
        });
    }
    Ok(Sender::Http1(Http1 { sender, _in_use: in_use }))
}

/// Drives a connection until its end, or until some time after its last use. hyper waits for ever for a server
/// that takes neither the rest of a request nor the end of TLS.
async fn while_used<T>(
    connection: impl Future<Output = T>,
    in_use: oneshot::Receiver<Infallible>,
    limit: Duration,
) -> Option<T> {
    let stays_unused = async {
        // The sender sends nothing.
        let _ = in_use.await;
        tokio::time::sleep(limit).await;
    };
    tokio::select! {
        biased;
        ended = connection => Some(ended),
        () = stays_unused => None,
    }
}

fn answer(
    client: &Client,
    response: Response<Incoming>,
    mut lease: Lease,
    mut exchange: Exchange,
) -> Response<WebBody> {
    let (mut head, body) = response.into_parts();
    let framing = headers::to_client(&mut head);
    exchange.status = head.status.as_u16();
    if head.status == StatusCode::SWITCHING_PROTOCOLS && lease.may_reuse {
        // The client did not request it, so it could not understand the following bytes.
        lease.used.complain(&"switches protocols without being asked");
        return refuse(Refusal::BROKE_PROTOCOL, exchange);
    }
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        exchange.becomes_tunnel();
        client.tunnel.exchange.set(Some((exchange, lease.used)));
        return Response::from_parts(head, WebBody::none());
    }
    match framing {
        Framing::Clear => {}
        Framing::Twice => lease.may_reuse = false,
        Framing::Wrong(what) => {
            lease.used.complain(&what);
            return refuse(Refusal::BROKE_PROTOCOL, exchange);
        }
    }
    if let Some(edits) = &client.site.listeners[client.listener].response_edits {
        edits.apply_to(&mut head.headers, client.about());
    }
    Response::from_parts(head, WebBody::relayed(body, client.site.config.timeouts.idle, lease, exchange))
}

fn redirect(status: u16, location: &str, exchange: Exchange) -> Response<WebBody> {
    let mut response = refuse(Refusal(status, ""), exchange);
    // The parts of a request in it were checked as a target and a field.
    if let Ok(location) = HeaderValue::from_str(location) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

fn refuse(refusal: Refusal, mut exchange: Exchange) -> Response<WebBody> {
    exchange.status = refusal.0;
    exchange.server = exchange.server.filter(|_| Refusal::is_of_server(refusal.0));
    let mut text = refusal.text();
    let length = HeaderValue::from(text.len());
    if exchange.is_head() {
        // hyper omits the body for HTTP/1.1 only.
        text.clear();
    }
    let mut response = Response::new(WebBody::text(text, exchange));
    *response.status_mut() = StatusCode::from_u16(refusal.0).unwrap_or(StatusCode::BAD_GATEWAY);
    response.headers_mut().insert(header::CONTENT_LENGTH, length);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::sleep;

    /// The time that a client takes for its upload is not the server's.
    #[tokio::test]
    async fn limit_of_an_answer_starts_after_the_upload() {
        let short = Duration::from_millis(200);
        for (response, idle, pause) in [(short, short, short / 10), (short, short * 10, short * 3)] {
            let (timeouts, progress) = (Timeouts { response, idle, ..Timeouts::default() }, Progress::default());
            let answer = async {
                sleep(pause).await;
                progress.bytes.set(1);
                progress.done.set(true);
                sleep(response).await;
            };
            assert_eq!(wait_for_answer(answer, &timeouts, &progress).await, Some(()), "{idle:?}");
            assert_eq!(wait_for_answer(std::future::pending::<()>(), &timeouts, &progress).await, None);
        }
    }
}
