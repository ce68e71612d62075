//! Sockets for any thread, between two runtimes in memory, under tokio's multi-threaded runtime.

mod common;
#[path = "common/ends.rs"]
mod ends;
#[path = "common/reset_after_the_end.rs"]
mod reset_after_the_end;

use common::background::{Runtimes, is_clean, within};
use common::{CLIENT, server};
use fs_compat::local;
use fs_compat::net::{TcpListener, TcpStream, UdpSocket};
use std::io::{self, ErrorKind, IoSlice, Read};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn next(state: &mut u32) -> u8 {
    *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    (*state >> 24) as u8
}

async fn send_pattern(mut to: impl tokio::io::AsyncWrite + Unpin, bytes: usize) {
    let (mut state, mut left) = (1, bytes);
    let mut chunk = [0; 10_007];
    while left > 0 {
        let n = left.min(chunk.len());
        chunk[..n].fill_with(|| next(&mut state));
        to.write_all(&chunk[..n]).await.unwrap();
        left -= n;
    }
    to.shutdown().await.unwrap();
}

async fn check_pattern(mut from: impl tokio::io::AsyncRead + Unpin, bytes: usize) {
    let (mut state, mut got) = (1, 0);
    let mut buf = vec![0; 30_011];
    loop {
        let n = from.read(&mut buf).await.unwrap();
        if n == 0 {
            break;
        }
        assert!(buf[..n].iter().all(|&byte| byte == next(&mut state)), "wrong bytes after {got}");
        got += n;
    }
    assert_eq!(got, bytes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn megabytes_both_ways_from_spawned_tasks() {
    const BYTES: usize = 8 << 20;
    let runtimes = Runtimes::new();
    let listener = runtimes.listen(7).await;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut reader, mut writer) = stream.into_split();
                tokio::io::copy(&mut reader, &mut writer).await.unwrap();
                writer.shutdown().await.unwrap();
            });
        }
    });
    within(async {
        for bytes in [0, 1, BYTES] {
            let (reader, writer) = runtimes.connect(7).await.unwrap().into_split();
            let sending = tokio::spawn(send_pattern(writer, bytes));
            check_pattern(reader, bytes).await;
            sending.await.unwrap();
        }
    })
    .await;
    runtimes.ends_clean().await;
}

/// As after close(2), although the core closes the dropped socket in one of its next turns.
#[tokio::test]
async fn address_of_a_dropped_socket_can_be_bound() {
    let runtimes = Runtimes::new();
    let handle = runtimes.server.handle();
    within(async {
        for _ in 0..100 {
            UdpSocket::bind_on(&handle, server(53)).await.expect("the last socket was dropped");
        }
        for _ in 0..100 {
            TcpListener::bind_on(&handle, server(53)).await.expect("the last listener was dropped");
        }
        let _bound = (UdpSocket::bind_on(&handle, server(53)).await, TcpListener::bind_on(&handle, server(53)).await);
        let used = UdpSocket::bind_on(&handle, server(53)).await.unwrap_err();
        assert_eq!(used.kind(), ErrorKind::AddrInUse);
        let used = TcpListener::bind_on(&handle, server(53)).await.unwrap_err();
        assert_eq!(used.kind(), ErrorKind::AddrInUse);
    })
    .await;
    runtimes.ends_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_connections_of_many_tasks() {
    const CONNECTIONS: u32 = 300;
    let runtimes = Runtimes::new();
    let listener = Arc::new(runtimes.listen(0).await);
    let port = listener.local_addr().unwrap().port();
    assert_ne!(port, 0);
    // Two tasks accept from one listener.
    for _ in 0..2 {
        let listener = listener.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut reader, mut writer) = stream.split();
                    tokio::io::copy(&mut reader, &mut writer).await.unwrap();
                });
            }
        });
    }
    let handle = runtimes.client.handle();
    let clients: Vec<_> = (0..CONNECTIONS)
        .map(|n| {
            let handle = handle.clone();
            tokio::spawn(async move {
                let mut stream = TcpStream::connect_on(&handle, server(port)).await.unwrap();
                assert_eq!(stream.peer_addr().unwrap(), server(port));
                for round in 0..5u32 {
                    let question = (n * 31 + round).to_be_bytes();
                    stream.write_all(&question).await.unwrap();
                    let mut answer = [0; 4];
                    stream.read_exact(&mut answer).await.unwrap();
                    assert_eq!(answer, question);
                }
            })
        })
        .collect();
    within(async {
        for client in clients {
            client.await.unwrap();
        }
    })
    .await;
    runtimes.ends_clean().await;
}

/// Writes until nothing has fitted for a while. Returns the number of bytes.
async fn fill(sender: &TcpStream) -> usize {
    let (mut sent, mut idle) = (0, 0);
    let chunk = vec![7; 100_000];
    // More than the ring to the core holds: the cores are not late.
    while idle < 50 || sent <= 128 << 10 {
        match sender.try_write(&chunk) {
            Ok(n) => {
                sent += n;
                idle = 0;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                idle += 1;
                assert!(idle < 6000, "only {sent} bytes fit");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        assert!(sent < 64 << 20, "nothing holds the sender back");
    }
    sent
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writer_waits_for_a_slow_reader() {
    let runtimes = Runtimes::new();
    let (receiver, sender) = runtimes.joined().await;
    let sent = fill(&sender).await;
    within(async {
        let sending = tokio::spawn(async move {
            sender.writable().await.unwrap();
            drop(sender);
        });
        let (mut got, mut buf) = (0, vec![0; 1 << 20]);
        let (mut receiver, _keep) = receiver.into_split();
        loop {
            let n = receiver.read(&mut buf).await.unwrap();
            if n == 0 {
                break;
            }
            got += n;
        }
        assert_eq!(got, sent);
        sending.await.unwrap();
    })
    .await;
}

/// As by shutdown(2), also if the peer does not read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_of_a_half_wakes_the_other_one() {
    let runtimes = Runtimes::new();
    let (_receiver, sender) = runtimes.joined().await;
    let (reader, mut writer) = sender.into_split();
    let wait = async { reader.ready(tokio::io::Interest::WRITABLE).await.unwrap() };
    fill(writer.as_ref()).await;
    let shut = async { writer.shutdown().await.unwrap() };
    assert!(within(async { tokio::join!(wait, shut).0 }).await.is_writable());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_have_their_kinds() {
    let runtimes = Runtimes::new();
    assert_eq!(runtimes.connect(81).await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    let taken = runtimes.listen(90).await;
    let again = TcpListener::bind_on(&runtimes.server.handle(), "0.0.0.0:90").await;
    assert_eq!(again.unwrap_err().kind(), ErrorKind::AddrInUse);
    drop(taken);
    within(async {
        // Closes with unread data, and with a linger time of 0.
        for zero in [false, true] {
            let (accepted, mut connected) = runtimes.joined().await;
            connected.write_all(b"unread").await.unwrap();
            accepted.readable().await.unwrap();
            if zero {
                accepted.try_read(&mut [0; 16]).unwrap();
                accepted.set_zero_linger().unwrap();
            }
            drop(accepted);
            let error = connected.read(&mut [0; 16]).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{zero}");
            assert_eq!(connected.write(b"more").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
            assert_eq!(connected.read(&mut [0; 16]).await.unwrap(), 0);
        }
        // The end of the writing side leaves the reset for the reader, as shutdown(2) does.
        for dropped in [false, true] {
            let (accepted, connected) = runtimes.joined().await;
            accepted.set_zero_linger().unwrap();
            drop(accepted);
            connected.readable().await.unwrap();
            let (mut reader, mut writer) = connected.into_split();
            if dropped {
                drop(writer);
            } else {
                // As in tokio.
                writer.shutdown().await.unwrap();
            }
            assert_eq!(reader.read(&mut [0; 16]).await.unwrap_err().kind(), ErrorKind::ConnectionReset, "{dropped}");
        }
        // A writer whose peer does not read still sees a reset.
        let (accepted, mut connected) = runtimes.joined().await;
        accepted.set_zero_linger().unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        drop(accepted);
        let error = loop {
            if let Err(error) = connected.write(&[1; 1000]).await {
                break error;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        // Connections that are not accepted.
        let listener = runtimes.listen(91).await;
        let mut waiting = runtimes.connect(91).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(listener);
        assert_eq!(waiting.read(&mut [0; 16]).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
        // A dropped listener is closed by its cores one after another. New connections in between
        // are reset.
        let error = loop {
            match runtimes.connect(91).await {
                Ok(mut early) => {
                    assert_eq!(early.read(&mut [0; 16]).await.unwrap_err().kind(), ErrorKind::ConnectionReset)
                }
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    })
    .await;
    runtimes.ends_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_close_and_drop_after_write() {
    let runtimes = Runtimes::new();
    within(async {
        let (mut accepted, mut connected) = runtimes.joined().await;
        connected.write_all(b"question").await.unwrap();
        connected.shutdown().await.unwrap();
        assert_eq!(connected.write(b"more").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
        let mut all = Vec::new();
        accepted.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"question");
        let answer = vec![9; 500_000];
        let mine = answer.clone();
        tokio::spawn(async move { accepted.write_all(&mine).await.unwrap() });
        all.clear();
        connected.read_to_end(&mut all).await.unwrap();
        assert!(all == answer, "{} bytes", all.len());
        // The writer is dropped before anything is read.
        let (mut accepted, mut connected) = runtimes.joined().await;
        accepted.write_all(&answer[..60_000]).await.unwrap();
        drop(accepted);
        tokio::time::sleep(Duration::from_millis(50)).await;
        all.clear();
        connected.read_to_end(&mut all).await.unwrap();
        assert!(all == answer[..60_000], "{} bytes", all.len());
    })
    .await;
    runtimes.ends_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ready_reports_ends() {
    let runtimes = Runtimes::new();
    let (listens, is_listening) = tokio::sync::oneshot::channel();
    let serve = || async {
        let listener = local::TcpListener::bind(server(7)).await.unwrap();
        listens.send(()).unwrap();
        ends::serve(listener).await;
    };
    runtimes.server.handle().spawn_on(0, serve).unwrap();
    is_listening.await.unwrap();
    within(async { ends::see_ends!(runtimes.connect(7)) }).await;
    runtimes.ends_clean().await;
}

/// The peer's answer is complete. Its reset of what is written later is the writer's error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reset_after_the_end_leaves_the_end() {
    let runtimes = Runtimes::new();
    within(async {
        // The second one does not fit into the ring to the handle.
        for len in [6, 100_000] {
            let (of_server, of_client) = (runtimes.server.handle(), runtimes.client.handle());
            reset_after_the_end::check(&of_server, server(7), &of_client, len).await;
        }
    })
    .await;
    runtimes.ends_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn try_calls_peek_options_and_halves() {
    let runtimes = Runtimes::new();
    within(async {
        let (accepted, connected) = runtimes.joined().await;
        let mut buf = [0; 16];
        assert_eq!(accepted.try_read(&mut buf).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(connected.try_write_vectored(&[IoSlice::new(b"ab"), IoSlice::new(b"cdef")]).unwrap(), 6);
        // The two slices may leave in two segments.
        while accepted.peek(&mut buf).await.unwrap() < 6 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(accepted.peek(&mut buf[..3]).await.unwrap(), 3);
        assert_eq!(&buf[..3], b"abc");
        let (mut a, mut b) = ([0; 2], [0; 10]);
        let mut slices = [io::IoSliceMut::new(&mut a), io::IoSliceMut::new(&mut b)];
        assert_eq!(accepted.try_read_vectored(&mut slices).unwrap(), 6);
        assert_eq!((&a, &b[..4]), (b"ab", &b"cdef"[..]));
        assert!(
            accepted.ready(tokio::io::Interest::READABLE | tokio::io::Interest::WRITABLE).await.unwrap().is_writable()
        );
        let priority = accepted.ready(tokio::io::Interest::PRIORITY).await;
        assert_eq!(priority.unwrap_err().kind(), ErrorKind::Unsupported);
        connected.set_nodelay(true).unwrap();
        assert!(connected.nodelay().unwrap());
        assert!(connected.quickack().unwrap());
        connected.set_quickack(false).unwrap();
        assert!(!connected.quickack().unwrap());
        connected.set_ttl(9).unwrap();
        assert_eq!(connected.ttl().unwrap(), 9);
        assert_eq!(connected.set_ttl(256).unwrap_err().kind(), ErrorKind::InvalidInput);
        let (reader, writer) = connected.into_split();
        let (other, _writer) = accepted.into_split();
        let fs_compat::net::ReuniteError(other, writer) = other.reunite(writer).unwrap_err();
        let connected = reader.reunite(writer).unwrap();
        connected.try_write(b"grow").unwrap();
        other.readable().await.unwrap();
        let mut grown = Vec::with_capacity(8);
        assert_eq!(AsRef::<TcpStream>::as_ref(&other).try_read_buf(&mut grown).unwrap(), 4);
        assert_eq!(grown, b"grow");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn end_of_the_runtime_is_reported() {
    let runtimes = Runtimes::new();
    let listener = runtimes.listen(7).await;
    let (accepted, connected) = tokio::join!(listener.accept(), runtimes.connect(7));
    let (mut accepted, _connected) = (accepted.unwrap().0, connected.unwrap());
    let handle = runtimes.server.handle();
    let ended = tokio::task::spawn_blocking(move || runtimes.server.shutdown(Duration::from_millis(200)));
    within(async {
        // Not a kind that servers take for an error of one connection and retry at once.
        assert_eq!(listener.accept().await.unwrap_err().kind(), ErrorKind::InvalidInput);
        assert!(listener.accept().await.unwrap_err().to_string().contains("shutting down"));
        for _ in 0..2 {
            let error = accepted.read(&mut [0; 16]).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotConnected);
            assert!(error.to_string().contains("the fastsock runtime has ended"), "{error}");
        }
        assert_eq!(accepted.write(b"x").await.unwrap_err().kind(), ErrorKind::NotConnected);
        ended.await.unwrap().unwrap();
        handle.ended().await;
        let late = TcpStream::connect_on(&handle, server(7)).await.unwrap_err();
        assert_eq!(late.kind(), ErrorKind::NotConnected);
        assert_eq!(TcpListener::bind_on(&handle, server(7)).await.unwrap_err().kind(), ErrorKind::NotConnected);
        assert_eq!(UdpSocket::bind_on(&handle, server(7)).await.unwrap_err().kind(), ErrorKind::NotConnected);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_connect_leaves_nothing() {
    let runtimes = Runtimes::new();
    let silent: SocketAddr = "10.9.0.77:7".parse().unwrap();
    let client = runtimes.client.handle();
    let connect = TcpStream::connect_on(&client, silent);
    // If this thread is late, resolution has failed.
    assert!(!matches!(tokio::time::timeout(Duration::from_millis(50), connect).await, Ok(Ok(_))));
    // The connection's SYN waits for a neighbour that does not exist, and holds its frame until
    // resolution fails.
    is_clean(&client).await;
    tokio::task::spawn_blocking(move || runtimes.client.shutdown(Duration::from_secs(10))).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sockets_on_a_core_use_its_runtime() {
    let runtimes = Runtimes::new();
    let (answer, answered) = tokio::sync::oneshot::channel();
    let client = runtimes.client.handle();
    let listener = runtimes.listen(7).await;
    client
        .spawn_on(0, move || async move {
            let mut stream = TcpStream::connect(server(7)).await.unwrap();
            let mut line = Vec::new();
            stream.read_to_end(&mut line).await.unwrap();
            answer.send(line).unwrap();
        })
        .unwrap();
    within(async {
        let (mut stream, peer) = listener.accept().await.unwrap();
        assert_eq!(peer.ip(), CLIENT);
        stream.write_all(b"on a core").await.unwrap();
        drop(stream);
        assert_eq!(answered.await.unwrap(), b"on a core");
    })
    .await;
}

/// A stream that is dropped in TIME-WAIT sends nothing. Its core does no work for it, but still
/// publishes its counters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_follow_a_silent_drop() {
    let runtimes = Runtimes::new();
    within(async {
        let (mut accepted, mut connected) = runtimes.joined().await;
        connected.shutdown().await.unwrap();
        assert_eq!(accepted.read(&mut [0; 1]).await.unwrap(), 0);
        drop(accepted);
        assert_eq!(connected.read(&mut [0; 1]).await.unwrap(), 0);
        let client = runtimes.client.handle();
        while client.stats()[0].time_waits == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // By now the core has published its last counters and sleeps.
        tokio::time::sleep(Duration::from_millis(400)).await;
        assert_eq!(client.stats()[0].connections, 1);
        drop(connected);
    })
    .await;
    runtimes.ends_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn datagrams_both_ways() {
    let runtimes = Runtimes::new();
    let echo = UdpSocket::bind_on(&runtimes.server.handle(), "0.0.0.0:53").await.unwrap();
    tokio::spawn(async move {
        let mut buf = vec![0; 2000];
        while let Ok((n, from)) = echo.recv_from(&mut buf).await {
            echo.send_to(&buf[..n], from).await.unwrap();
        }
    });
    within(async {
        let socket = UdpSocket::bind_on(&runtimes.client.handle(), "0.0.0.0:0").await.unwrap();
        assert_ne!(socket.local_addr().unwrap().port(), 0);
        assert_eq!(socket.send(b"?").await.unwrap_err().raw_os_error(), Some(libc::EDESTADDRREQ));
        let mut buf = [0; 2000];
        let mapped = match server(53).ip() {
            IpAddr::V4(v4) => SocketAddr::from((v4.to_ipv6_mapped(), 53)),
            v6 => SocketAddr::from((v6, 53)),
        };
        for at in [mapped, server(53)] {
            socket.connect(at).await.unwrap();
            assert_eq!(socket.send(b"?").await.unwrap(), 1);
            assert_eq!(socket.recv_from(&mut buf).await.unwrap(), (1, server(53)));
        }
        for len in [0, 1, 700, 1472] {
            assert_eq!(socket.send(&vec![len as u8; len]).await.unwrap(), len);
            socket.readable().await.unwrap();
            assert_eq!(socket.recv_from(&mut buf).await.unwrap(), (len, server(53)));
            assert!(buf[..len].iter().all(|&byte| byte == len as u8));
        }
        // Datagrams that arrive together stay separate, and bytes that do not fit into the buffer
        // are lost.
        for n in 0..20u8 {
            socket.send(&[n; 100]).await.unwrap();
        }
        for n in 0..20u8 {
            assert_eq!(socket.recv(&mut buf[..10]).await.unwrap(), 10);
            assert_eq!(buf[..10], [n; 10]);
        }
        assert_eq!(socket.try_recv(&mut buf).unwrap_err().kind(), ErrorKind::WouldBlock);
        // A datagram is peeked several times and stays queued. Spare capacity beyond it is not
        // touched.
        socket.send(b"peeked").await.unwrap();
        socket.send(b"next").await.unwrap();
        assert_eq!(socket.peek_sender().await.unwrap(), server(53));
        assert_eq!(socket.peek_from(&mut buf[..3]).await.unwrap(), (3, server(53)));
        assert_eq!((socket.peek(&mut buf).await.unwrap(), &buf[..6]), (6, &b"peeked"[..]));
        assert_eq!(socket.try_peek(&mut buf).unwrap(), 6);
        let mut grown = Vec::with_capacity(100);
        assert_eq!(socket.recv_buf_from(&mut grown).await.unwrap(), (6, server(53)));
        assert_eq!(socket.recv_buf(&mut grown).await.unwrap(), 4);
        assert_eq!(grown, b"peekednext");
        assert_eq!(socket.try_recv_buf(&mut grown).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(socket.try_peek_sender().unwrap_err().kind(), ErrorKind::WouldBlock);
        let both = tokio::io::Interest::READABLE | tokio::io::Interest::WRITABLE;
        let ready = socket.ready(both).await.unwrap();
        assert!(ready.is_writable() && !ready.is_readable(), "{ready:?}");
        let priority = socket.ready(tokio::io::Interest::PRIORITY).await;
        assert_eq!(priority.unwrap_err().kind(), ErrorKind::Unsupported);
        let read = tokio::io::Interest::READABLE;
        assert_eq!(socket.try_io(read, || Ok(1)).unwrap_err().kind(), ErrorKind::WouldBlock);
        socket.send(b"io").await.unwrap();
        assert_eq!(socket.async_io(read, || socket.try_recv(&mut buf)).await.unwrap(), 2);
        // In standalone addressing there is no kernel socket to join a group.
        assert_eq!(socket.broadcast().unwrap_err().raw_os_error(), Some(libc::EOPNOTSUPP));
        socket.set_ttl(9).unwrap();
        assert_eq!(socket.ttl().unwrap(), 9);
        assert_eq!(socket.set_ttl(0).unwrap_err().kind(), ErrorKind::InvalidInput);
        // In standalone addressing no kernel socket fragments it. The next send returns the error.
        socket.send(&[0; 3000]).await.unwrap();
        let told = async {
            loop {
                match socket.send(b"x").await {
                    Ok(_) => tokio::time::sleep(Duration::from_millis(1)).await,
                    Err(error) => break error,
                }
            }
        };
        let error = tokio::time::timeout(Duration::from_secs(60), told).await.expect("EMSGSIZE is not told");
        assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
        assert!(socket.take_error().unwrap().is_none());
    })
    .await;
    runtimes.ends_clean().await;
}

#[test]
fn error_without_a_runtime_names_a_remedy() {
    // In its own process: other tests here start runtimes.
    const CHILD: &str = "FS_TEST_NO_RUNTIME";
    if std::env::var_os(CHILD).is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "error_without_a_runtime_names_a_remedy"]).env(CHILD, "1");
        let mut child = child.stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(child.wait().unwrap().success(), "{said}");
        return;
    }
    let tokio = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for has_ended in [false, true] {
        if has_ended {
            drop(Runtimes::new());
        }
        let error = tokio.block_on(TcpListener::bind("0.0.0.0:7")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotConnected);
        assert!(error.to_string().contains("Background::start"), "{error}");
    }
}
