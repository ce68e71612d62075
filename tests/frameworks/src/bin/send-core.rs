//! The second program of docs/SEND.md.

// Cargo.toml: fastsock = { path = "../fastsock/crates/fastsock" }
//             hyper = { version = "1", features = ["server", "http2"] }
//             hyper-util = { version = "0.1", features = ["tokio"] }
//             tokio = { version = "1", features = ["time"] }
use fastsock::{Runtime, local::TcpListener};
use hyper::{Request, Response, body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;

#[derive(Clone)]
struct LocalExecutor;

impl<F: Future + 'static> hyper::rt::Executor<F> for LocalExecutor {
    fn execute(&self, task: F) {
        fastsock::spawn_local(async move { drop(task.await) });
    }
}

async fn echo(request: Request<Incoming>) -> Result<Response<Incoming>, hyper::Error> {
    Ok(Response::new(request.into_body()))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    Runtime::builder().device("eth0").or_kernel().build()?.run(|_core| async {
        let listener = TcpListener::bind("0.0.0.0:3000").await.expect("port 3000");
        loop {
            match listener.accept().await {
                Ok((stream, _peer)) => {
                    let http = hyper::server::conn::http2::Builder::new(LocalExecutor);
                    fastsock::spawn_local(http.serve_connection(TokioIo::new(stream), service_fn(echo)));
                }
                Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => return, // A shutdown.
                // For example too many open files: the next ones may work.
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
            }
        }
    })?;
    Ok(())
}
