//! UDP sockets between two runtimes in memory.

mod common;

use common::{CLIENT, both, server};
use fs_compat::{TcpListener, TcpStream, UdpSocket};
use fs_rt::{LinkChoice, Runtime};
use std::cell::Cell;
use std::io::ErrorKind;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[test]
fn datagrams_both_ways() {
    both(
        |_| async {
            let socket = UdpSocket::bind("0.0.0.0:53").await.unwrap();
            let mut buf = [0; 2048];
            loop {
                let (n, from) = socket.recv_from(&mut buf).await.unwrap();
                assert_eq!(from.ip(), CLIENT);
                socket.send_to(&buf[..n], from).await.unwrap();
            }
        },
        |_| async {
            let socket = UdpSocket::bind("0.0.0.0:0").await.unwrap();
            assert_eq!(socket.peer_addr().unwrap_err().kind(), ErrorKind::NotConnected);
            assert_eq!(socket.try_recv(&mut [0; 9]).unwrap_err().kind(), ErrorKind::WouldBlock);
            socket.send_to(b"one", server(53)).await.unwrap();
            let mut buf = [0; 64];
            assert_eq!(socket.peek_from(&mut buf).await.unwrap(), (3, server(53)));
            assert_eq!(socket.recv_from(&mut buf[..2]).await.unwrap(), (2, server(53)));
            socket.connect(server(53)).await.unwrap();
            for n in 0..100u8 {
                assert_eq!(socket.send(&[n; 100]).await.unwrap(), 100);
                assert_eq!(socket.recv(&mut buf).await.unwrap(), 64);
                assert!(buf.iter().all(|&byte| byte == n));
            }
        },
    );
}

/// As Linux, where the engine has other errors.
#[test]
fn send_without_a_peer_is_edestaddrreq() {
    let runtime = Runtime::builder().link(LinkChoice::Kernel).cores([0]).pin(false).build().unwrap();
    let run = runtime.run(|_| async {
        for at in ["127.0.0.1:0", "0.0.0.0:0"] {
            let socket = UdpSocket::bind(at).await.unwrap();
            assert_eq!(socket.try_send(b"lost").unwrap_err().raw_os_error(), Some(libc::EDESTADDRREQ), "{at}");
            assert_eq!(socket.send(b"lost").await.unwrap_err().raw_os_error(), Some(libc::EDESTADDRREQ), "{at}");
        }
    });
    run.unwrap();
}

/// A task that does nothing but send waits while many datagrams are queued. Other tasks of the core
/// run, and its connections get their share of each batch.
#[test]
fn sender_leaves_room_for_others() {
    both(
        |_| async {
            let _unread = UdpSocket::bind("0.0.0.0:53").await.unwrap();
            let listener = TcpListener::bind("0.0.0.0:7").await.unwrap();
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut buf = [0; 100];
            while stream.read_exact(&mut buf).await.is_ok() {
                stream.write_all(&buf).await.unwrap();
            }
        },
        |_| async {
            let socket = UdpSocket::bind("0.0.0.0:0").await.unwrap();
            let mut stream = TcpStream::connect(server(7)).await.unwrap();
            let is_over = Cell::new(false);
            let send = async {
                let mut sent = 0;
                while !is_over.get() || sent < 20_000 {
                    socket.send_to(&[1; 100], server(53)).await.unwrap();
                    sent += 1;
                }
            };
            let ask = async {
                let mut buf = [0; 100];
                for n in 0..100 {
                    stream.write_all(&[n; 100]).await.unwrap();
                    stream.read_exact(&mut buf).await.unwrap();
                }
                is_over.set(true);
            };
            tokio::join!(send, ask);
        },
    );
}
