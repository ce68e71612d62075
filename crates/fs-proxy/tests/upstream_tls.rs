//! TLS and HTTP/2 to servers. Over loopback on kernel sockets; `af_xdp` repeats them on fastsock.
#![cfg(feature = "http2")]

mod common;
#[path = "common/identity.rs"]
mod identity;

use bytes::Bytes;
use common::*;
use fs_stacks::testing::{PATIENCE, Signal, eventually};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use identity::Identity;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// A TLS server: its configuration, and the names that clients have requested.
#[derive(Clone)]
struct TlsServer {
    config: Arc<ServerConfig>,
    names: Arc<Mutex<Vec<Option<String>>>>,
}

impl TlsServer {
    /// With `clients`, only clients with a certificate of that authority are served.
    fn new(identity: &Identity, clients: Option<&Identity>, protocols: &[&str]) -> Self {
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(authority.der.clone()).unwrap();
                let provider = Arc::new(ring::default_provider());
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let key = PrivateKeyDer::from_pem_file(&identity.key).unwrap();
        let mut config = builder.with_single_cert(vec![identity.der.clone()], key).unwrap();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Self { config: Arc::new(config), names: Arc::default() }
    }

    /// Starts a server that answers each request with its first line and its body's length.
    fn start(&self) -> SocketAddr {
        let server = self.clone();
        backend(move |stream| {
            let connection = ServerConnection::new(server.config.clone()).unwrap();
            let mut stream = StreamOwned::new(connection, stream);
            let mut bytes = Vec::new();
            loop {
                let mut piece = [0; 16 << 10];
                let read = stream.read(&mut piece)?;
                if read == 0 {
                    return Ok(());
                }
                bytes.extend_from_slice(&piece[..read]);
                let Some(end) = bytes.windows(4).position(|end| end == b"\r\n\r\n") else { continue };
                let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
                let received = Received { head: head.clone() + "\r\n\r\n", body: Vec::new() };
                let length = received.header("content-length").map_or(0, |length| length.parse().unwrap());
                if bytes.len() < end + 4 + length {
                    continue;
                }
                let sum: u64 = bytes[end + 4..][..length].iter().map(|&byte| u64::from(byte)).sum();
                bytes.clear();
                server.names.lock().unwrap().push(stream.conn.server_name().map(str::to_owned));
                stream.write_all(&ok(format!("{} {length} {sum}", head.lines().next().unwrap())))?;
                stream.flush()?;
            }
        })
    }
}

fn start(mode: &str, servers: &str, upstream: &str) -> Proxy {
    let ip = proxy_ip();
    let config = write_config(&format!(
        "metrics = \"{ip}:0\"\ntimeouts = {{ connect = \"30s\" }}\n[[listener]]\naddress = \"{ip}:0\"\nmode = \"{mode}\"\nupstream = \"u\"\n\
         [[upstream]]\nname = \"u\"\nservers = [{servers}]\n{upstream}\n"
    ));
    Proxy { program: start_program(&config), config }
}

#[test]
fn servers_get_tls_and_their_certificate_is_verified() {
    let identity = Identity::new();
    let server = TlsServer::new(&identity, None, &[]);
    let addr = server.start();
    let tls = format!("tls = {{ ca = {:?}, name = \"localhost\" }}", identity.certificate);
    let proxy = start("http", &format!("\"{addr}\""), &tls);
    // The lean path, hyper's, and a body that needs several records.
    assert_eq!(body_of(&proxy.get("/lean")), "GET /lean HTTP/1.1 0 0");
    assert_eq!(body_of(&proxy.ask("GET /odd HTTP/1.0\r\n\r\n")), "GET /odd HTTP/1.1 0 0");
    let body = pattern(300_000);
    let sum: u64 = body.iter().map(|&byte| u64::from(byte)).sum();
    let head = format!("POST /up HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    let answer = proxy.ask_bytes(&[head.as_bytes(), &body].concat());
    assert_eq!(body_of(&answer), format!("POST /up HTTP/1.1 300000 {sum}"));
    // Requests of the lean path use a kept connection: session tickets on it are no response.
    for _ in 0..5 {
        assert_eq!(body_of(&proxy.get("/again")), "GET /again HTTP/1.1 0 0");
    }
    assert!(identity::metric(&proxy, "fs_proxy_server_reused_total") >= 5);
    assert!(server.names.lock().unwrap().iter().all(|name| name.as_deref() == Some("localhost")));
    // A device has one process at a time.
    drop(proxy);
    // By address: this certificate has none.
    let by_address = start("http", &format!("\"{addr}\""), &format!("tls = {{ ca = {:?} }}", identity.certificate));
    assert!(by_address.get("/").starts_with("HTTP/1.1 502 "));
    by_address.program.says("TLS handshake");
    drop(by_address);
    // Another authority.
    let stranger = Identity::new();
    let tls = format!("tls = {{ ca = {:?}, name = \"localhost\" }}", stranger.certificate);
    let distrusts = start("http", &format!("\"{addr}\""), &tls);
    assert!(distrusts.get("/").starts_with("HTTP/1.1 502 "));
    assert!(distrusts.get("/").starts_with("HTTP/1.1 502 "));
}

#[test]
fn servers_name_is_the_certificates() {
    if !own_ip().is_loopback() {
        return println!("skipped: this host has no name in the other namespace");
    }
    let identity = Identity::new();
    let addr = TlsServer::new(&identity, None, &[]).start();
    let named = start(
        "http",
        &format!("\"localhost:{}\"", addr.port()),
        &format!("tls = {{ ca = {:?} }}", identity.certificate),
    );
    assert_eq!(body_of(&named.get("/named")), "GET /named HTTP/1.1 0 0");
}

#[test]
fn health_checks_and_tcp_listeners_use_tls() {
    let identity = Identity::new();
    let addr = TlsServer::new(&identity, None, &[]).start();
    let tls = format!(
        "tls = {{ ca = {:?}, name = \"localhost\" }}\nhealth_check = {{ interval = \"50ms\", timeout = \"30s\", path = \"/\", fall = 1 }}",
        identity.certificate
    );
    // A plain server cannot pass: its handshake fails.
    let plain = http_backend(|_| ok("plain"));
    let proxy = start("tcp", &format!("\"{addr}\", \"{plain}\""), &tls);
    proxy.program.says("unhealthy");
    for _ in 0..4 {
        assert_eq!(body_of_one(&mut proxy.connect()), "GET / HTTP/1.1 0 0");
    }
}

/// Sends a request on a connection to a TCP listener, and returns the body of its answer.
fn body_of_one(stream: &mut std::net::TcpStream) -> String {
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut bytes = Vec::new();
    while !bytes.ends_with(b" 0 0") {
        let mut piece = [0; 4096];
        let read = stream.read(&mut piece).unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&bytes));
        bytes.extend_from_slice(&piece[..read]);
    }
    body_of(&String::from_utf8_lossy(&bytes)).to_owned()
}

#[test]
fn proxy_has_a_certificate_for_servers_that_ask() {
    let identity = Identity::new();
    let (own, stranger) = (Identity::named(&["proxy.example"]), Identity::named(&["proxy.example"]));
    let addr = TlsServer::new(&identity, Some(&own), &[]).start();
    let with = |client: Option<&Identity>| {
        let pair = client.map_or_else(String::new, |client| {
            format!(", certificate = {:?}, key = {:?}", client.certificate, client.key)
        });
        let tls = format!("tls = {{ ca = {:?}, name = \"localhost\"{pair} }}", identity.certificate);
        start("http", &format!("\"{addr}\""), &tls)
    };
    assert_eq!(body_of(&with(Some(&own)).get("/")), "GET / HTTP/1.1 0 0");
    assert!(with(Some(&stranger)).get("/").starts_with("HTTP/1.1 502 "));
    assert!(with(None).get("/").starts_with("HTTP/1.1 502 "));
}

/// A body of a response: chunks, and trailers.
type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>;

/// A server with HTTP/2, as gRPC's are. With `identity` over TLS.
struct Http2Server {
    addr: SocketAddr,
    connections: Arc<AtomicUsize>,
    /// Requests that have arrived. Before the first one of a connection, the proxy has had its SETTINGS.
    requests: Arc<AtomicUsize>,
    /// Stops its connections with GOAWAY.
    goaway: Arc<tokio::sync::Notify>,
    /// Breaks them off.
    breaks: Arc<tokio::sync::Notify>,
}

impl Http2Server {
    fn start(identity: Option<&Identity>) -> Self {
        Self::with_limit(identity, None)
    }

    /// Starts a server that allows this many requests of a connection at the same time.
    fn with_limit(identity: Option<&Identity>, limit: Option<u32>) -> Self {
        let listener = std::net::TcpListener::bind((own_ip(), 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let addr = listener.local_addr().unwrap();
        let tls = identity.map(|identity| TlsServer::new(identity, None, &["h2"]).config);
        let (connections, goaway) = (Arc::new(AtomicUsize::new(0)), Arc::new(tokio::sync::Notify::new()));
        let (requests, breaks) = (Arc::new(AtomicUsize::new(0)), Arc::new(tokio::sync::Notify::new()));
        let server = Self {
            addr,
            connections: connections.clone(),
            requests: requests.clone(),
            goaway: goaway.clone(),
            breaks: breaks.clone(),
        };
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                while let Ok((stream, _)) = listener.accept().await {
                    connections.fetch_add(1, Ordering::SeqCst);
                    let (tls, requests) = (tls.clone(), requests.clone());
                    let (goaway, breaks) = (goaway.clone(), breaks.clone());
                    tokio::spawn(async move {
                        let serving = async {
                            match tls {
                                None => serve_http2(stream, &requests, goaway, limit).await,
                                Some(config) => {
                                    let acceptor = tokio_rustls::TlsAcceptor::from(config);
                                    if let Ok(stream) = acceptor.accept(stream).await {
                                        serve_http2(stream, &requests, goaway, limit).await;
                                    }
                                }
                            }
                        };
                        tokio::select! {
                            () = serving => {}
                            () = breaks.notified() => {}
                        }
                    });
                }
            });
        });
        server
    }

    /// Waits until so many requests have arrived. Requests of which each waits for the one before use a connection
    /// each, however late the server's SETTINGS are.
    async fn has(&self, requests: usize) {
        while self.requests.load(Ordering::SeqCst) < requests {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
}

async fn serve_http2<S>(stream: S, count: &AtomicUsize, goaway: Arc<tokio::sync::Notify>, limit: Option<u32>)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let service = hyper::service::service_fn(|request| {
        count.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, Infallible>(grpc(request).await) }
    });
    let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    if let Some(limit) = limit {
        builder.max_concurrent_streams(limit);
    }
    let mut serving = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        _ = serving.as_mut() => {}
        () = goaway.notified() => {
            serving.as_mut().graceful_shutdown();
            let _ = serving.await;
        }
    }
}

/// Responses of small frames that were handed over completely, or broken off.
static SMALL: AtomicUsize = AtomicUsize::new(0);

/// Returns each piece of the request's body at once, and trailers with what the request had.
async fn grpc(request: Request<Incoming>) -> Response<Body> {
    let (head, mut body) = request.into_parts();
    let text = |name: &str| head.headers.get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default();
    if head.uri.path() == "/never" {
        std::future::pending::<()>().await;
    }
    if head.uri.path() == "/trailers-only" {
        let response = Response::builder().header("grpc-status", "12").body(Empty::new().boxed_unsync());
        return response.unwrap();
    }
    if head.uri.path() == "/small" {
        // They fit the window of a stream.
        let (sender, receiver) = mpsc::channel(4);
        tokio::spawn(async move {
            for _ in 0..2600 {
                // An error means that the connection has ended, which the test sees.
                let _ = sender.send(Frame::data(Bytes::from_static(&[b'x'; 50]))).await;
            }
            SMALL.fetch_add(1, Ordering::SeqCst);
        });
        return Response::new(StreamBody::new(futures(receiver)).boxed_unsync());
    }
    if head.uri.path() == "/endless" {
        let (sender, receiver) = mpsc::channel(4);
        tokio::spawn(
            async move { while sender.send(Frame::data(Bytes::from_static(&[b'x'; 16 << 10]))).await.is_ok() {} },
        );
        return Response::new(StreamBody::new(futures(receiver)).boxed_unsync());
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    let uri = head.uri.to_string();
    let forbidden = ["connection", "host", "transfer-encoding"].iter().any(|name| head.headers.contains_key(*name));
    let seen = format!("{uri} te={} via={} forbidden={forbidden}", text("te"), text("via"));
    trailers.insert("seen", seen.parse().unwrap());
    let (sender, receiver) = mpsc::channel(4);
    tokio::spawn(async move {
        while let Some(Ok(frame)) = body.frame().await {
            let frame = match frame.into_data() {
                Ok(data) => Frame::data(data),
                Err(frame) => {
                    let sent = frame.into_trailers().unwrap_or_default();
                    trailers.extend(sent);
                    continue;
                }
            };
            if sender.send(frame).await.is_err() {
                return;
            }
        }
        let _ = sender.send(Frame::trailers(trailers)).await;
    });
    let frames = futures(receiver);
    Response::builder().header("content-type", "application/grpc").body(StreamBody::new(frames).boxed_unsync()).unwrap()
}

/// Makes a stream of what a channel receives.
fn futures(receiver: mpsc::Receiver<Frame<Bytes>>) -> Frames {
    Frames(receiver)
}

struct Frames(mpsc::Receiver<Frame<Bytes>>);

impl futures_core::Stream for Frames {
    type Item = Result<Frame<Bytes>, Infallible>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.0.poll_recv(cx).map(|frame| frame.map(Ok))
    }
}

type Sender = hyper::client::conn::http2::SendRequest<Body>;

/// Opens a connection for HTTP/2 to the proxy.
async fn connect(front: &Identity, addr: SocketAddr) -> tokio_rustls::client::TlsStream<tokio::net::TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(front.der.clone()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = tokio::net::TcpStream::connect(addr).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    connector.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap()
}

/// Opens an HTTP/2 connection to the proxy.
async fn open(front: &Identity, addr: SocketAddr) -> Sender {
    let stream = connect(front, addr).await;
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    sender
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(4 * PATIENCE, test).await.expect("in time") });
}

/// Starts a proxy with HTTP/2 on both sides.
fn start_http2(front: &Identity, server: SocketAddr, upstream: &str, top: &str) -> Proxy {
    let config = write_config(&format!("{}http2 = true\n{upstream}\n", front.listener("http", server, top)));
    Proxy { program: start_program(&config), config }
}

fn request(path: &str, body: Body) -> Request<Body> {
    let request = Request::post(format!("https://a.example{path}")).header("te", "trailers");
    request.header("content-type", "application/grpc").body(body).unwrap()
}

#[test]
fn grpc_passes_from_end_to_end() {
    let (front, back) = (Identity::new(), Identity::new());
    let tls = format!("tls = {{ ca = {:?}, name = \"localhost\" }}", back.certificate);
    for (identity, upstream, scheme) in [(Some(&back), &*tls, "https"), (None, "", "http")] {
        let server = Http2Server::start(identity);
        let proxy = start_http2(&front, server.addr, upstream, "timeouts = { connect = \"30s\" }");
        run(async {
            let mut sender = open(&front, proxy.addr()).await;
            // A stream in both directions: each message is answered before the next is sent.
            let (messages, receiver) = mpsc::channel(4);
            let body = StreamBody::new(futures(receiver)).boxed_unsync();
            let asking = sender.send_request(request("/pkg.Service/Chat?x", body));
            messages.send(Frame::data(Bytes::from_static(b"one"))).await.unwrap();
            let mut response = asking.await.unwrap();
            assert_eq!(response.headers()["content-type"], "application/grpc");
            for message in ["one", "two", "three"] {
                let frame = response.body_mut().frame().await.unwrap().unwrap();
                assert_eq!(frame.into_data().unwrap(), message.as_bytes());
                if let Some(next) = [("one", "two"), ("two", "three")].iter().find(|(now, _)| *now == message) {
                    messages.send(Frame::data(Bytes::from_static(next.1.as_bytes()))).await.unwrap();
                }
            }
            let mut last = HeaderMap::new();
            last.insert("client-trailer", "yes".parse().unwrap());
            messages.send(Frame::trailers(last)).await.unwrap();
            drop(messages);
            let trailers = response.body_mut().frame().await.unwrap().unwrap().into_trailers().unwrap();
            assert_eq!(
                (&trailers["grpc-status"], &trailers["client-trailer"]),
                (&"0".parse().unwrap(), &"yes".parse().unwrap())
            );
            let seen = format!("{scheme}://a.example/pkg.Service/Chat?x te=trailers via=2 fs-proxy forbidden=false");
            assert_eq!(trailers["seen"], seen);
            let response = sender.send_request(request("/trailers-only", Empty::new().boxed_unsync())).await.unwrap();
            assert_eq!(response.headers()["grpc-status"], "12");
        });
        // Requests of HTTP/1.1, also with a wish to switch, get HTTP/2 too, on the same connection.
        let mut stream = front.connect(&proxy);
        let head = "POST /one HTTP/1.1\r\nHost: b.example\r\nConnection: close, upgrade\r\nUpgrade: websocket\r\n\
                    Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("\r\n3\r\nabc\r\n0\r\n"), "{answer}");
        assert_eq!(server.connections.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn requests_share_connections_and_a_connection_that_ends_is_replaced() {
    let front = Identity::new();
    let server = Http2Server::start(None);
    let mut proxy = start_http2(&front, server.addr, "", "");
    let text = |response: Response<Incoming>| async { response.into_body().collect().await.unwrap().to_bytes() };
    run(async {
        let clients = [open(&front, proxy.addr()).await, open(&front, proxy.addr()).await];
        let ask = |number: usize| {
            let mut sender = clients[number % 2].clone();
            tokio::spawn(async move {
                let body = Full::new(Bytes::from(pattern(number * 3000))).boxed_unsync();
                let response = sender.send_request(request(&format!("/{number}"), body)).await.unwrap();
                assert_eq!(text(response).await, pattern(number * 3000), "{number}");
            })
        };
        for asked in (0..60).map(ask).collect::<Vec<_>>() {
            asked.await.unwrap();
        }
        assert_eq!(server.connections.load(Ordering::SeqCst), 1);
        // GOAWAY: no request is lost. One that crosses it is sent again if it may be, so not a POST.
        for round in 0..5 {
            let asked: Vec<_> = (0..10)
                .map(|number| {
                    let mut sender = clients[number % 2].clone();
                    let mut request = request(&format!("/{number}"), Empty::new().boxed_unsync());
                    *request.method_mut() = http::Method::GET;
                    tokio::spawn(async move { sender.send_request(request).await.unwrap().status() })
                })
                .collect();
            server.goaway.notify_waiters();
            for asked in asked {
                assert_eq!(asked.await.unwrap(), 200);
            }
            assert!(server.connections.load(Ordering::SeqCst) <= 2 + round);
        }
    });
    // A server that does not answer: its connection gets no further requests.
    let text_of = |server, top| front.listener("http", server, top) + "http2 = true\n";
    let reload = |text: String, number: usize| {
        std::fs::write(&proxy.config, text).unwrap();
        proxy.program.signal(Signal::HangUp);
        eventually("it is in use", || proxy.program.log().matches("is in use;").count() == number);
    };
    reload(text_of(server.addr, "timeouts = { response = \"5s\" }"), 1);
    run(async {
        let mut sender = open(&front, proxy.addr()).await;
        let response = sender.send_request(request("/never", Empty::new().boxed_unsync())).await.unwrap();
        assert_eq!(response.status(), 504);
        let before = server.connections.load(Ordering::SeqCst);
        let response = sender.send_request(request("/7", Empty::new().boxed_unsync())).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(server.connections.load(Ordering::SeqCst), before + 1);
    });
    // A server that does not exist.
    reload(text_of(nobody(), ""), 2);
    run(async {
        let sender = open(&front, proxy.addr()).await;
        let asked = (0..30).map(|_| {
            let mut sender = sender.clone();
            tokio::spawn(async move {
                sender.send_request(request("/", Empty::new().boxed_unsync())).await.unwrap().status()
            })
        });
        for asked in asked.collect::<Vec<_>>() {
            assert_eq!(asked.await.unwrap(), 502);
        }
    });
    proxy.program.terminate();
    assert!(proxy.program.wait().success());
}

#[test]
fn servers_limit_of_requests_is_kept() {
    let front = Identity::new();
    let server = Http2Server::with_limit(None, Some(2));
    let proxy = start_http2(&front, server.addr, "", "timeouts = { response = \"20s\" }");
    run(async {
        let sender = open(&front, proxy.addr()).await;
        let ask = |path| {
            let mut sender = sender.clone();
            tokio::spawn(async move {
                sender.send_request(request(path, Empty::new().boxed_unsync())).await.unwrap().status()
            })
        };
        // From this response on the proxy knows the limit.
        assert_eq!(ask("/").await.unwrap(), 200);
        let held = [ask("/never"), ask("/never")];
        while identity::metric(&proxy, "fs_proxy_server_active") < 2 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        assert_eq!(server.connections.load(Ordering::SeqCst), 1);
        assert_eq!(ask("/").await.unwrap(), 200);
        assert_eq!(server.connections.load(Ordering::SeqCst), 2);
        held.iter().for_each(tokio::task::JoinHandle::abort);
    });
}

/// Every further connection to the server uses a descriptor, like a client.
#[test]
fn connections_for_a_servers_limit_are_counted() {
    if !own_ip().is_loopback() {
        return println!("skipped: descriptors limit the kernel's connections only");
    }
    let front = Identity::new();
    let server = Http2Server::with_limit(None, Some(1));
    let top = "timeouts = { connect = \"5s\", response = \"60s\" }";
    let config = write_config(&format!("{}http2 = true\n", front.listener("http", server.addr, top)));
    // It has 9 clients on one core.
    let proxy = Proxy { program: start_limited(&config, 100), config };
    run(async {
        let sender = open(&front, proxy.addr()).await;
        let (answered, mut answers) = mpsc::channel(60);
        let ask = |path| {
            let (mut sender, answered) = (sender.clone(), answered.clone());
            tokio::spawn(async move {
                let response = sender.send_request(request(path, Empty::new().boxed_unsync())).await.unwrap();
                answered.send(response.status().as_u16()).await.unwrap();
            })
        };
        // From this response on the proxy knows the limit.
        ask("/");
        assert_eq!(answers.recv().await, Some(200));
        let mut held = Vec::new();
        for number in 2..=10 {
            held.push(ask("/never"));
            server.has(number).await;
        }
        held.extend((0..51).map(|_| ask("/never")));
        for _ in 0..51 {
            assert_eq!(answers.recv().await, Some(503));
        }
        assert_eq!(server.connections.load(Ordering::SeqCst), 9);
        // Some time after the requests, clients have the places again.
        held.iter().for_each(tokio::task::JoinHandle::abort);
        drop(sender);
        loop {
            let mut clients = Vec::new();
            for _ in 0..9 {
                clients.push(open(&front, proxy.addr()).await);
            }
            // One that must leave has a second.
            tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
            if clients.iter().all(|client| !client.is_closed()) {
                break;
            }
        }
    });
}

#[test]
fn requests_wait_for_a_server_that_allows_none() {
    let front = Identity::new();
    let server = Http2Server::with_limit(None, Some(0));
    let proxy = start_http2(&front, server.addr, "", "");
    run(async {
        let sender = open(&front, proxy.addr()).await;
        let ask = || {
            let mut sender = sender.clone();
            let request = request("/", Empty::new().boxed_unsync());
            tokio::spawn(async move { sender.send_request(request).await.unwrap().status() })
        };
        // One after the other, so that the proxy has the limit by the last.
        let mut held = Vec::new();
        for number in 1..=5 {
            held.push(ask());
            while identity::metric(&proxy, "fs_proxy_server_active") < number {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        }
        assert!(held.iter().all(|held| !held.is_finished()));
        assert_eq!(server.connections.load(Ordering::SeqCst), 1);
    });
}

/// A connection to a server that never allows a request ends with the requests that have waited for it.
#[test]
fn connection_that_never_had_a_request_is_closed() {
    let front = Identity::new();
    // A server that is silent, and one whose SETTINGS allow no requests (RFC 9113 6.5.2).
    for settings in [&[][..], &[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0]] {
        let closed = Arc::new(AtomicUsize::new(0));
        let count = closed.clone();
        let addr = backend(move |mut stream| {
            // Late ones meet a closed connection, which is an end too.
            let _ = stream.write_all(settings);
            let _ = stream.read_to_end(&mut Vec::new());
            count.fetch_add(1, Ordering::SeqCst);
            Ok(())
        });
        let proxy = start_http2(&front, addr, "", "timeouts = { response = \"1s\" }");
        run(async {
            let mut sender = open(&front, proxy.addr()).await;
            let response = sender.send_request(request("/", Empty::new().boxed_unsync())).await.unwrap();
            assert_eq!(response.status(), 504);
        });
        eventually("it is closed", || closed.load(Ordering::SeqCst) == 1);
    }
}

/// Lets a request wait for a place next to requests that have all of them, until `end` makes room. `end` gets the
/// request of the first connection. In the end there were so many connections.
fn one_waits_for_a_place(connections: usize, end: impl AsyncFnOnce(JoinHandle<StatusCode>, &Http2Server)) {
    if !own_ip().is_loopback() {
        return println!("skipped: descriptors limit the kernel's connections only");
    }
    let front = Identity::new();
    let server = Http2Server::with_limit(None, Some(1));
    let top = "timeouts = { connect = \"120s\", response = \"120s\" }";
    let config = write_config(&format!("{}http2 = true\n", front.listener("http", server.addr, top)));
    // It has 9 clients on one core: this one, and 8 connections to the server next to the first one.
    let proxy = Proxy { program: start_limited(&config, 100), config };
    run(async {
        let sender = open(&front, proxy.addr()).await;
        let ask = |path| {
            let mut sender = sender.clone();
            let request = request(path, Empty::new().boxed_unsync());
            tokio::spawn(async move { sender.send_request(request).await.unwrap().status() })
        };
        let active = async |count| {
            while identity::metric(&proxy, "fs_proxy_server_active") < count {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        };
        // From this response on the proxy knows the limit.
        assert_eq!(ask("/").await.unwrap(), 200);
        let first = ask("/never");
        server.has(2).await;
        let mut held = Vec::new();
        for number in 3..=10 {
            held.push(ask("/never"));
            server.has(number).await;
        }
        assert_eq!(server.connections.load(Ordering::SeqCst), 9);
        let waiting = ask("/");
        active(10).await;
        end(first, &server).await;
        let status = tokio::time::timeout(PATIENCE, waiting).await.expect("in time");
        assert_eq!(status.unwrap(), 200);
        assert_eq!(server.connections.load(Ordering::SeqCst), connections);
    });
}

/// A request waits for another connection or for the end of a request, whichever comes first.
#[test]
fn request_that_waits_for_a_place_uses_a_free_connection() {
    one_waits_for_a_place(9, async |first, _| first.abort());
}

/// The first connection needs no place, and may have ended while a request waits for one.
#[test]
fn request_that_waits_for_a_place_replaces_the_first_connection() {
    one_waits_for_a_place(10, async |first, server| {
        // The longest waiting, which is the first connection.
        server.breaks.notify_one();
        assert_eq!(first.await.unwrap(), 502);
    });
}

/// The number of requests before the one that waits: one with a response, and nine that hold connections.
const LAST: usize = 10;

/// Serves a connection with HTTP/2, of one request at a time. Counts the requests of all connections, responds to
/// the first and the last one, and allows two on the second one's connection after `raise`.
fn serve_with_a_raised_limit(mut stream: TcpStream, count: &AtomicUsize, raise: &AtomicBool) -> std::io::Result<()> {
    let settings = |limit| [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, limit];
    stream.write_all(&settings(1))?;
    let mut read = stream.try_clone()?;
    read.read_exact(&mut [0; 24])?;
    loop {
        let mut head = [0; 9];
        read.read_exact(&mut head)?;
        read.read_exact(&mut vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize])?;
        match head[3..5] {
            // SETTINGS, which are not an acknowledgement.
            [4, 0] => stream.write_all(&[0, 0, 0, 4, 1, 0, 0, 0, 0])?,
            // HEADERS. The response is `:status: 200`.
            [1, _] => match count.fetch_add(1, Ordering::SeqCst) {
                0 | LAST => stream.write_all(&[&[0, 0, 1, 1, 5], &head[5..], &[0x88]].concat())?,
                1 => {
                    while !raise.load(Ordering::SeqCst) {
                        std::thread::sleep(std::time::Duration::from_millis(1));
                    }
                    stream.write_all(&settings(2))?;
                }
                _ => {}
            },
            _ => {}
        }
    }
}

/// Nothing tells the proxy that a server allows more requests of a connection.
#[test]
fn request_that_waits_for_a_place_uses_a_raised_limit() {
    if !own_ip().is_loopback() {
        return println!("skipped: descriptors limit the kernel's connections only");
    }
    let front = Identity::new();
    let (count, raise) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (counts, raises) = (count.clone(), raise.clone());
    let addr = backend(move |stream| serve_with_a_raised_limit(stream, &counts, &raises));
    let top = "timeouts = { connect = \"120s\", response = \"120s\" }";
    let config = write_config(&format!("{}http2 = true\n", front.listener("http", addr, top)));
    // As above.
    let proxy = Proxy { program: start_limited(&config, 100), config };
    run(async {
        let sender = open(&front, proxy.addr()).await;
        let ask = || {
            let mut sender = sender.clone();
            let request = request("/", Empty::new().boxed_unsync());
            tokio::spawn(async move { sender.send_request(request).await.unwrap().status() })
        };
        assert_eq!(ask().await.unwrap(), 200);
        let mut held = Vec::new();
        for number in 1..LAST {
            held.push(ask());
            // As `Http2Server::has`.
            while count.load(Ordering::SeqCst) <= number {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        }
        let waiting = ask();
        while identity::metric(&proxy, "fs_proxy_server_active") < LAST as u64 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        raise.store(true, Ordering::SeqCst);
        let status = tokio::time::timeout(PATIENCE, waiting).await.expect("in time");
        assert_eq!(status.unwrap(), 200);
    });
}

/// h2 ends a connection on which too many small frames wait for readers.
#[test]
fn slow_streams_of_small_frames_end_no_other_stream() {
    let front = Identity::new();
    let server = Http2Server::start(None);
    let proxy = start_http2(&front, server.addr, "", "");
    run(async {
        let mut other = open(&front, proxy.addr()).await;
        let (messages, receiver) = mpsc::channel(4);
        let asking = other.send_request(request("/chat", StreamBody::new(futures(receiver)).boxed_unsync()));
        messages.send(Frame::data(Bytes::from_static(b"one"))).await.unwrap();
        let mut chat = asking.await.unwrap();
        assert_eq!(chat.body_mut().frame().await.unwrap().unwrap().into_data().unwrap(), "one");
        // A client with 20 responses, of which it takes nothing.
        let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(0);
        let stream = TokioIo::new(connect(&front, proxy.addr()).await);
        let (sender, connection) = builder.handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let asked = (0..20).map(|_| sender.clone().send_request(request("/small", Empty::new().boxed_unsync())));
        let mut unread = Vec::new();
        for asked in asked.collect::<Vec<_>>() {
            unread.push(asked.await.unwrap());
        }
        while SMALL.load(Ordering::SeqCst) < 20 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        // Some frames may be on the way.
        for _ in 0..20 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            messages.send(Frame::data(Bytes::from_static(b"two"))).await.unwrap();
            assert_eq!(chat.body_mut().frame().await.unwrap().unwrap().into_data().unwrap(), "two");
        }
        assert_eq!(server.connections.load(Ordering::SeqCst), 1);
    });
}

/// h2 counts the frames that arrive for requests which were cancelled before, and ends a connection that has
/// too many.
#[test]
fn cancelled_requests_end_no_other_stream() {
    let front = Identity::new();
    let server = Http2Server::start(None);
    let proxy = start_http2(&front, server.addr, "", "");
    run(async {
        let mut other = open(&front, proxy.addr()).await;
        let (messages, receiver) = mpsc::channel(4);
        let asking = other.send_request(request("/chat", StreamBody::new(futures(receiver)).boxed_unsync()));
        messages.send(Frame::data(Bytes::from_static(b"one"))).await.unwrap();
        let mut chat = asking.await.unwrap();
        assert_eq!(chat.body_mut().frame().await.unwrap().unwrap().into_data().unwrap(), "one");
        for round in 0..12 {
            let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
            // None of them takes the connection's window of others.
            builder.initial_stream_window_size(32 << 10);
            let stream = TokioIo::new(connect(&front, proxy.addr()).await);
            let (sender, connection) = builder.handshake(stream).await.unwrap();
            tokio::spawn(connection);
            let asked = (0..90).map(|_| sender.clone().send_request(request("/endless", Empty::new().boxed_unsync())));
            let mut responses = Vec::new();
            for asked in asked.collect::<Vec<_>>() {
                let mut response = asked.await.unwrap();
                assert!(response.body_mut().frame().await.unwrap().unwrap().is_data());
                responses.push(response);
            }
            drop(responses);
            while identity::metric(&proxy, "fs_proxy_server_active") > 1 {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
            messages.send(Frame::data(Bytes::from_static(b"two"))).await.unwrap();
            let frame = chat.body_mut().frame().await.unwrap().unwrap_or_else(|error| panic!("{round}: {error}"));
            assert_eq!(frame.into_data().unwrap(), "two");
        }
        assert_eq!(server.connections.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn server_that_offers_no_http2_is_not_used() {
    let (front, back) = (Identity::new(), Identity::new());
    let addr = TlsServer::new(&back, None, &["http/1.1"]).start();
    let tls = format!("tls = {{ ca = {:?}, name = \"localhost\" }}", back.certificate);
    let proxy = start_http2(&front, addr, &tls, "");
    run(async {
        let mut sender = open(&front, proxy.addr()).await;
        let response = sender.send_request(request("/", Empty::new().boxed_unsync())).await.unwrap();
        assert_eq!(response.status(), 502);
    });
}
