//! The shortest program: serves one connection and ends. Uses kernel sockets, or the devices of
//! `FASTSOCK_DEVICE`.

use fastsock::net::{TcpListener, TcpStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[fastsock::main]
async fn main() -> std::io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let at = listener.local_addr()?;
    let client = tokio::spawn(async move {
        let mut said = String::new();
        TcpStream::connect(at).await?.read_to_string(&mut said).await.map(|_| said)
    });
    let (mut stream, _peer) = listener.accept().await?;
    stream.write_all(format!("by {}", stream.carrier()).as_bytes()).await?;
    drop(stream);
    println!("{}", client.await??);
    Ok(())
}
