//! HTTP/2 clients that take their responses slowly, or send slowly. Over loopback, on kernel sockets.
#![cfg(feature = "http2")]

mod common;
#[path = "common/http2.rs"]
mod http2;
#[path = "common/identity.rs"]
mod identity;

use bytes::Bytes;
use common::*;
use fs_stacks::testing::{PATIENCE, Signal, eventually};
use http::Request;
use http2::{GOAWAY, PING, Sender, body, connect, frame, get, handshake_on, preface, request, run};
use hyper::body::{Body, Frame};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use identity::Identity;
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::client::TlsStream;

/// Decides whether a client reads.
#[derive(Default)]
struct Gate {
    is_shut: AtomicBool,
    reader: Mutex<Option<Waker>>,
}

impl Gate {
    fn shut(&self) {
        self.is_shut.store(true, Ordering::SeqCst);
    }

    fn open(&self) {
        self.is_shut.store(false, Ordering::SeqCst);
        self.reader.lock().unwrap().take().into_iter().for_each(Waker::wake);
    }
}

/// A stream that is read while its gate is open, and written at any time.
struct Gated<S>(S, Arc<Gate>);

impl<S: AsyncRead + Unpin> AsyncRead for Gated<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        if self.1.is_shut.load(Ordering::SeqCst) {
            *self.1.reader.lock().unwrap() = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Gated<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Bytes of a response that a client leaves unread.
const UNREAD: usize = 60_000;
/// Responses that are left unread: more than the kernel holds for a connection (`tcp_wmem`, 4 MiB).
const UNREAD_COUNT: usize = 120;

/// Returns the number of responses that the proxy has taken from servers.
fn responses(proxy: &Proxy) -> usize {
    let metrics = proxy.metrics();
    let is_it = |line: &&str| line.starts_with("fs_proxy_answers_total{") && line.contains("\"2xx\"");
    let line = metrics.lines().find(is_it).unwrap_or_else(|| panic!("{metrics}"));
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

/// A client reads nothing while responses come, `act` follows, and `time` passes. Then it reads, and
/// must get each response whole. A connection that the proxy takes for idle has 5 s.
async fn unread_responses_arrive(identity: &Identity, proxy: &Proxy, act: impl AsyncFnOnce(&mut Sender), time: u64) {
    let gate = Arc::new(Gate::default());
    let (stream, _) = connect(identity, proxy.addr(), &["h2"]).await;
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    // The windows never stop a response.
    builder.initial_stream_window_size(1 << 20).initial_connection_window_size(1 << 30);
    let (mut sender, connection) = builder.handshake(TokioIo::new(Gated(stream, gate.clone()))).await.unwrap();
    tokio::spawn(connection);
    // From this response on the proxy knows the windows.
    assert_eq!(body(sender.send_request(request("/", Vec::new())).await.unwrap()).await.0.len(), UNREAD);
    gate.shut();
    let mut asked = Vec::new();
    for number in 1..=UNREAD_COUNT {
        let asking = sender.send_request(request("/", Vec::new()));
        asked.push(tokio::spawn(async move { body(asking.await.unwrap()).await.0.len() }));
        while responses(proxy) <= number {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    act(&mut sender).await;
    tokio::time::sleep(Duration::from_secs(time)).await;
    gate.open();
    for (number, asked) in asked.into_iter().enumerate() {
        assert_eq!(asked.await.unwrap_or_default(), UNREAD, "response {number}");
    }
}

/// Starts a proxy in front of a server with responses of [`UNREAD`] bytes.
fn start_for_unread(identity: &Identity, timeouts: &str) -> Proxy {
    identity.start("http", http_backend(|_| ok(pattern(UNREAD))), &format!("timeouts = {{ {timeouts} }}"))
}

#[test]
fn unread_responses_survive_a_stop() {
    let identity = Identity::new();
    let mut proxy = start_for_unread(&identity, "drain = \"60s\"");
    run(unread_responses_arrive(&identity, &proxy, async |_| proxy.terminate(), 7));
    assert!(proxy.program.wait().success());
}

#[test]
fn unread_responses_survive_a_reload() {
    let identity = Identity::new();
    let proxy = start_for_unread(&identity, "");
    let reload = async |sender: &mut Sender| {
        proxy.program.signal(Signal::HangUp);
        eventually("it is in use", || proxy.program.log().contains("is in use;"));
        let before = responses(&proxy);
        // The first request of the new configuration ends the connection.
        tokio::spawn(sender.send_request(request("/", Vec::new())));
        while responses(&proxy) <= before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    run(unread_responses_arrive(&identity, &proxy, reload, 2));
}

#[test]
fn client_with_unread_responses_is_not_idle() {
    let identity = Identity::new();
    // More than a client whose thread is stopped needs between two requests.
    let proxy = start_for_unread(&identity, "idle = \"2500ms\"");
    run(unread_responses_arrive(&identity, &proxy, async |_| {}, 9));
}

/// Starts a proxy with 9 clients.
fn start_for_few(identity: &Identity, server: SocketAddr) -> Proxy {
    let config = write_config(&identity.listener("http", server, ""));
    Proxy { program: start_limited(&config, 100), config }
}

/// Opens more connections than such a proxy serves.
async fn many(identity: &Identity, proxy: &Proxy) -> Vec<TlsStream<TcpStream>> {
    let mut streams = Vec::new();
    for _ in 0..20 {
        streams.push(connect(identity, proxy.addr(), &["h2"]).await.0);
    }
    streams
}

#[test]
fn client_with_unread_responses_keeps_its_place() {
    let identity = Identity::new();
    let proxy = start_for_few(&identity, http_backend(|_| ok(pattern(UNREAD))));
    let mut others = Vec::new();
    run(unread_responses_arrive(&identity, &proxy, async |_| others = many(&identity, &proxy).await, 2));
}

/// The rest of a response waits for its client's window, which is open again after a while.
#[test]
fn client_with_a_full_window_keeps_its_place() {
    let identity = Identity::new();
    // Both arrive as one piece, and the second does not fit what the first leaves of the window.
    let sizes = [60_000, 7_000];
    let addr = http_backend(move |request| ok(pattern(sizes[usize::from(request.head.starts_with("POST /second "))])));
    let proxy = start_for_few(&identity, addr);
    run(async {
        let (stream, _) = connect(&identity, proxy.addr(), &["h2"]).await;
        let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        builder.initial_connection_window_size(65_535);
        let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let first = sender.send_request(request("/first", Vec::new())).await.unwrap();
        while responses(&proxy) < 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let second = sender.send_request(request("/second", Vec::new())).await.unwrap();
        while responses(&proxy) < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let _others = many(&identity, &proxy).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!((body(first).await.0.len(), body(second).await.0.len()), (sizes[0], sizes[1]));
    });
}

/// Bytes of a response that a kernel holds for a client with little space.
const KEPT: usize = 20_000;

/// Connects with little space for what has arrived, so that a response stays with the proxy's kernel. The
/// window is updated when half of the response has been read.
async fn open_narrow(identity: &Identity, proxy: &Proxy, gate: &Arc<Gate>) -> Sender {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let stream = socket.connect(proxy.addr()).await.unwrap();
    let (stream, _) = handshake_on(identity, stream, &["h2"]).await;
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(KEPT as u32 + 4000).initial_connection_window_size(65_535);
    let (sender, connection) = builder.handshake(TokioIo::new(Gated(stream, gate.clone()))).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// Starts a server whose response fits the proxy's kernel, and not the client's. It responds when `go` becomes
/// true.
fn kept_by_the_kernel(go: &Arc<AtomicBool>) -> SocketAddr {
    let go = go.clone();
    http_backend(move |_| {
        eventually("the test says go", || go.load(Ordering::SeqCst));
        ok(pattern(KEPT))
    })
}

/// A closed socket answers what comes with a reset, which discards what the client has not got yet.
#[test]
fn bytes_that_the_kernel_has_survive_a_stop() {
    let identity = Identity::new();
    let go = Arc::new(AtomicBool::new(true));
    let mut proxy = identity.start("http", kept_by_the_kernel(&go), "timeouts = { drain = \"60s\" }");
    run(async {
        let gate = Arc::new(Gate::default());
        let mut sender = open_narrow(&identity, &proxy, &gate).await;
        assert_eq!(body(sender.send_request(request("/", Vec::new())).await.unwrap()).await.0.len(), KEPT);
        gate.shut();
        let asking = tokio::spawn(sender.send_request(request("/", Vec::new())));
        while responses(&proxy) < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        proxy.terminate();
        // Longer than `GRACE`, and far below `LINGER`.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        gate.open();
        assert_eq!(body(asking.await.unwrap().unwrap()).await.0.len(), KEPT);
    });
    assert!(proxy.program.wait().success());
}

/// As above, with a response that follows the client's answer to the announcement of the end.
#[test]
fn last_response_of_a_stop_arrives() {
    let identity = Identity::new();
    let go = Arc::new(AtomicBool::new(false));
    let mut proxy = identity.start("http", kept_by_the_kernel(&go), "timeouts = { drain = \"60s\" }");
    run(async {
        let gate = Arc::new(Gate::default());
        let mut sender = open_narrow(&identity, &proxy, &gate).await;
        let asking = tokio::spawn(sender.send_request(request("/", Vec::new())));
        while identity::metric(&proxy, "fs_proxy_server_active") == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        proxy.terminate();
        // GOAWAY and PING arrive, and are answered.
        tokio::time::sleep(Duration::from_millis(500)).await;
        gate.shut();
        go.store(true, Ordering::SeqCst);
        // The proxy has its response.
        tokio::time::sleep(Duration::from_secs(1)).await;
        gate.open();
        assert_eq!(body(asking.await.unwrap().unwrap()).await.0.len(), KEPT);
    });
    assert!(proxy.program.wait().success());
}

/// Returns a connection on which the proxy's GOAWAY has arrived.
async fn connect_until_goaway(identity: &Identity, proxy: &Proxy) -> std::io::Result<TlsStream<TcpStream>> {
    let (mut stream, _) = connect(identity, proxy.addr(), &["h2"]).await;
    stream.write_all(&preface()).await?;
    let mut head = [0; 9];
    while head[3] != GOAWAY {
        stream.read_exact(&mut head).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        stream.read_exact(&mut vec![0; length as usize]).await?;
    }
    Ok(stream)
}

/// From the proxy's GOAWAY on sends `next` all the time, and answers nothing. Returns when the proxy has closed.
async fn stays(identity: &Identity, proxy: &Proxy, mut next: impl FnMut() -> Vec<u8>) {
    let stream = loop {
        // Closed without it if this thread was stopped before the preface.
        if let Ok(stream) = connect_until_goaway(identity, proxy).await {
            break stream;
        }
    };
    let (mut from, mut to) = tokio::io::split(stream);
    tokio::spawn(async move { tokio::io::copy(&mut from, &mut tokio::io::sink()).await });
    while to.write_all(&next()).await.is_ok() && to.flush().await.is_ok() {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// The end of a connection that was announced comes whatever the client sends: the proxy could not be replaced.
#[test]
fn client_that_stays_after_goaway_is_closed() {
    let identity = Identity::new();
    let proxy = identity.start("http", http_backend(|_| ok("x")), "timeouts = { idle = \"1s\" }");
    run(async {
        let pings = || frame(PING, 0, 0, &[0; 8]);
        tokio::time::timeout(PATIENCE, stays(&identity, &proxy, pings)).await.expect("in time");
        let mut stream = 0;
        let mut requests = || {
            stream += 2;
            get(stream - 1)
        };
        let served = async {
            // None is if this thread was stopped for `idle` before the first request.
            while responses(&proxy) == 0 {
                stays(&identity, &proxy, &mut requests).await;
            }
        };
        tokio::time::timeout(PATIENCE, served).await.expect("in time");
    });
}

/// The client sends something all the time after the proxy's FIN.
#[test]
fn client_that_stays_after_the_end_is_closed() {
    let identity = Identity::new();
    let proxy = identity.start("http", http_backend(|_| ok("x")), "timeouts = { idle = \"1s\" }");
    // Its answer to the PING after GOAWAY (RFC 9113 6.7, hyper's): the proxy ends its side.
    let pongs = || frame(PING, 1, 0, &[0x0b, 0x7b, 0xa2, 0xf0, 0x8b, 0x9b, 0xfe, 0x54]);
    run(async { tokio::time::timeout(PATIENCE, stays(&identity, &proxy, pongs)).await.expect("in time") });
}

/// What the client sends is no progress either if it reads nothing.
#[test]
fn client_that_reads_no_answers_is_closed() {
    let identity = Identity::new();
    let proxy = identity.start("http", nobody(), "timeouts = { idle = \"1s\", response = \"1s\" }");
    run(async {
        let (mut stream, _) = connect(&identity, proxy.addr(), &["h2"]).await;
        stream.write_all(&preface()).await.unwrap();
        let pings = frame(PING, 0, 0, &[0; 8]).repeat(1000);
        let sending = async { while stream.write_all(&pings).await.is_ok() {} };
        tokio::time::timeout(PATIENCE, sending).await.expect("in time");
    });
}

/// A body that a test sends in parts.
struct Parts(mpsc::Receiver<Bytes>);

impl Body for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|part| part.map(|part| Ok(Frame::data(part))))
    }
}

/// Opens a connection for bodies in parts.
async fn open_for_parts(identity: &Identity, proxy: &Proxy) -> SendRequest<Parts> {
    let (stream, _) = connect(identity, proxy.addr(), &["h2"]).await;
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// Nothing is written to the client of an upload of few bytes.
#[test]
fn slow_upload_is_not_stuck() {
    let identity = Identity::new();
    let addr = http_backend(|request| ok(request.body.len().to_string()));
    let proxy = identity.start("http", addr, "timeouts = { idle = \"3s\", response = \"3s\" }");
    run(async {
        let mut sender = open_for_parts(&identity, &proxy).await;
        let (parts, upload) = mpsc::channel(4);
        let asking = sender.send_request(Request::post("https://a.example/").body(Parts(upload)).unwrap());
        let asked = tokio::spawn(async move { body(asking.await.unwrap()).await.0 });
        // Longer than twice the time-outs together, with more than `body_rate` bytes in each `idle`.
        for _ in 0..25 {
            parts.send(Bytes::from_static(&[b'x'; 800])).await.unwrap();
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        drop(parts);
        assert_eq!(asked.await.unwrap(), b"20000");
    });
}

/// PING and its answer are no progress of a response that the client's window stops.
#[test]
fn client_that_only_pings_is_closed() {
    let identity = Identity::new();
    let proxy = identity.start("http", http_backend(|_| ok("x")), "timeouts = { idle = \"3s\", response = \"1s\" }");
    run(async {
        let (stream, _) = connect(&identity, proxy.addr(), &["h2"]).await;
        let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).keep_alive_interval(Duration::from_millis(200)).initial_stream_window_size(0);
        let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
        let connection = tokio::spawn(connection);
        let response = sender.send_request(request("/", Vec::new())).await.unwrap();
        tokio::time::timeout(PATIENCE, connection).await.expect("in time").unwrap().unwrap_err();
        drop(response);
    });
    assert_eq!(identity::metric(&proxy, "fs_proxy_connections_failed"), 1);
}

/// A server that does not read stops the uploads to it, and no others of the same client.
#[test]
fn uploads_do_not_wait_for_each_other() {
    let identity = Identity::new();
    let deaf = backend(|mut stream| {
        stream.read_exact(&mut [0; 100])?;
        std::thread::sleep(PATIENCE * 4);
        Ok(())
    });
    let addr = http_backend(|request| ok(request.body.len().to_string()));
    let route = "[[listener.route]]\npaths = [\"/deaf\"]\nupstream = \"deaf\"\n[[upstream]]\n";
    let text = identity.listener("http", addr, "").replace("[[upstream]]\n", route);
    let config = write_config(&format!("{text}[[upstream]]\nname = \"deaf\"\nservers = [\"{deaf}\"]\n"));
    let proxy = Proxy { program: start_program(&config), config };
    run(async {
        let mut sender = open_for_parts(&identity, &proxy).await;
        let (parts, upload) = mpsc::channel(1);
        tokio::spawn(sender.send_request(Request::post("https://a.example/deaf").body(Parts(upload)).unwrap()));
        // Until the sockets and the windows on the way are full.
        let part = Bytes::from(pattern(64 << 10));
        let mut late = 0;
        // Twice may be a thread that is stopped for 2 s.
        while late < 3 {
            late = match tokio::time::timeout(Duration::from_secs(1), parts.send(part.clone())).await {
                Ok(sent) => sent.map(|()| 0).unwrap(),
                Err(_) => late + 1,
            };
        }
        let (other, upload) = mpsc::channel(1);
        let asking = sender.send_request(Request::post("https://a.example/").body(Parts(upload)).unwrap());
        // More than both may have in flight.
        other.send(Bytes::from(pattern(3_000_000))).await.unwrap();
        drop(other);
        let response = tokio::time::timeout(PATIENCE / 2, asking).await.expect("in time").unwrap();
        assert_eq!(body(response).await.0, b"3000000");
    });
}

/// Returns the configuration of a TLS server.
fn tls_of(identity: &Identity) -> Arc<ServerConfig> {
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let key = PrivateKeyDer::from_pem_file(&identity.key).unwrap();
    Arc::new(builder.with_single_cert(vec![identity.der.clone()], key).unwrap())
}

/// Returns the number of a new proxy's descriptors. Its first thread opens some after the others have said `ready`,
/// and then starts `reload`.
fn descriptors_at_rest(proxy: &Proxy) -> usize {
    let tasks = format!("/proc/{}/task", proxy.program.id());
    let is_last = |task: std::fs::DirEntry| {
        std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name == "reload\n")
    };
    eventually("its threads run", || std::fs::read_dir(&tasks).unwrap().flatten().any(is_last));
    proxy.program.descriptors()
}

/// A body that its server does not take belongs to no client once the client has left, and has an end.
#[test]
fn stuck_upload_does_not_keep_the_place_of_its_client() {
    let (front, back) = (Identity::new(), Identity::new());
    let config = tls_of(&back);
    let deaf = backend(move |mut stream| {
        let mut tls = ServerConnection::new(config.clone()).unwrap();
        tls.complete_io(&mut stream)?;
        let mut tls = StreamOwned::new(tls, stream);
        let mut first = [0; 3];
        tls.read_exact(&mut first)?;
        if first == *b"GET" {
            tls.write_all(&ok("here"))?;
            tls.flush()?;
        }
        std::thread::sleep(PATIENCE * 4);
        Ok(())
    });
    let top = "limits = { client_connections = 1 }\ntimeouts = { connect = \"30s\", idle = \"5s\", response = \"5s\" }";
    let tls =
        format!("tls = {{ ca = {:?}, name = \"localhost\" }}\nkeepalive = {{ connections = 0 }}\n", back.certificate);
    let config = write_config(&(front.listener("http", deaf, top) + &tls));
    let proxy = Proxy { program: start_program(&config), config };
    let before = descriptors_at_rest(&proxy);
    run(async {
        let (mut sender, connection) = http2::open(&front, proxy.addr()).await;
        // More than the sockets on the way hold.
        let response = sender.send_request(request("/", pattern(16 << 20))).await.unwrap();
        assert_eq!(response.status(), 504);
        connection.abort();
    });
    eventually("the next client is served", || front.get(&proxy).is_ok_and(|body| body == "here"));
    eventually("the connection is closed", || proxy.program.descriptors() == before);
}

/// The response is over, and the server takes no more of the request.
#[test]
fn upload_that_is_stuck_after_its_response_ends() {
    let (front, back) = (Identity::new(), Identity::new());
    let config = tls_of(&back);
    let plain = backend(|mut stream| {
        stream.read_exact(&mut [0; 100])?;
        stream.write_all(&ok("early"))?;
        std::thread::sleep(PATIENCE * 4);
        Ok(())
    });
    let secure = backend(move |mut stream| {
        let mut tls = ServerConnection::new(config.clone()).unwrap();
        tls.complete_io(&mut stream)?;
        let mut tls = StreamOwned::new(tls, stream);
        tls.read_exact(&mut [0; 100])?;
        tls.write_all(&ok("early"))?;
        tls.flush()?;
        std::thread::sleep(PATIENCE * 4);
        Ok(())
    });
    let tls = format!("tls = {{ ca = {:?}, name = \"localhost\" }}\n", back.certificate);
    for (server, tls) in [(plain, ""), (secure, &*tls)] {
        // A server whose threads are stopped answers within `idle`.
        let top = "timeouts = { connect = \"30s\", idle = \"4s\" }";
        let config = write_config(&(front.listener("http", server, top) + tls));
        let proxy = Proxy { program: start_program(&config), config };
        let before = descriptors_at_rest(&proxy);
        run(async {
            let mut sender = open_for_parts(&front, &proxy).await;
            let (parts, upload) = mpsc::channel(1);
            let asking = sender.send_request(Request::post("https://a.example/").body(Parts(upload)).unwrap());
            parts.send(Bytes::from(pattern(16 << 20))).await.unwrap();
            assert_eq!(body(asking.await.unwrap()).await.0, b"early");
        });
        eventually("the connections are closed", || proxy.program.descriptors() == before);
    }
}
