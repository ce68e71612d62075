//! Options and calls that tokio's types do not have, through two runtimes.

mod common;

use common::{CLIENT, SERVER, both, server};
use fs_compat::{TcpListener, TcpSocket, UdpSocket};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};

#[test]
fn options_and_urgent_data_reach_the_peer() {
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
            // Read past the mark to the end. Otherwise the close would reset, because the urgent
            // byte's place is still unread.
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
fn options_have_tokios_names_and_types() {
    let ((), ..) = both(
        |_| async {
            let listener = TcpListener::bind(server(80)).await.unwrap();
            assert_eq!(listener.ttl().unwrap(), 64);
            listener.set_ttl(7).unwrap();
            assert!(listener.set_ttl(0).is_err());
            let (stream, _) = listener.accept().await.unwrap();
            assert_eq!((listener.ttl().unwrap(), stream.ttl().unwrap()), (7, 7));
            let mut buf = [0; 4];
            let read = stream.async_io(Interest::READABLE, || stream.try_read(&mut buf)).await;
            assert_eq!(read.unwrap(), 4);
        },
        |_| async {
            let socket = TcpSocket::new_v4().unwrap();
            socket.set_reuseaddr(true).unwrap();
            assert_eq!((socket.reuseaddr().unwrap(), socket.reuseport().unwrap()), (true, false));
            assert_eq!((socket.recv_buffer_size().unwrap(), socket.send_buffer_size().unwrap()), (64 << 10, 6 << 20));
            socket.set_recv_buffer_size(100_000).unwrap();
            assert_eq!(socket.recv_buffer_size().unwrap(), 100_000);
            socket.set_tos_v4(0x2f).unwrap();
            assert_eq!((socket.tos_v4().unwrap(), socket.tclass_v6().unwrap()), (0x2c, 0x2c));
            assert_eq!(socket.set_tos_v4(256).unwrap_err().raw_os_error(), Some(libc::EINVAL));
            assert!(socket.take_error().unwrap().is_none());
            let mut stream = socket.connect(server(80)).await.unwrap();
            assert_eq!(stream.tos_v4().unwrap(), 0x2c);
            // The listener's option must be set first.
            tokio::time::sleep(Duration::from_millis(20)).await;
            stream.write_all(b"four").await.unwrap();
            assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
        },
    );
}

#[test]
fn datagrams_are_peeked_and_read_into_vectors() {
    static BOUND: AtomicBool = AtomicBool::new(false);
    both(
        |_| async {
            let socket = UdpSocket::bind(server(53)).await.unwrap();
            BOUND.store(true, Ordering::Release);
            assert_eq!(socket.try_peek_sender().unwrap_err().kind(), ErrorKind::WouldBlock);
            assert_eq!(socket.try_io(Interest::READABLE, || Ok(())).unwrap_err().kind(), ErrorKind::WouldBlock);
            let from = socket.peek_sender().await.unwrap();
            assert_eq!(socket.try_peek_sender().unwrap(), from);
            let mut buf = [0; 8];
            assert_eq!((socket.try_peek(&mut buf).unwrap(), socket.try_peek_from(&mut buf).unwrap()), (3, (3, from)));
            socket.try_io(Interest::READABLE, || Ok(())).unwrap();
            let mut vector = Vec::with_capacity(100);
            vector.push(b'>');
            assert_eq!(socket.recv_buf_from(&mut vector).await.unwrap(), (3, from));
            assert_eq!(vector, b">one");
            assert_eq!(socket.try_recv_buf(&mut vector).unwrap_err().kind(), ErrorKind::WouldBlock);
            socket.send_to(&vector, from).await.unwrap();
        },
        |_| async {
            let socket = UdpSocket::bind(SocketAddr::new(CLIENT, 99)).await.unwrap();
            while !BOUND.load(Ordering::Acquire) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            socket.send_to(b"one", server(53)).await.unwrap();
            let mut buf = [0; 8];
            let got = socket.async_io(Interest::READABLE, || socket.try_recv_from(&mut buf)).await;
            assert_eq!(got.unwrap(), (4, server(53)));
            assert_eq!(
                socket.join_multicast_v4([239, 0, 0, 1].into(), [0; 4].into()).unwrap_err().raw_os_error(),
                Some(libc::EOPNOTSUPP)
            );
        },
    );
}

#[test]
fn datagrams_in_batches() {
    let (got, ..) = both(
        |_| async {
            let socket = UdpSocket::bind(server(53)).await.unwrap();
            let mut buf = [0; 4000];
            // Three datagrams, which arrive one by one.
            while fs_rt::CoreRef::require().unwrap().inspect(|stack| stack.stats().udp_received) < 3 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            socket.readable().await.unwrap();
            let (meta, size) = socket.try_recv_segments(&mut buf).unwrap();
            assert_eq!((meta.len, size), (2500, 1000));
            socket.try_send_batch(&[(b"one", Some(meta.from)), (b"two", Some(meta.from))]).unwrap();
        },
        |_| async {
            let socket = UdpSocket::bind(SocketAddr::new(CLIENT, 99)).await.unwrap();
            // The first datagram starts neighbour resolution, and the others wait with it.
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
