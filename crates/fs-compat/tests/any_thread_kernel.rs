//! Sockets for any thread that the kernel carries, without rights and without a device.

#[path = "common/ends.rs"]
mod ends;
#[path = "common/reset_after_the_end.rs"]
mod reset_after_the_end;

use fs_compat::net::{Background, TcpListener, TcpStream, UdpSocket};
use fs_rt::{LinkChoice, Runtime};
use std::future::{Future, poll_fn};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Limit for what never takes long.
const LIMIT: Duration = Duration::from_secs(60);

fn runtime(cores: usize) -> Runtime {
    Runtime::builder().link(LinkChoice::Kernel).cores(vec![0; cores]).pin(false).build().unwrap()
}

fn start(cores: usize) -> Background {
    Background::start(runtime(cores)).unwrap()
}

async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, what).await.expect("it takes longer than 60 s")
}

async fn bind(stack: &Background) -> UdpSocket {
    UdpSocket::bind_on(&stack.handle(), "127.0.0.1:0").await.unwrap()
}

/// Returns a connection, and the kernel's socket at its other end.
async fn joined(stack: &Background) -> (TcpStream, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let connected = TcpStream::connect_on(&stack.handle(), listener.local_addr().unwrap()).await.unwrap();
    (connected, listener.accept().unwrap().0)
}

/// More calls than a task's budget (128) allows in one poll.
const CALLS: usize = 1000;

/// Each call is ready at once. Between them, other tasks and timers must run, as with tokio's sockets.
#[tokio::test]
async fn ready_calls_leave_time_to_other_tasks() {
    let stack = start(1);
    let ticks = Arc::new(AtomicUsize::new(0));
    let ticking = ticks.clone();
    tokio::spawn(async move {
        loop {
            ticking.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    });
    let (mut stream, mut peer) = joined(&stack).await;
    let (one, other) = (bind(&stack).await, bind(&stack).await);
    peer.write_all(&[7; 2 * CALLS]).unwrap();
    let mut some = [0; 2 * CALLS];
    while within(stream.peek(&mut some)).await.unwrap() < some.len() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    other.connect(one.local_addr().unwrap()).await.unwrap();
    other.send(b"datagram").await.unwrap();
    within(one.readable()).await.unwrap();
    let listener = TcpListener::bind_on(&stack.handle(), "127.0.0.1:0").await.unwrap();

    /// Repeats a call that is ready each time.
    macro_rules! yields {
        ($call:expr) => {
            ticks.store(0, Ordering::Relaxed);
            for _ in 0..CALLS {
                let _ = $call.await;
            }
            assert!(ticks.load(Ordering::Relaxed) > 1, "no other task runs between calls: {}", stringify!($call));
        };
    }
    yields!(stream.peek(&mut [0]));
    yields!(stream.readable());
    yields!(stream.writable());
    yields!(stream.read(&mut [0]));
    yields!(poll_fn(|cx| stream.poll_read_ready(cx)));
    yields!(stream.write(b"x"));
    yields!(one.readable());
    yields!(one.writable());
    yields!(one.peek_from(&mut [0; 9]));
    yields!(poll_fn(|cx| one.poll_send_ready(cx)));
    end(stack, Duration::ZERO).await;
    yields!(listener.accept());
}

/// Ends a runtime, in a thread that may block.
async fn end(stack: Background, deadline: Duration) {
    // An error is that of a connection which is open at the deadline.
    let _ = tokio::task::spawn_blocking(move || stack.shutdown(deadline)).await.unwrap();
}

#[tokio::test]
async fn ready_reports_ends() {
    let stack = start(1);
    let (listens, at) = tokio::sync::oneshot::channel();
    let serve = || async {
        let listener = fs_compat::local::TcpListener::bind("127.0.0.1:0").await.unwrap();
        listens.send(listener.local_addr().unwrap()).unwrap();
        ends::serve(listener).await;
    };
    stack.handle().spawn_on(0, serve).unwrap();
    let at = at.await.unwrap();
    within(async { ends::see_ends!(TcpStream::connect_on(&stack.handle(), at)) }).await;
}

/// As over the core.
#[tokio::test]
async fn reset_after_the_end_leaves_the_end() {
    let stack = start(1);
    let at = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    for len in [6, 100_000] {
        within(reset_after_the_end::check(&stack.handle(), at, &stack.handle(), len)).await;
    }
}

/// A peer that reads later gets all bytes that writes have accepted, or an error.
#[tokio::test]
async fn end_of_the_runtime_does_not_end_a_cut_stream_cleanly() {
    for is_dropped in [false, true] {
        let stack = start(1);
        let (mut stream, mut peer) = joined(&stack).await;
        let mut accepted = 0;
        // Until nothing has fitted for a while.
        while let Ok(n) = tokio::time::timeout(Duration::from_millis(300), stream.write(&[7; 100_000])).await {
            accepted += n.unwrap();
        }
        let kept = (!is_dropped).then_some(stream);
        end(stack, Duration::from_millis(100)).await;
        drop(kept);
        let mut got = 0;
        peer.set_read_timeout(Some(LIMIT)).unwrap();
        let ended = loop {
            match peer.read(&mut [0; 100_000]) {
                Ok(0) => break None,
                Ok(n) => got += n,
                Err(error) => break Some(error.kind()),
            }
        };
        assert!(
            got == accepted || ended == Some(ErrorKind::ConnectionReset),
            "the peer got {got} of {accepted} bytes, then {ended:?}"
        );
    }
}

/// Datagrams that were sent right before the runtime ends.
#[tokio::test]
async fn end_of_the_runtime_sends_queued_datagrams() {
    const DATAGRAMS: u8 = 100;
    let receiver = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    receiver.set_read_timeout(Some(LIMIT)).unwrap();
    for round in 0..40 {
        let stack = start(1);
        let socket = bind(&stack).await;
        for n in 0..DATAGRAMS {
            socket.try_send_to(&[n], receiver.local_addr().unwrap()).unwrap();
        }
        let kept = (round % 2 == 0).then_some(socket);
        end(stack, LIMIT).await;
        drop(kept);
        for n in 0..DATAGRAMS {
            let mut got = [0];
            receiver.recv(&mut got).unwrap_or_else(|error| panic!("datagram {n} of round {round}: {error}"));
            assert_eq!(got, [n]);
        }
    }
}

/// As a name such as localhost resolves: IPv6 first.
#[tokio::test]
async fn datagrams_go_to_the_first_peer_of_the_family() {
    let stack = start(1);
    let peer = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = peer.local_addr().unwrap();
    let of_v6 = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), to.port());
    within(async {
        let socket = UdpSocket::bind_on(&stack.handle(), "0.0.0.0:0").await.unwrap();
        let bound = socket.local_addr().unwrap();
        assert!(bound.ip().is_unspecified());
        assert_eq!(socket.connect(of_v6).await.unwrap_err().raw_os_error(), Some(libc::EAFNOSUPPORT));
        assert_eq!(socket.peer_addr().unwrap_err().kind(), ErrorKind::NotConnected);
        socket.connect(&[of_v6, to][..]).await.unwrap();
        assert_eq!(socket.peer_addr().unwrap(), to);
        assert_eq!(socket.local_addr().unwrap(), SocketAddr::new(to.ip(), bound.port()));
        for _ in 0..10 {
            socket.send(b"hello").await.unwrap();
        }
        // As connect(2): to the loopback device's broadcast address.
        let all = SocketAddr::new([127, 255, 255, 255].into(), to.port());
        assert_eq!(socket.connect(all).await.unwrap_err().kind(), ErrorKind::PermissionDenied);
        socket.set_broadcast(true).unwrap();
        socket.connect(all).await.unwrap();
        // From a bound address.
        let socket = UdpSocket::bind_on(&stack.handle(), "127.0.0.2:0").await.unwrap();
        let bound = socket.local_addr().unwrap();
        socket.connect(to).await.unwrap();
        assert_eq!(socket.local_addr().unwrap(), bound);
    })
    .await;
}

/// Whichever core serves the next socket. Two sockets of one port would take each other's datagrams.
#[tokio::test]
async fn port_of_a_udp_socket_is_in_use() {
    let stack = start(2);
    let socket = bind(&stack).await;
    for _ in 0..4 {
        let second = UdpSocket::bind_on(&stack.handle(), socket.local_addr().unwrap()).await;
        assert_eq!(second.unwrap_err().kind(), ErrorKind::AddrInUse);
    }
}

/// Datagrams of one sender may be lost, and never go back.
#[tokio::test]
async fn datagrams_stay_in_order_with_two_cores() {
    const DATAGRAMS: u32 = 20_000;
    let stack = start(2);
    let socket = bind(&stack).await;
    let to = socket.local_addr().unwrap();
    let sending = std::thread::spawn(move || {
        let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for n in 0..DATAGRAMS {
            sender.send_to(&n.to_be_bytes(), to).unwrap();
        }
        sender
    });
    let mut last = None;
    let mut next = async |limit| {
        let mut buf = [0; 4];
        tokio::time::timeout(limit, socket.recv(&mut buf)).await.ok()?.unwrap();
        let n = u32::from_be_bytes(buf);
        let before = last.replace(n);
        assert!(before < Some(n), "{n} after {before:?}");
        Some(n)
    };
    while !sending.is_finished() {
        next(Duration::from_millis(1)).await;
    }
    // A marker that is sent until it arrives.
    let sender = sending.join().unwrap();
    while next(Duration::from_millis(10)).await != Some(u32::MAX) {
        sender.send_to(&u32::MAX.to_be_bytes(), to).unwrap();
    }
}

/// The core has bound, and the call that asked it is dropped before it takes the answer.
#[tokio::test]
async fn cancelled_bind_leaves_no_socket() {
    let runtime = runtime(1);
    let handle = runtime.handle();
    let free = std::net::UdpSocket::bind("127.0.0.77:0").unwrap().local_addr().unwrap();
    let mut binding = Box::pin(UdpSocket::bind_on(&handle, free));
    assert!(poll_fn(|cx| Poll::Ready(binding.as_mut().poll(cx).is_pending())).await);
    // The core starts now, and runs tasks in order.
    let (tell, told) = tokio::sync::oneshot::channel();
    handle.spawn_on(0, || async { tell.send(()).unwrap() }).unwrap();
    let _stack = Background::start(runtime).unwrap();
    within(told).await.unwrap();
    assert_eq!(std::net::UdpSocket::bind(free).unwrap_err().kind(), ErrorKind::AddrInUse);
    drop(binding);
    within(async {
        while std::net::UdpSocket::bind(free).is_err() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

/// Each of them has a descriptor, and the kernel's queue holds the others.
#[tokio::test]
async fn few_connections_are_accepted_ahead_of_the_program() {
    const CLIENTS: usize = 200;
    let stack = start(2);
    let listener = TcpListener::bind_on(&stack.handle(), "127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let clients: Vec<_> = (0..CLIENTS).map(|_| std::net::TcpStream::connect(at).unwrap()).collect();
    let accepted = || stack.handle().stats().iter().map(|core| core.kernel_connections).sum::<u64>();
    within(async {
        while accepted() < 64 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    // Without a limit, the cores go on.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(accepted(), 64);
    for _ in &clients {
        within(listener.accept()).await.unwrap();
    }
}
