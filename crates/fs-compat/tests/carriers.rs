//! Sockets on each carrier, mostly on the kernel, which needs neither rights nor a device.

mod common;
#[path = "common/ends.rs"]
mod ends;
#[path = "../../fs-xdp/tests/support/own_ip.rs"]
mod own_ip;

use common::{both, server};
use fs_compat::{TcpListener, TcpSocket, TcpStream, UdpSocket};
use fs_rt::{CoreRef, LinkChoice, Runtime};
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Runs `app` on one core of a runtime that only has kernel sockets. Fails after 30 s.
fn on_kernel<F, T>(app: impl FnOnce() -> F + Send + Clone + 'static) -> T
where
    F: Future<Output = T> + 'static,
    T: Send + 'static,
{
    let runtime = Runtime::builder().link(LinkChoice::Kernel).cores([0]).pin(false).build().unwrap();
    let within = |_| async move { tokio::time::timeout(Duration::from_secs(30), app()).await.expect("it takes 30 s") };
    runtime.run(within).unwrap().pop().unwrap()
}

/// Returns both ends of a connection: the client's and the server's.
async fn pair_at(at: SocketAddr) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(at).await.unwrap();
    let at = listener.local_addr().unwrap();
    let (client, served) = tokio::join!(TcpStream::connect(at), listener.accept());
    let (client, (served, peer)) = (client.unwrap(), served.unwrap());
    assert_eq!(peer, client.local_addr().unwrap());
    assert_eq!(served.peer_addr().unwrap(), peer);
    assert_eq!(client.peer_addr().unwrap(), at);
    (client, served)
}

async fn loopback() -> (TcpStream, TcpStream) {
    pair_at("127.0.0.1:0".parse().unwrap()).await
}

#[test]
fn kernel_connection_converts_to_and_from_std() {
    on_kernel(|| async {
        let (client, mut served) = loopback().await;
        let std = client.into_std().unwrap();
        let mut again = TcpStream::from_std(std).unwrap();
        again.write_all(b"the same").await.unwrap();
        drop(again);
        let mut said = String::new();
        served.read_to_string(&mut said).await.unwrap();
        assert_eq!(said, "the same");
    });
    both(
        |_| async { drop(TcpListener::bind("0.0.0.0:7").await.unwrap().accept().await) },
        |_| async {
            let stream = TcpStream::connect(server(7)).await.unwrap();
            assert_eq!(stream.into_std().unwrap_err().kind(), ErrorKind::Unsupported);
        },
    );
}

/// Asks the kernel for an accepted socket's options, instead of only our copy.
#[test]
fn connections_inherit_listener_options() {
    on_kernel(|| async {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_tcp_user_timeout(Some(Duration::from_secs(9))).unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(16).unwrap();
        listener.set_ttl(77).unwrap();
        listener.set_backlog(32).unwrap();
        listener.set_fast_open(4).unwrap();
        let at = listener.local_addr().unwrap();
        let (client, served) = tokio::join!(TcpStream::connect(at), listener.accept());
        let served = served.unwrap().0;
        assert_eq!((served.nodelay().unwrap(), served.ttl().unwrap()), (true, 77));
        assert_eq!(served.tcp_user_timeout().unwrap(), Some(Duration::from_secs(9)));
        let std = served.into_std().unwrap();
        assert_eq!((std.nodelay().unwrap(), std.ttl().unwrap()), (true, 77));
        assert_eq!(rustix::net::sockopt::tcp_user_timeout(&std).unwrap(), 9000);
        // Also those of a client.
        let client = client.unwrap();
        client.set_ttl(33).unwrap();
        client.set_nodelay(true).unwrap();
        let std = client.into_std().unwrap();
        assert_eq!((std.nodelay().unwrap(), std.ttl().unwrap()), (true, 33));
    });
}

#[test]
fn kernel_errors_are_returned() {
    on_kernel(|| async {
        // A port that has just been released.
        let free = TcpListener::bind((own_ip::own_ip(), 0)).await.unwrap().local_addr().unwrap();
        assert_eq!(TcpStream::connect(free).await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        assert_eq!(TcpListener::bind("192.0.2.7:0").await.unwrap_err().kind(), ErrorKind::AddrNotAvailable);
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = TcpListener::bind(other.local_addr().unwrap()).await.unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
        let bound = TcpSocket::new_v4().unwrap();
        assert!(bound.bind("[::1]:0".parse().unwrap()).is_err(), "of the other family");
    });
}

/// More calls than a task's budget (128) allows in one poll.
const CALLS: usize = 1000;

/// Sends a few bytes, then its end when the client has answered. Answers datagrams.
async fn serve_slowly(listener: TcpListener, datagrams: UdpSocket) {
    let answer = async {
        let mut buf = [0; 9];
        while let Ok((n, from)) = datagrams.recv_from(&mut buf).await {
            datagrams.send_to(&buf[..n], from).await.unwrap();
        }
    };
    let talk = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"a few").await.unwrap();
        stream.read_exact(&mut [0; 2]).await.unwrap();
        stream.shutdown().await.unwrap();
        stream.read_to_end(&mut Vec::new()).await.unwrap();
    };
    tokio::join!(answer, talk);
}

/// Repeats calls that are ready each time. Between them, other tasks, timers and the core itself must
/// run, as with tokio's sockets. `silent`: no datagram from there comes back.
async fn ready_calls_leave_time(stream_at: SocketAddr, datagrams_at: SocketAddr, silent: SocketAddr) {
    let ticks = Rc::new(Cell::new(0));
    let ticking = ticks.clone();
    tokio::task::spawn_local(async move {
        loop {
            ticking.set(ticking.get() + 1);
            fs_rt::turn().await;
        }
    });
    /// Calls it `CALLS` times in one task, and returns the last answer.
    macro_rules! yields {
        ($call:expr) => {{
            ticks.set(0);
            for _ in 1..CALLS {
                let _ = $call.await;
            }
            assert!(ticks.get() > 1, "no other task runs between calls: {}", stringify!($call));
            $call.await
        }};
    }
    let mut stream = TcpStream::connect(stream_at).await.unwrap();
    while stream.peek(&mut [0; 5]).await.unwrap() < 5 {}
    assert_eq!(yields!(stream.peek(&mut [0; 9])).unwrap(), 5);
    yields!(stream.readable()).unwrap();
    yields!(stream.writable()).unwrap();
    yields!(poll_fn(|cx| stream.poll_read_ready(cx))).unwrap();
    yields!(poll_fn(|cx| stream.poll_write_ready(cx))).unwrap();
    stream.read_exact(&mut [0; 5]).await.unwrap();
    stream.write_all(b"on").await.unwrap();
    assert_eq!(stream.read(&mut [0; 5]).await.unwrap(), 0);
    assert_eq!(yields!(stream.read(&mut [0; 5])).unwrap(), 0);
    assert_eq!(yields!(stream.peek(&mut [0; 5])).unwrap(), 0);
    assert!(yields!(stream.recv_borrowed()).unwrap().is_end_of_stream());
    stream.shutdown().await.unwrap();
    assert_eq!(yields!(stream.write(b"more")).unwrap_err().kind(), ErrorKind::BrokenPipe);
    let send_buffer = async || {
        let mut buffer = stream.alloc_send_buffer().unwrap();
        assert_eq!(buffer.put_slice(b"more"), 4);
        stream.send_buffer(buffer).await
    };
    assert_eq!(yields!(send_buffer()).unwrap_err().kind(), ErrorKind::BrokenPipe);

    let of_any = SocketAddr::new(if silent.ip().is_loopback() { silent.ip() } else { [0, 0, 0, 0].into() }, 0);
    let datagrams = UdpSocket::bind(of_any).await.unwrap();
    datagrams.send_to(b"question", datagrams_at).await.unwrap();
    datagrams.readable().await.unwrap();
    yields!(datagrams.readable()).unwrap();
    yields!(datagrams.writable()).unwrap();
    assert_eq!(yields!(datagrams.peek_from(&mut [0; 9])).unwrap(), (8, datagrams_at));
    assert_eq!(yields!(datagrams.peek_sender()).unwrap(), datagrams_at);
    assert_eq!(yields!(datagrams.send_to(b"x", silent)).unwrap(), 1);
    yields!(datagrams.send_to(b"x", SocketAddr::new(silent.ip(), 0))).unwrap_err();

    let listener = TcpListener::bind(of_any).await.unwrap();
    CoreRef::require().unwrap().handle().shutdown(Duration::from_secs(30));
    listener.accept().await.unwrap_err();
    assert_eq!(yields!(listener.accept()).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn ready_calls_leave_time_to_the_core() {
    both(
        |_| async {
            serve_slowly(TcpListener::bind(server(7)).await.unwrap(), UdpSocket::bind(server(7)).await.unwrap()).await
        },
        // Nobody has that address, so the datagrams wait for a neighbour.
        |_| ready_calls_leave_time(server(7), server(7), SocketAddr::new([10, 9, 0, 77].into(), 9)),
    );
}

#[test]
fn ready_calls_leave_time_to_the_kernel() {
    on_kernel(|| async {
        let any = "127.0.0.1:0";
        let (listener, datagrams) = (TcpListener::bind(any).await.unwrap(), UdpSocket::bind(any).await.unwrap());
        let (stream_at, datagrams_at) = (listener.local_addr().unwrap(), datagrams.local_addr().unwrap());
        let silent = UdpSocket::bind(any).await.unwrap();
        tokio::task::spawn_local(serve_slowly(listener, datagrams));
        ready_calls_leave_time(stream_at, datagrams_at, silent.local_addr().unwrap()).await;
    });
}

#[test]
fn ready_reports_ends() {
    both(
        |_| async { ends::serve(TcpListener::bind(server(7)).await.unwrap()).await },
        |_| async { ends::see_ends!(TcpStream::connect(server(7))) },
    );
    on_kernel(|| async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        tokio::task::spawn_local(ends::serve(listener));
        ends::see_ends!(TcpStream::connect(at))
    });
}

#[test]
fn reset_wakes_readers_and_poll_closed() {
    on_kernel(|| async {
        let (mut client, served) = loopback().await;
        served.set_zero_linger().unwrap();
        let over = tokio::task::spawn_local(async move {
            let read = client.read(&mut [0; 8]).await;
            poll_fn(|cx| client.poll_closed(cx)).await;
            (read, client)
        });
        tokio::task::yield_now().await;
        drop(served);
        let (read, client) = over.await.unwrap();
        assert_eq!(read.unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert_eq!(client.try_write(b"late").unwrap_err().kind(), ErrorKind::BrokenPipe);
    });
}

#[test]
fn connection_is_over_when_both_directions_end() {
    on_kernel(|| async {
        let (client, mut served) = loopback().await;
        let waits = tokio::task::spawn_local(async move {
            poll_fn(|cx| client.poll_closed(cx)).await;
            client
        });
        tokio::task::yield_now().await;
        served.shutdown_now(std::net::Shutdown::Write).unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!waits.is_finished(), "one direction is open");
        waits.abort();
        // A cancelled connect closes its socket, so the peer reads the end.
        let mut buf = [0; 4];
        assert_eq!(served.read(&mut buf).await.unwrap(), 0);
    });
}

/// As of tokio's: of calls that are no poll functions, each one is woken, also next to one that was
/// cancelled.
#[test]
fn several_calls_wait_for_one_kernel_connection() {
    on_kernel(|| async {
        let (client, served) = loopback().await;
        let client = std::rc::Rc::new(client);
        let peeks = || {
            let client = client.clone();
            tokio::task::spawn_local(async move { client.peek(&mut [0; 4]).await.unwrap() })
        };
        let borrows = || {
            let client = client.clone();
            tokio::task::spawn_local(async move { client.recv_borrowed().await.unwrap().len() })
        };
        let peeking = [peeks(), peeks(), peeks()];
        fs_rt::turn().await;
        peeking[2].abort();
        served.try_write(b"two").unwrap();
        for call in peeking.into_iter().take(2) {
            assert_eq!(call.await.unwrap(), 3);
        }
        assert_eq!(client.try_read(&mut [0; 4]).unwrap(), 3);
        let borrowing = [borrows(), borrows()];
        fs_rt::turn().await;
        borrowing[1].abort();
        served.try_write(b"two").unwrap();
        let [borrowing, _] = borrowing;
        assert_eq!(borrowing.await.unwrap(), 3);
    });
}

#[test]
fn out_of_band_data_over_the_kernel() {
    on_kernel(|| async {
        let (client, served) = loopback().await;
        assert_eq!(client.try_send_out_of_band(b"!").unwrap(), 1);
        assert_eq!(served.recv_out_of_band().await.unwrap(), b'!');
        assert_eq!(served.try_recv_out_of_band().unwrap_err().kind(), ErrorKind::InvalidInput, "once");
    });
}

/// The second direction is shut here, which readiness does not say at once.
/// As in tokio: the peer may end the connection at any time.
async fn shuts_down_when_it_is_over(mut client: TcpStream, served: TcpStream) {
    served.set_zero_linger().unwrap();
    drop(served);
    poll_fn(|cx| client.poll_closed(cx)).await;
    assert_eq!(client.shutdown_now(std::net::Shutdown::Write).unwrap_err().kind(), ErrorKind::NotConnected);
    client.shutdown().await.unwrap();
    client.split().1.shutdown().await.unwrap();
    let (_reader, mut writer) = client.into_split();
    writer.shutdown().await.unwrap();
}

#[test]
fn shutdown_of_a_connection_that_is_over_succeeds() {
    on_kernel(|| async {
        let (client, served) = loopback().await;
        shuts_down_when_it_is_over(client, served).await;
    });
    both(
        |_| async {
            let listener = TcpListener::bind("0.0.0.0:7").await.unwrap();
            let mut served = listener.accept().await.unwrap().0;
            // The client's connect is over: a reset before would fail it.
            served.read_exact(&mut [0]).await.unwrap();
            served.set_zero_linger().unwrap();
        },
        |_| async {
            let mut client = TcpStream::connect(server(7)).await.unwrap();
            client.write_all(b"x").await.unwrap();
            poll_fn(|cx| client.poll_closed(cx)).await;
            client.shutdown().await.unwrap();
        },
    );
}

#[test]
fn own_shutdown_completes_poll_closed() {
    on_kernel(|| async {
        let (client, mut served) = loopback().await;
        let (client, mut buf) = (std::rc::Rc::new(client), [0; 4]);
        served.shutdown_now(std::net::Shutdown::Write).unwrap();
        assert_eq!(client.peek(&mut buf).await.unwrap(), 0);
        let waits = client.clone();
        let waits = tokio::task::spawn_local(async move { poll_fn(|cx| waits.poll_closed(cx)).await });
        fs_rt::turn().await;
        assert!(!waits.is_finished(), "one direction is open");
        client.shutdown_now(std::net::Shutdown::Write).unwrap();
        waits.await.unwrap();
        assert_eq!(served.read(&mut buf).await.unwrap(), 0);
    });
}

/// A closed connection is no work of the engine.
#[test]
fn kernel_connections_are_counted_until_they_close() {
    on_kernel(|| async {
        let runtime = fs_rt::CoreRef::require().unwrap().handle();
        let counted = async |number| {
            while runtime.stats()[0].kernel_connections != number {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let ends = loopback().await;
        counted(2).await;
        // Everything else is over, and counted.
        tokio::time::sleep(Duration::from_millis(300)).await;
        drop(ends);
        counted(0).await;
    });
}

#[test]
fn cancelled_connect_and_accept_leave_nothing() {
    on_kernel(|| async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        for _ in 0..50 {
            let _ = tokio::time::timeout(Duration::ZERO, listener.accept()).await;
            let _ = tokio::time::timeout(Duration::ZERO, TcpStream::connect(at)).await;
        }
        // Accepts the connections that were made, all of which have ended.
        let (mut client, mut last) = (TcpStream::connect(at).await.unwrap(), None);
        client.write_all(b"last").await.unwrap();
        while last.is_none() {
            let mut served = listener.accept().await.unwrap().0;
            let mut all = [0; 4];
            last = served.read_exact(&mut all).await.ok();
        }
        assert_eq!(client.queued().unwrap().0, 0);
    });
}

#[test]
fn connect_uses_the_bound_port() {
    on_kernel(|| async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        let port = TcpListener::bind((own_ip::own_ip(), 0)).await.unwrap().local_addr().unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_nodelay(true).unwrap();
        socket.bind(port).unwrap();
        let (stream, accepted) = tokio::join!(socket.connect(to), listener.accept());
        let stream = stream.unwrap();
        assert_eq!((stream.local_addr().unwrap(), accepted.unwrap().1), (port, port));
        assert!(stream.nodelay().unwrap());
        let from_address = TcpSocket::new_v4().unwrap();
        from_address.bind("127.0.0.9:0".parse().unwrap()).unwrap();
        let (stream, _accepted) = tokio::join!(from_address.connect(to), listener.accept());
        assert_eq!(stream.unwrap().local_addr().unwrap().ip().to_string(), "127.0.0.9");
    });
}

#[test]
fn ipv6_wildcard_accepts_ipv4_with_canonical_address() {
    on_kernel(|| async {
        let listener = TcpListener::bind("[::]:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        for to in ["127.0.0.1", "::1"] {
            let to = SocketAddr::new(to.parse().unwrap(), port);
            let (client, accepted) = tokio::join!(TcpStream::connect(to), listener.accept());
            let (client, (served, peer)) = (client.unwrap(), accepted.unwrap());
            assert_eq!(peer, client.local_addr().unwrap());
            assert_eq!((served.local_addr().unwrap(), served.peer_addr().unwrap()), (to, peer));
        }
    });
}

#[test]
fn datagrams_over_the_kernel() {
    on_kernel(|| async {
        let (one, two) = (UdpSocket::bind("127.0.0.1:0").await.unwrap(), UdpSocket::bind("0.0.0.0:0").await.unwrap());
        let to = SocketAddr::new("127.0.0.1".parse().unwrap(), two.local_addr().unwrap().port());
        assert_eq!(one.send_to(b"question", to).await.unwrap(), 8);
        let mut buf = [0; 16];
        let (n, from) = two.recv_from(&mut buf).await.unwrap();
        assert_eq!((&buf[..n], from), (&b"question"[..], one.local_addr().unwrap()));
        two.connect(from).await.unwrap();
        assert_eq!(two.local_addr().unwrap(), to, "the kernel's choice");
        assert_eq!(two.peer_addr().unwrap(), from);
        two.send(b"answer").await.unwrap();
        assert_eq!(one.recv(&mut buf).await.unwrap(), 6);
        // From a bound address, which is not the one that the kernel selects for a wildcard.
        let bound = UdpSocket::bind("127.0.0.2:0").await.unwrap();
        bound.connect(from).await.unwrap();
        assert_eq!(bound.local_addr().unwrap().ip().to_string(), "127.0.0.2");
        let refused = one.try_send_to(b"x", "255.255.255.255:9".parse().unwrap()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "without SO_BROADCAST");
    });
}

#[test]
fn shutdown_waits_for_kernel_connections_and_closes_listeners() {
    on_kernel(|| async {
        let listener = TcpListener::bind((own_ip::own_ip(), 0)).await.unwrap();
        let at = listener.local_addr().unwrap();
        let mut client = TcpStream::connect(at).await.unwrap();
        let (mut served, _) = listener.accept().await.unwrap();
        let handle = fs_rt::CoreRef::require().unwrap().handle();
        handle.shutdown(Duration::from_secs(10));
        assert_eq!(listener.accept().await.unwrap_err().kind(), ErrorKind::InvalidInput);
        drop(listener);
        assert_eq!(TcpStream::connect(at).await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        served.write_all(b"bye").await.unwrap();
        drop(served);
        let mut all = String::new();
        client.read_to_string(&mut all).await.unwrap();
        assert_eq!(all, "bye");
    });
}
