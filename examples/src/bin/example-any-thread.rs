//! A TCP echo server on `tokio::spawn`: its sockets are `Send`, and tasks run on any thread.
//!
//! axum, tonic and quinn use such sockets; docs/SEND.md has a program for axum, and says what they
//! cost.

use fastsock::net::{TcpListener, TcpStream};
use std::io;

// Starts tokio's threads, and the cores of the devices in FASTSOCK_DEVICE. Without one, or without
// rights to it, the sockets are the kernel's.
#[fastsock::main]
async fn main() -> io::Result<()> {
    let at = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7777".to_owned());
    let listener = TcpListener::bind(at).await?;
    loop {
        // The only error is the end of the runtime.
        let (stream, peer) = listener.accept().await?;
        tokio::spawn(async move {
            if let Err(error) = echo(stream).await {
                eprintln!("{peer}: {error}");
            }
        });
    }
}

async fn echo(stream: TcpStream) -> io::Result<u64> {
    stream.set_nodelay(true)?;
    let (mut reader, mut writer) = stream.into_split();
    tokio::io::copy(&mut reader, &mut writer).await
}
