//! UDP sockets between two runtimes in memory.

mod common;

use common::{CLIENT, both, server};
use fs_compat::UdpSocket;
use std::io::ErrorKind;

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
