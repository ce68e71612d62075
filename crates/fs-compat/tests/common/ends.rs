//! `ready` reports the end of each direction.

use fs_compat::local::TcpListener;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Sends some bytes, and its end after the client's first byte. The second connection ends with a reset.
pub(crate) async fn serve(listener: TcpListener) {
    let (mut stream, _) = listener.accept().await.unwrap();
    stream.write_all(b"data").await.unwrap();
    stream.read_exact(&mut [0]).await.unwrap();
    stream.shutdown().await.unwrap();
    stream.read_to_end(&mut Vec::new()).await.unwrap();
    let (mut stream, _) = listener.accept().await.unwrap();
    stream.read_exact(&mut [0]).await.unwrap();
    stream.set_zero_linger().unwrap();
}

/// The client, with two streams of any kind.
macro_rules! see_ends {
    ($connect:expr) => {{
        use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
        let both = Interest::READABLE | Interest::WRITABLE;
        macro_rules! until {
            ($stream:expr, $interest:expr, $end:ident) => {
                let seen = async {
                    while !$stream.ready($interest).await.unwrap().$end() {
                        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                    }
                };
                let seen = tokio::time::timeout(std::time::Duration::from_secs(10), seen).await;
                seen.expect(concat!("`ready` does not report ", stringify!($end)));
            };
        }
        let mut stream = $connect.await.unwrap();
        stream.readable().await.unwrap();
        let ready = stream.ready(both).await.unwrap();
        assert!(!ready.is_read_closed() && !ready.is_write_closed(), "{ready:?}");
        stream.write_all(b"x").await.unwrap();
        until!(stream, Interest::READABLE, is_read_closed);
        let ready = stream.ready(both).await.unwrap();
        assert!(ready.is_readable() && ready.is_read_closed() && !ready.is_write_closed(), "{ready:?}");
        let mut data = Vec::new();
        stream.read_to_end(&mut data).await.unwrap();
        assert_eq!(data, b"data");
        stream.shutdown().await.unwrap();
        until!(stream, Interest::WRITABLE, is_write_closed);

        let mut stream = $connect.await.unwrap();
        stream.write_all(b"x").await.unwrap();
        until!(stream, both, is_read_closed);
        until!(stream, both, is_write_closed);
    }};
}
pub(crate) use see_ends;
