//! An HTTP/1.1 server with hyper. Connections stay on their core.

use bytes::Bytes;
use fastsock::Runtime;
use fastsock::local::TcpListener;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::error::Error;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

fn main() -> Result<(), Box<dyn Error>> {
    let at: SocketAddr = std::env::args().nth(1).as_deref().unwrap_or("127.0.0.1:8080").parse()?;
    // The devices of FASTSOCK_DEVICE. Without one, or without rights to it: kernel sockets.
    let runtime = Runtime::builder().devices_of_environment().or_kernel().build()?;
    for result in runtime.run(move |_core| serve(at))? {
        result?;
    }
    Ok(())
}

async fn serve(at: SocketAddr) -> std::io::Result<()> {
    let listener = TcpListener::bind(at).await?;
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _peer)) => stream,
            // The runtime shuts down.
            Err(error) if error.kind() == ErrorKind::InvalidInput => return Ok(()),
            // Too many open files, or a connection that ended in the queue: the listener goes on.
            Err(error) => {
                eprintln!("accept: {error}");
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        stream.set_nodelay(true)?;
        // hyper's HTTP/1 needs no `Send` and no executor.
        let served = http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(respond));
        fastsock::spawn_local(async move {
            if let Err(error) = served.await {
                eprintln!("{error}");
            }
        });
    }
}

async fn respond(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from(format!("you asked for {}\n", request.uri().path()))))
}
