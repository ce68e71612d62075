//! The first program of docs/SEND.md.

// Cargo.toml: fastsock = { path = "../fastsock/crates/fastsock", features = ["axum"] }
//             axum = "0.8"
//             tokio = { version = "1", features = ["signal"] }
use axum::{Router, routing::get};
use fastsock::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

#[fastsock::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // As in axum's documentation.
    let app = Router::new().route("/", get(|| async { "Hello, World!" }));
    let listener = TcpListener::bind("0.0.0.0:3000").await?;
    let mut terminate = signal(SignalKind::terminate())?;
    axum::serve(listener, app)
        .with_graceful_shutdown(async move {
            terminate.recv().await;
        })
        .await?;
    Ok(())
}
