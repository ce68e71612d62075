//! Compares the lean parsers with hyper on the same bytes, generated from a seed.
//!
//! hyper must accept every message that the lean path accepts, with the same method, target, host
//! and body. hyper must also read the same messages from the lean path's output. The reverse is not
//! required: odd messages go to hyper anyway.

mod mutate;

use bytes::Bytes;
use fs_proxy::http1::body::Body;
use fs_proxy::http1::head::{self, Added, Parsed};
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use mutate::{ANSWERS, REQUESTS, Rng, mutate};
use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// One message, as one side parses it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Message {
    /// Method, host and target, or the status.
    what: String,
    body: Vec<u8>,
    is_whole: bool,
}

/// Returns bytes and then the end; ignores writes. A client's wire is silent until a request was
/// written.
struct Wire {
    bytes: Bytes,
    waits: Rc<Cell<bool>>,
    waker: Option<Waker>,
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.waits.get() {
            self.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let len = self.bytes.len().min(buf.remaining());
        buf.put_slice(&self.bytes.split_to(len));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.waits.set(false);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn wire(bytes: &[u8], waits: bool) -> TokioIo<Wire> {
    TokioIo::new(Wire { bytes: Bytes::copy_from_slice(bytes), waits: Rc::new(Cell::new(waits)), waker: None })
}

async fn collect(mut body: Incoming) -> (Vec<u8>, bool) {
    let mut all = Vec::new();
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => all.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data)),
            Err(_) => return (all, false),
        }
    }
    (all, true)
}

fn what(request: &Request<Incoming>) -> String {
    let uri = request.uri();
    let host = request.headers().get("host").map(|host| String::from_utf8_lossy(host.as_bytes()).into_owned());
    let host = uri.authority().map_or(host.unwrap_or_default(), |authority| {
        let authority = authority.as_str();
        authority.rsplit_once('@').map_or(authority, |(_, host)| host).to_owned()
    });
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let path = if path.starts_with(['/', '*']) { path.to_owned() } else { format!("/{path}") };
    format!("{} {host} {path}", request.method())
}

/// Returns the requests that hyper's server parses.
fn hyper_requests(runtime: &tokio::runtime::Runtime, bytes: &[u8]) -> Vec<Message> {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let list = seen.clone();
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let list = list.clone();
        async move {
            let what = what(&request);
            let number = list.borrow().len();
            list.borrow_mut().push(Message { what, body: Vec::new(), is_whole: false });
            let (body, is_whole) = collect(request.into_body()).await;
            let mut list = list.borrow_mut();
            (list[number].body, list[number].is_whole) = (body, is_whole);
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.max_headers(head::LINES_MAX).half_close(true);
    // An error only means that there are no more.
    let _ = runtime.block_on(builder.serve_connection(wire(bytes, false), service));
    seen.take()
}

/// Returns the response that hyper's client parses.
fn hyper_answer(runtime: &tokio::runtime::Runtime, bytes: &[u8], is_head: bool) -> Option<Message> {
    runtime.block_on(async {
        let mut builder = hyper::client::conn::http1::Builder::new();
        builder.max_headers(head::LINES_MAX);
        let (mut sender, connection) = builder.handshake(wire(bytes, true)).await.ok()?;
        let method = if is_head { "HEAD" } else { "GET" };
        let request = Request::builder().method(method).uri("/").body(Empty::<Bytes>::new()).ok()?;
        let asking = async {
            let response = sender.send_request(request).await.ok()?;
            let what = response.status().as_str().to_owned();
            let (body, is_whole) = collect(response.into_body()).await;
            drop(sender);
            Some(Message { what, body, is_whole })
        };
        tokio::join!(asking, connection).0
    })
}

/// The lean path's result for a stream: the accepted messages, and its output.
#[derive(Default)]
struct Lean {
    messages: Vec<Message>,
    passed: Vec<u8>,
}

/// Passes a body in pieces. The second part of the result is the content for a receiver.
fn pass(rng: &mut Rng, body: &mut Body, mut bytes: &[u8], passed: &mut Vec<u8>) -> Result<usize, ()> {
    let mut used = 0;
    while !bytes.is_empty() && !body.is_done() {
        let piece = match rng.one_in(3) {
            true => &bytes[..1 + rng.below(bytes.len())],
            false => bytes,
        };
        let mut out = Vec::new();
        let taken = body.take(piece, &mut out).map_err(drop)?;
        assert!(taken.rewritten || out.is_empty());
        assert!(taken.used == piece.len() || body.is_done());
        passed.extend_from_slice(if taken.rewritten { &out } else { &piece[..taken.used] });
        used += taken.used;
        bytes = &bytes[taken.used..];
    }
    Ok(used)
}

fn lean_requests(rng: &mut Rng, bytes: &[u8]) -> Lean {
    let added = Added::new([192, 0, 2, 7].into(), false, false);
    let (mut lean, mut at) = (Lean::default(), 0);
    loop {
        let mut out = Vec::new();
        let Parsed::Whole(mut request, len) = head::request(&bytes[at..], &added, &mut out) else { return lean };
        at += len;
        let before = lean.passed.len();
        lean.passed.extend_from_slice(&out);
        let passed = pass(rng, &mut request.body, &bytes[at..], &mut lean.passed);
        let is_whole = passed.is_ok() && request.body.is_done();
        let line = out.split(|&byte| byte == b'\r').next().unwrap_or_default();
        lean.messages.push(Message { what: String::from_utf8_lossy(line).into_owned(), body: Vec::new(), is_whole });
        if !is_whole {
            // The connection ends, so no server takes it for a whole request.
            lean.passed.truncate(before);
            return lean;
        }
        at += passed.unwrap_or(0);
        if request.close {
            return lean;
        }
    }
}

fn lean_answer(rng: &mut Rng, bytes: &[u8], is_head: bool) -> Option<Lean> {
    let (mut lean, mut at) = (Lean::default(), 0);
    loop {
        let mut out = Vec::new();
        let Parsed::Whole(mut answer, len) = head::answer(&bytes[at..], is_head, false, &mut out) else { return None };
        at += len;
        if answer.status == 101 {
            return None;
        }
        lean.passed.extend_from_slice(&out);
        if answer.status < 200 {
            continue;
        }
        let passed = pass(rng, &mut answer.body, &bytes[at..], &mut lean.passed);
        if answer.body == Body::UntilEnd {
            answer.body.end(&mut lean.passed);
        }
        let is_whole = passed.is_ok() && answer.body.is_done();
        lean.messages.push(Message { what: answer.status.to_string(), body: Vec::new(), is_whole });
        return Some(lean);
    }
}

/// Bytes of a target that the lean path passes on and hyper does not accept.
fn tame(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| if b"\"<>`{}|\\^".contains(byte) { b'x' } else { *byte }).collect()
}

/// Number of cases, and of those that the lean path accepted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Count {
    pub(crate) cases: u64,
    pub(crate) requests: u64,
    pub(crate) answers: u64,
}

/// Runs `cases` from `seed`.
///
/// # Panics
/// If the two differ. The message has the seed and the bytes.
pub(crate) fn run(seed: u64, cases: u64) -> Count {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let mut count = Count { cases, ..Count::default() };
    for case in seed..seed + cases {
        let rng = &mut Rng(fastrand::Rng::with_seed(case));
        if case % 2 == 0 {
            count.requests += request_case(&runtime, rng, case);
        } else {
            count.answers += answer_case(&runtime, rng, case);
        }
    }
    count
}

fn request_case(runtime: &tokio::runtime::Runtime, rng: &mut Rng, case: u64) -> u64 {
    let mut bytes = Vec::new();
    for _ in 0..1 + rng.below(3) {
        bytes.extend_from_slice(rng.pick(&REQUESTS));
    }
    mutate(rng, &mut bytes);
    let lean = lean_requests(rng, &bytes);
    if lean.messages.is_empty() {
        return 0;
    }
    let same = |came: &[u8], passed: &[u8]| {
        let (came, passed) = (hyper_requests(runtime, came), hyper_requests(runtime, passed));
        let whole = lean.messages.iter().filter(|message| message.is_whole).count();
        // Clients of a proxy write an asterisk for a whole server as `http://host`. hyper parses
        // that as a path.
        let star = |message: &Message| message.what.starts_with("OPTIONS ");
        let equal =
            |(a, b): (&Message, &Message)| a.body == b.body && b.is_whole && (a.what == b.what || star(a) && star(b));
        came.len() >= lean.messages.len()
            && passed.len() == whole
            && came.iter().zip(&passed).all(equal)
            && came.iter().zip(&lean.messages).all(|(a, b)| a.is_whole || !b.is_whole)
            && came.iter().zip(&lean.messages).all(|(a, b)| b.what.starts_with(a.what.split(' ').next().unwrap_or("?")))
    };
    if !same(&bytes, &lean.passed) && !same(&tame(&bytes), &tame(&lean.passed)) {
        panic!(
            "case {case}: hyper and the lean path differ\n came   {}\n lean   {:?}\n hyper  {:?}\n passed {}\n hyper  {:?}",
            bytes.escape_ascii(),
            lean.messages,
            hyper_requests(runtime, &bytes),
            lean.passed.escape_ascii(),
            hyper_requests(runtime, &lean.passed)
        );
    }
    1
}

fn answer_case(runtime: &tokio::runtime::Runtime, rng: &mut Rng, case: u64) -> u64 {
    let mut bytes = rng.pick(&ANSWERS).to_vec();
    mutate(rng, &mut bytes);
    let is_head = rng.one_in(4);
    let Some(lean) = lean_answer(rng, &bytes, is_head) else { return 0 };
    let (came, passed) = (hyper_answer(runtime, &bytes, is_head), hyper_answer(runtime, &lean.passed, is_head));
    let is_whole = lean.messages[0].is_whole;
    let agree = match (&came, &passed) {
        (Some(a), Some(b)) if is_whole => a == b && a.is_whole && a.what == lean.messages[0].what,
        // Truncated or broken in the middle: the client must notice that too.
        (Some(a), Some(b)) => a.what == b.what && !b.is_whole,
        _ => false,
    };
    assert!(
        agree,
        "case {case}: hyper and the lean path differ (HEAD: {is_head})\n came   {}\n lean   {:?}\n hyper  {came:?}\n \
         passed {}\n hyper  {passed:?}",
        bytes.escape_ascii(),
        lean.messages,
        lean.passed.escape_ascii()
    );
    1
}
