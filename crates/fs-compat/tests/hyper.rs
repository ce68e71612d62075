//! hyper over these sockets, both ends.

mod common;

use common::{both, server};
use fs_compat::{TcpListener, TcpStream};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let n: usize = request.uri().path().trim_start_matches('/').parse().unwrap();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let mut reply = body.to_vec();
    reply.resize(n, b'x');
    Ok(Response::new(Full::new(reply.into())))
}

#[test]
fn http_1_1_keep_alive() {
    both(
        |_| async {
            let listener = TcpListener::bind("0.0.0.0:80").await.unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                tokio::task::spawn_local(async move {
                    let http = hyper::server::conn::http1::Builder::new();
                    http.serve_connection(TokioIo::new(stream), service_fn(answer)).await.unwrap();
                });
            }
        },
        |_| async {
            let stream = TcpStream::connect(server(80)).await.unwrap();
            let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
            let driver = tokio::task::spawn_local(connection);
            for n in [0, 1, 100, 5_000, 1 << 20, 3] {
                let request = Request::post(format!("/{n}"))
                    .header("host", "server")
                    .body(Full::new(Bytes::from_static(b"")))
                    .unwrap();
                let response = sender.send_request(request).await.unwrap();
                assert_eq!(response.status(), 200);
                let body = response.into_body().collect().await.unwrap().to_bytes();
                assert_eq!(body.len(), n);
                assert!(body.iter().all(|&byte| byte == b'x'));
            }
            drop(sender);
            driver.await.unwrap().unwrap();
        },
    );
}
