//! TCP sockets between two runtimes in memory.

mod common;

use common::{SERVER6, both, server};
use fs_compat::{TcpListener, TcpSocket, TcpStream};
use std::future::poll_fn;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn echo(port: u16) {
    let listener = TcpListener::bind(("0.0.0.0", port)).await.unwrap();
    while let Ok((mut stream, _)) = listener.accept().await {
        tokio::task::spawn_local(async move {
            let (mut reader, mut writer) = stream.split();
            tokio::io::copy(&mut reader, &mut writer).await.unwrap();
            writer.shutdown().await.unwrap();
        });
    }
}

#[test]
fn echo_of_a_line() {
    let ((), server_stats, client_stats) = common::both_ending_within(
        Duration::from_secs(20),
        |_| echo(7),
        |_| async {
            let mut stream = TcpStream::connect(server(7)).await.unwrap();
            assert_eq!(stream.peer_addr().unwrap(), server(7));
            stream.write_all(b"hello").await.unwrap();
            let mut answer = [0; 5];
            stream.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer, b"hello");
            stream.shutdown().await.unwrap();
            assert_eq!(stream.read(&mut answer).await.unwrap(), 0);
        },
    );
    assert_eq!(server_stats.frames_in_use, 0, "{server_stats:?}");
    assert_eq!(client_stats.frames_in_use, 0, "{client_stats:?}");
}

#[test]
fn burst_of_connects_waits_for_an_unresolved_neighbour() {
    const BURST: usize = 64;
    let ((), _, client_stats) = both(
        |_| echo(7),
        |_| async {
            let connects: Vec<_> =
                (0..BURST).map(|_| tokio::task::spawn_local(TcpStream::connect(server(7)))).collect();
            let mut streams = Vec::new();
            for connect in connects {
                streams.push(connect.await.unwrap().unwrap());
            }
            assert_eq!(streams.len(), BURST);
        },
    );
    // A dropped SYN is sent again a second later, so a successful connect alone would not prove it.
    let dropped = client_stats.stack.dropped(fs_core::DropReason::NeighbourUnresolved);
    assert_eq!(dropped, 0, "{client_stats:?}");
}

#[test]
fn echo_over_ipv6() {
    both(
        |_| async {
            let listener = TcpListener::bind("[::]:7").await.unwrap();
            let (mut stream, peer) = listener.accept().await.unwrap();
            assert!(peer.is_ipv6());
            let (mut reader, mut writer) = stream.split();
            tokio::io::copy(&mut reader, &mut writer).await.unwrap();
        },
        |_| async {
            let mut stream = TcpStream::connect(SocketAddr::new(SERVER6, 7)).await.unwrap();
            stream.write_all(b"six").await.unwrap();
            let mut answer = [0; 3];
            stream.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer, b"six");
        },
    );
}

#[test]
fn megabytes_both_ways_at_once() {
    const BYTES: usize = 8 << 20;
    both(
        |_| echo(7),
        |_| async {
            let stream = TcpStream::connect(server(7)).await.unwrap();
            let (mut reader, mut writer) = stream.into_split();
            let sender = tokio::task::spawn_local(async move {
                let mut state = 1u32;
                let mut chunk = [0; 10_007];
                let mut left = BYTES;
                while left > 0 {
                    let n = left.min(chunk.len());
                    chunk[..n].iter_mut().for_each(|byte| *byte = next(&mut state));
                    writer.write_all(&chunk[..n]).await.unwrap();
                    left -= n;
                }
                // Dropping the half sends FIN.
            });
            let mut state = 1u32;
            let mut got = 0;
            let mut buf = vec![0; 65_536];
            loop {
                let n = reader.read(&mut buf).await.unwrap();
                if n == 0 {
                    break;
                }
                assert!(buf[..n].iter().all(|&byte| byte == next(&mut state)), "wrong bytes after {got}");
                got += n;
            }
            assert_eq!(got, BYTES);
            sender.await.unwrap();
        },
    );
}

fn next(state: &mut u32) -> u8 {
    *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    (*state >> 24) as u8
}

#[test]
fn refused() {
    both(
        |_| std::future::pending(),
        |_| async {
            let error = TcpStream::connect(server(81)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        },
    );
}

#[test]
fn other_half_stays_open_after_half_close() {
    both(
        |_| async {
            let listener = TcpListener::bind("0.0.0.0:7").await.unwrap();
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut all = Vec::new();
            stream.read_to_end(&mut all).await.unwrap();
            assert_eq!(all, b"question");
            tokio::time::sleep(Duration::from_millis(20)).await;
            stream.write_all(b"answer").await.unwrap();
        },
        |_| async {
            let mut stream = TcpStream::connect(server(7)).await.unwrap();
            stream.write_all(b"question").await.unwrap();
            stream.shutdown().await.unwrap();
            assert_eq!(stream.write(b"more").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
            let mut all = Vec::new();
            stream.read_to_end(&mut all).await.unwrap();
            assert_eq!(all, b"answer");
        },
    );
}

/// As by shutdown(2), a writer that waits for room fails at once, also if the peer does not read.
#[test]
fn shutdown_ends_a_write_that_waits() {
    both(
        |_| async {
            let listener = TcpListener::bind("0.0.0.0:7").await.unwrap();
            let _unread = listener.accept().await.unwrap();
            fs_rt::shutdown_signal().await;
        },
        |_| async {
            let stream = TcpStream::connect(server(7)).await.unwrap();
            while !matches!(stream.try_write(&[0; 100_000]), Err(full) if full.kind() == ErrorKind::WouldBlock) {}
            let write = async {
                stream.writable().await.unwrap();
                stream.try_write(b"more").unwrap_err().kind()
            };
            let shut = async { stream.shutdown_now(std::net::Shutdown::Write).unwrap() };
            let both = async { tokio::join!(write, shut).0 };
            // Earlier than the stack gives up a peer that does not read.
            let ended = tokio::time::timeout(Duration::from_secs(30), both).await;
            assert_eq!(ended.expect("the writer still waits"), ErrorKind::BrokenPipe);
            stream.set_zero_linger().unwrap();
        },
    );
}

#[test]
fn unread_data_and_zero_linger_reset() {
    both(
        |_| async {
            let listener = TcpListener::bind("0.0.0.0:7").await.unwrap();
            for round in 0..2 {
                let (stream, _) = listener.accept().await.unwrap();
                stream.readable().await.unwrap();
                if round == 1 {
                    stream.try_read(&mut [0; 16]).unwrap();
                    stream.set_zero_linger().unwrap();
                }
            }
        },
        |_| async {
            for _ in 0..2 {
                let mut stream = TcpStream::connect(server(7)).await.unwrap();
                stream.write_all(b"?").await.unwrap();
                assert_eq!(stream.read(&mut [0; 16]).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
            }
        },
    );
}

/// A read that ends with the last byte before a reset leaves the reset for the next one.
#[test]
fn vectored_read_leaves_the_reset() {
    both(
        |_| async {
            let listener = TcpListener::bind(server(7)).await.unwrap();
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(b"ab").await.unwrap();
            stream.readable().await.unwrap();
            // With unread data.
        },
        |_| async {
            let stream = TcpStream::connect(server(7)).await.unwrap();
            stream.readable().await.unwrap();
            stream.try_write(b"?").unwrap();
            poll_fn(|cx| stream.poll_closed(cx)).await;
            let (mut a, mut b) = ([0; 2], [0; 2]);
            let mut slices = [std::io::IoSliceMut::new(&mut a), std::io::IoSliceMut::new(&mut b)];
            assert_eq!(stream.try_read_vectored(&mut slices).unwrap(), 2);
            assert_eq!(stream.try_read(&mut [0; 2]).unwrap_err().kind(), ErrorKind::ConnectionReset);
        },
    );
}

#[test]
fn try_calls_peek_and_readiness() {
    both(
        |_| echo(7),
        |_| async {
            let stream = TcpStream::connect(server(7)).await.unwrap();
            let mut buf = [0; 16];
            assert_eq!(stream.try_read(&mut buf).unwrap_err().kind(), ErrorKind::WouldBlock);
            stream.writable().await.unwrap();
            assert_eq!(stream.try_write(b"abcdef").unwrap(), 6);
            stream.readable().await.unwrap();
            assert_eq!(stream.peek(&mut buf[..3]).await.unwrap(), 3);
            assert_eq!(&buf[..3], b"abc");
            let (mut a, mut b) = ([0; 2], [0; 10]);
            let mut slices = [std::io::IoSliceMut::new(&mut a), std::io::IoSliceMut::new(&mut b)];
            assert_eq!(stream.try_read_vectored(&mut slices).unwrap(), 6);
            assert_eq!((&a, &b[..4]), (b"ab", &b"cdef"[..]));
            assert!(stream.take_error().unwrap().is_none());
            let sent = stream.try_write_vectored(&[std::io::IoSlice::new(b"1"), std::io::IoSlice::new(b"23")]);
            assert_eq!(sent.unwrap(), 3);
            stream.readable().await.unwrap();
            let mut grown = Vec::with_capacity(2);
            assert_eq!(stream.try_read_buf(&mut grown).unwrap(), 2, "only the spare capacity");
            assert_eq!(stream.try_read_buf(&mut grown).unwrap(), 1);
            assert_eq!(grown, b"123");
        },
    );
}

#[test]
fn options_are_kept() {
    both(
        |_| echo(7),
        |_| async {
            let socket = TcpSocket::new_v4().unwrap();
            socket.set_nodelay(true).unwrap();
            socket.bind("10.9.0.2:5555".parse().unwrap()).unwrap();
            let stream = socket.connect(server(7)).await.unwrap();
            assert_eq!(stream.local_addr().unwrap(), "10.9.0.2:5555".parse().unwrap());
            assert!(stream.nodelay().unwrap());
            assert_eq!(stream.linger().unwrap(), None);
            stream.set_linger(Some(Duration::from_secs(3))).unwrap();
            assert_eq!(stream.linger().unwrap(), Some(Duration::from_secs(3)));
            assert_eq!(stream.ttl().unwrap(), 64);
            stream.set_ttl(9).unwrap();
            assert_eq!(stream.ttl().unwrap(), 9);
            assert_eq!(stream.set_ttl(256).unwrap_err().kind(), ErrorKind::InvalidInput);
            stream.set_keepalive(Some(fs_compat::Keepalive::default())).unwrap();
            assert!(stream.keepalive().unwrap().is_some());
        },
    );
}

#[test]
fn borrowed_both_ways() {
    both(
        |_| echo(7),
        |_| async {
            let stream = TcpStream::connect(server(7)).await.unwrap();
            let mut sent = Vec::new();
            for round in 0..50u8 {
                let mut buffer = stream.alloc_send_buffer().unwrap();
                assert_eq!(buffer.put_slice(&[round; 700]), 700);
                sent.extend_from_slice(&buffer);
                stream.send_buffer(buffer).await.unwrap();
            }
            drop(stream.alloc_send_buffer().unwrap());
            let mut got = Vec::new();
            while got.len() < sent.len() {
                let bytes = stream.recv_borrowed().await.unwrap();
                assert!(!bytes.is_end_of_stream());
                got.extend_from_slice(&bytes);
            }
            assert_eq!(got, sent);
            stream.shutdown_now(std::net::Shutdown::Write).unwrap();
            assert!(stream.recv_borrowed().await.unwrap().is_end_of_stream());
        },
    );
}

#[test]
fn many_connections_at_once() {
    const CONNECTIONS: usize = 1000;
    let ((), server_stats, _) = common::both_ending_within(
        Duration::from_secs(20),
        |_| echo(7),
        |_| async {
            let mut tasks = Vec::new();
            for n in 0..CONNECTIONS as u32 {
                tasks.push(tokio::task::spawn_local(async move {
                    let mut stream = TcpStream::connect(server(7)).await.unwrap();
                    for round in 0..3u32 {
                        let question = (n * 31 + round).to_be_bytes();
                        stream.write_all(&question).await.unwrap();
                        let mut answer = [0; 4];
                        stream.read_exact(&mut answer).await.unwrap();
                        assert_eq!(answer, question);
                    }
                }));
            }
            for task in tasks {
                task.await.unwrap();
            }
        },
    );
    assert_eq!(server_stats.connections, 0);
    assert_eq!(server_stats.frames_in_use, 0);
}

#[test]
fn two_listeners_at_one_address_of_one_core() {
    both(
        |_| std::future::pending(),
        |_| async {
            let first = TcpListener::bind("0.0.0.0:99").await.unwrap();
            assert_eq!(TcpListener::bind("0.0.0.0:99").await.unwrap_err().kind(), ErrorKind::AddrInUse);
            drop(first);
            let again = TcpListener::bind("0.0.0.0:99").await.unwrap();
            assert_eq!(again.local_addr().unwrap().port(), 99);
            let chosen = TcpListener::bind("0.0.0.0:0").await.unwrap();
            assert_ne!(chosen.local_addr().unwrap().port(), 0);
        },
    );
}

#[test]
fn shutdown_ends_accept_and_lets_connections_finish() {
    both(
        |core| async move {
            let listener = TcpListener::bind("0.0.0.0:7").await.unwrap();
            let (mut stream, _) = listener.accept().await.unwrap();
            let served = tokio::task::spawn_local(async move {
                fs_rt::shutdown_signal().await;
                stream.write_all(b"bye").await.unwrap();
            });
            core.handle().shutdown(Duration::from_secs(60));
            assert_eq!(listener.accept().await.unwrap_err().kind(), ErrorKind::InvalidInput);
            served.await.unwrap();
        },
        |_| async {
            let mut stream = TcpStream::connect(server(7)).await.unwrap();
            let mut all = Vec::new();
            stream.read_to_end(&mut all).await.unwrap();
            assert_eq!(all, b"bye");
        },
    );
}

#[tokio::test(flavor = "current_thread")]
async fn call_off_a_core_returns_an_error() {
    let error = TcpStream::connect("127.0.0.1:1").await.unwrap_err();
    assert!(error.to_string().contains("fastsock::net"), "{error}");
    assert!(TcpListener::bind("127.0.0.1:0").await.is_err());
    assert!(TcpSocket::new_v4().is_err());
    assert!(fs_compat::UdpSocket::bind("127.0.0.1:0").await.is_err());
}
