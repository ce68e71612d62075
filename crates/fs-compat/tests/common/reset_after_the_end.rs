//! A peer that sends all, closes, and resets what comes later.

use fs_compat::{local, net};
use fs_rt::Handle;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;

/// Writes to a peer that has sent `len` bytes and closed, and reads them later. As on tokio's socket, no
/// read fails. `at`: where the peer listens, on `server`.
pub(crate) async fn check(server: &Handle, at: SocketAddr, client: &Handle, len: usize) {
    let (tell_listens, listens) = oneshot::channel();
    let (tell_closed, closed) = oneshot::channel();
    let peer = move || async move {
        let listener = local::TcpListener::bind(at).await.unwrap();
        tell_listens.send(listener.local_addr().unwrap()).unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(&vec![7; len]).await.unwrap();
        while stream.queued().unwrap().1 > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(stream);
        tell_closed.send(()).unwrap();
    };
    server.spawn_on(0, peer).unwrap();
    let mut stream = net::TcpStream::connect_on(client, listens.await.unwrap()).await.unwrap();
    closed.await.unwrap();
    stream.write_all(b"late").await.unwrap();
    // Until the reset has come. On a machine that is slower, this tests less.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut got = Vec::new();
    stream.read_to_end(&mut got).await.expect("the stream is complete");
    assert_eq!(got, vec![7; len]);
    for _ in 0..2 {
        assert_eq!(stream.read(&mut [0; 9]).await.unwrap(), 0);
    }
    let error = loop {
        match stream.write(b"more").await {
            Ok(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
}
