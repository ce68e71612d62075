//! The options and calls that tokio's types do not have, through two runtimes.

mod common;

use common::{CLIENT, SERVER, both, server};
use fs_compat::{TcpListener, TcpSocket, UdpSocket};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[test]
fn options_reach_the_connection_and_urgent_data_the_peer() {
    let (got, ..) = both(
        |_| async {
            let listener = TcpListener::bind(server(80)).await.unwrap();
            let (mut stream, _) = listener.accept().await.unwrap();
            let urgent = stream.recv_out_of_band().await.unwrap();
            let mut buf = [0; 16];
            let n = stream.read(&mut buf).await.unwrap();
            assert!(stream.at_mark().unwrap());
            buf[n] = urgent;
            stream.write_all(&buf[..=n]).await.unwrap();
            // Past the mark, to the end: closing before it would reset, for the urgent byte's place is still unread.
            assert_eq!(stream.read(&mut buf).await.unwrap(), 0);
        },
        |_| async {
            let socket = TcpSocket::new_v4().unwrap();
            socket.set_mss(Some(500)).unwrap();
            socket.set_tcp_user_timeout(Some(Duration::from_secs(9))).unwrap();
            socket.set_window_clamp(Some(5000)).unwrap();
            let (mut stream, taken) = socket.connect_with_data(server(80), b"").await.unwrap();
            assert_eq!(taken, 0);
            assert_eq!((stream.mss().unwrap(), stream.window_clamp().unwrap()), (Some(500), Some(5000)));
            assert_eq!(stream.tcp_user_timeout().unwrap(), Some(Duration::from_secs(9)));
            assert!(stream.info().unwrap().snd_mss <= 500);
            stream.set_quickack(false).unwrap();
            assert!(!stream.quickack().unwrap());
            assert_eq!(stream.try_send_out_of_band(b"abcX").unwrap(), 4);
            let mut buf = [0; 4];
            stream.read_exact(&mut buf).await.unwrap();
            buf
        },
    );
    assert_eq!(&got, b"abcX");
}

#[test]
fn datagrams_by_the_batch() {
    let (got, ..) = both(
        |_| async {
            let socket = UdpSocket::bind(server(53)).await.unwrap();
            let mut buf = [0; 4000];
            socket.readable().await.unwrap();
            let (meta, size) = socket.try_recv_segments(&mut buf).unwrap();
            assert_eq!((meta.len, size), (2500, 1000));
            socket.try_send_batch(&[(b"one", Some(meta.from)), (b"two", Some(meta.from))]).unwrap();
        },
        |_| async {
            let socket = UdpSocket::bind(SocketAddr::new(CLIENT, 99)).await.unwrap();
            // The neighbour is found by the first datagram; the ones behind it wait with it.
            socket.try_send_segments(&[7; 2500], 1000, Some(SocketAddr::new(SERVER, 53))).unwrap();
            let mut total = 0;
            while total < 2 {
                socket.readable().await.unwrap();
                let (mut a, mut b, mut metas) = ([0; 8], [0; 8], Vec::new());
                total += socket.try_recv_batch(&mut [&mut a, &mut b], &mut metas).unwrap();
                assert!(metas.iter().all(|m| m.len == 3));
            }
            total
        },
    );
    assert_eq!(got, 2);
}
