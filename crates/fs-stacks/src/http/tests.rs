use super::*;
use crate::StackKind;
use crate::cores::connect;
use crate::stop::LocalStop;
use http_body_util::Full;
use hyper::service::service_fn;
use std::convert::Infallible;
use std::future::{Pending, Ready};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn run(future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(future);
}

fn never() -> Pending<()> {
    std::future::pending()
}

async fn pair() -> (Stream, Stream) {
    let listener = crate::kernel::listen("127.0.0.1:0".parse().unwrap(), 16).unwrap();
    let client = connect(StackKind::Kernel, listener.local_addr().unwrap(), None).await.unwrap();
    (client, listener.accept().await.unwrap().0)
}

fn hello(request: Request<Incoming>) -> Ready<Result<Response<Full<Bytes>>, Infallible>> {
    let body = Bytes::from(format!("{} ", request.uri()));
    let status = if request.uri() == "/upgrade" { 101 } else { 200 };
    std::future::ready(Ok(Response::builder().status(status).header("x-test", "1").body(Full::new(body)).unwrap()))
}

async fn read_until(stream: &mut Stream, end: &str) -> String {
    let mut got = Vec::new();
    while !got.ends_with(end.as_bytes()) {
        let mut byte = [0];
        stream.read_exact(&mut byte).await.unwrap();
        got.push(byte[0]);
    }
    String::from_utf8(got).unwrap()
}

fn short() -> ServeOptions {
    ServeOptions { idle_shrink: Duration::from_millis(10), ..ServeOptions::default() }
}

#[test]
fn connection_survives_idle_times_and_split_heads() {
    run(async {
        let (mut client, server) = pair().await;
        let options = short();
        let serving = serve(server, &options, service_fn(hello), never());
        let talk = async move {
            for number in 0..3 {
                client.write_all(format!("GET /{number} HTTP/1.1\r\nHost: x\r\n").as_bytes()).await.unwrap();
                // Longer than several idle periods, in the middle of a head.
                tokio::time::sleep(Duration::from_millis(80)).await;
                client.write_all(b"\r\n").await.unwrap();
                let answer = read_until(&mut client, &format!("/{number} ")).await;
                assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
                tokio::time::sleep(Duration::from_millis(80)).await;
            }
        };
        let (served, ()) = tokio::join!(serving, talk);
        assert!(matches!(served.unwrap(), Served::Closed));
    });
}

#[test]
fn idle_connection_returns_to_waiting() {
    run(async {
        let (mut client, server) = pair().await;
        client.write_all(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let options = short();
        let mut server = server;
        // At once, and after an idle time.
        for patient in [false, true] {
            let mut running = Running::new(server, Bytes::new(), &options, service_fn(hello), patient);
            match std::future::poll_fn(|cx| running.poll(cx, false)).await.unwrap() {
                Active::Idle { stream: idle, .. } => server = idle,
                Active::Done(served) => panic!("{served:?}"),
            }
            read_until(&mut client, "/a ").await;
            client.write_all(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        }
    });
}

#[test]
fn pipelined_requests_are_all_answered() {
    run(async {
        let (mut client, server) = pair().await;
        let options = short();
        let serving = serve(server, &options, service_fn(hello), never());
        let talk = async move {
            client.write_all(b"GET /1 HTTP/1.1\r\nHost: x\r\n\r\nGET /2 HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
            read_until(&mut client, "/1 ").await;
            read_until(&mut client, "/2 ").await;
        };
        tokio::join!(serving, talk).0.unwrap();
    });
}

#[test]
fn stop_ends_idle_connections_at_once_and_busy_ones_after_their_response() {
    run(async {
        let options = ServeOptions::default();
        let stop = LocalStop::default();
        let (mut idle_client, idle) = pair().await;
        let (mut busy_client, busy) = pair().await;
        let slow = |request: Request<Incoming>| {
            Box::pin(async move {
                tokio::time::sleep(Duration::from_millis(100)).await;
                hello(request).await
            }) as Pin<Box<dyn Future<Output = _>>>
        };
        let idle = serve(idle, &options, service_fn(hello), Box::pin(stop.requested()));
        let busy = serve(busy, &options, service_fn(slow), Box::pin(stop.requested()));
        let talk = async {
            busy_client.write_all(b"GET /b HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
            tokio::time::sleep(Duration::from_millis(30)).await;
            stop.request();
            let mut rest = String::new();
            assert_eq!(idle_client.read_to_string(&mut rest).await.unwrap(), 0);
            busy_client.read_to_string(&mut rest).await.unwrap();
            assert!(rest.starts_with("HTTP/1.1 200") && rest.ends_with("/b "), "{rest}");
        };
        let (idle, busy, ()) = tokio::join!(idle, busy, talk);
        idle.unwrap();
        busy.unwrap();
    });
}

#[test]
fn status_101_returns_the_stream_with_following_bytes() {
    run(async {
        let (mut client, server) = pair().await;
        client
            .write_all(b"GET /upgrade HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: test\r\n\r\nEARLY")
            .await
            .unwrap();
        let served = serve(server, &short(), service_fn(hello), never()).await.unwrap();
        let Served::Upgraded(_server, early) = served else { panic!("not upgraded") };
        assert_eq!(&early[..], b"EARLY");
        let answer = read_until(&mut client, "\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 101"), "{answer}");
    });
}

/// hyper reads a part of a long prefix only.
#[test]
fn status_101_returns_all_of_a_prefix() {
    run(async {
        let (_client, server) = pair().await;
        let early: Vec<u8> = (0..100_000_u32).map(|at| at as u8).collect();
        let head = b"GET /upgrade HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: test\r\n\r\n";
        let prefix = Bytes::from([&head[..], &early].concat());
        let served = serve_from(server, prefix, &short(), service_fn(hello), never()).await.unwrap();
        let Served::Upgraded(_server, rest) = served else { panic!("not upgraded") };
        assert!(rest == early);
    });
}

#[test]
fn client_that_reads_nothing_is_closed() {
    run(async {
        let (mut client, server) = pair().await;
        let big = |_: Request<Incoming>| {
            std::future::ready(Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(vec![0; 64 << 20])))))
        };
        let options = ServeOptions { idle_timeout: Some(Duration::from_millis(100)), ..short() };
        client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let served = serve(server, &options, service_fn(big), never()).await.unwrap();
        assert!(matches!(served, Served::Closed));
    });
}

/// A response that its client has not read is in progress, also if only TLS still holds a part of
/// it.
#[cfg(all(feature = "testing", feature = "tls"))]
#[test]
fn connection_with_unsent_records_is_not_idle() {
    const LENGTH: usize = 40_000;
    run(async {
        let (mut client, server) = crate::testing::narrow_tls_pair().await;
        let long = |_: Request<Incoming>| {
            let response = Response::new(Full::new(Bytes::from(vec![b'x'; LENGTH])));
            std::future::ready(Ok::<_, Infallible>(response))
        };
        let options = short();
        let serving = serve(server, &options, service_fn(long), never());
        let talk = async {
            for _ in 0..2 {
                client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
                // Several idle periods.
                tokio::time::sleep(Duration::from_millis(80)).await;
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(client.read_u8().await.unwrap());
                }
                client.read_exact(&mut vec![0; LENGTH]).await.unwrap();
            }
        };
        tokio::select! {
            served = serving => panic!("{served:?}"),
            talked = tokio::time::timeout(Duration::from_secs(10), talk) => talked.expect("the whole answer"),
        }
    });
}
