//! Methods that only sockets of a core have.

use super::super::{Calls, done, retried};
use super::sockets::{TcpListener, TcpSocket, TcpStream, UdpSocket};
use fs_compat::{CongestionControl, Keepalive, TcpOptions};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Calls methods of a stream whose peer echoes.
pub(crate) async fn stream(stream: &mut TcpStream, calls: Calls<'_>) {
    let mut buf = [0; 16];
    calls.row("try_write_more", stream.try_write_more(b"abc"));
    stream.write_all(b"defgh").await.unwrap();
    let mut echo = Vec::new();
    while echo.len() < 8 {
        let bytes = match echo.is_empty() {
            true => poll_fn(|cx| stream.poll_recv_borrowed(cx)).await.unwrap(),
            false => stream.recv_borrowed().await.unwrap(),
        };
        assert!(!bytes.is_end_of_stream());
        echo.extend_from_slice(&bytes);
    }
    calls.row("recv_borrowed", Ok(String::from_utf8(echo).unwrap()));
    let mut frame = stream.alloc_send_buffer().unwrap();
    calls.row("alloc_send_buffer", Ok(frame.put_slice(b"12345678")));
    calls.row("send_buffer", stream.send_buffer(frame).await);
    stream.read_exact(&mut buf[..8]).await.unwrap();
    calls.row("queued", stream.queued().map(|(read, _)| read));
    calls.row("cork", stream.set_cork(true).and_then(|()| stream.set_cork(false)).and_then(|()| stream.cork()));
    calls.row("tos", stream.set_tos(0x10).and_then(|()| stream.tos()));
    calls.row("tos_v4", stream.set_tos_v4(0x20).and_then(|()| stream.tos_v4()));
    calls.row("tclass_v6", stream.set_tclass_v6(0x20).and_then(|()| stream.tclass_v6()));
    let minute = Some(Duration::from_secs(60));
    calls.row("tcp_user_timeout", stream.set_tcp_user_timeout(minute).and_then(|()| stream.tcp_user_timeout()));
    let low = stream.set_tcp_notsent_lowat(Some(9000)).and_then(|()| stream.tcp_notsent_lowat());
    calls.row("tcp_notsent_lowat", low);
    calls.row("mss", stream.set_mss(Some(1000)).and_then(|()| stream.mss()));
    calls.row("window_clamp", stream.set_window_clamp(Some(60_000)).and_then(|()| stream.window_clamp()));
    let inline = stream.set_out_of_band_inline(true).and_then(|()| stream.out_of_band_inline());
    calls.row("out_of_band_inline", inline);
    calls.row("recv_lowat", stream.set_recv_lowat(1).and_then(|()| stream.recv_lowat()));
    let pacing = stream.set_max_pacing_rate(Some(1 << 30)).and_then(|()| stream.max_pacing_rate());
    calls.row("max_pacing_rate", pacing);
    let reno = Some(CongestionControl::NewReno);
    calls.row("tcp_congestion", stream.set_tcp_congestion(reno).and_then(|()| stream.tcp_congestion()));
    calls.row("at_mark", stream.at_mark());
    calls.row("try_recv_out_of_band of none", stream.try_recv_out_of_band());
    calls.row("info", stream.info().map(|info| (info.state, info.snd_mss > 0, info.snd_cwnd > 0)));
}

/// Calls methods that end a stream.
pub(crate) async fn ends(calls: Calls<'_>) {
    let connect = async || {
        let mut stream = TcpStream::connect(calls.peer).await.unwrap();
        stream.read_exact(&mut [0; 5]).await.unwrap();
        stream
    };
    let urgent = connect().await;
    calls.row("try_send_out_of_band", urgent.try_send_out_of_band(b"!"));
    let mut stream = connect().await;
    calls.row("shutdown_now", stream.shutdown_now(std::net::Shutdown::Write));
    calls.row("read after shutdown_now", stream.read_to_end(&mut Vec::new()).await);
    poll_fn(|cx| stream.poll_closed(cx)).await;
    calls.row("poll_closed", Ok("over"));
    let (mut from, to) = (connect().await, connect().await);
    from.write_all(b"forwarded").await.unwrap();
    from.readable().await.unwrap();
    calls.row("poll_forward", Ok(poll_fn(|cx| from.poll_forward(cx, &to, 9)).await));
    let std = connect().await.into_std();
    calls.row("into_std", done(&std));
    let loopback = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let std = std::net::TcpStream::connect(loopback.local_addr().unwrap()).unwrap();
    calls.row("from_std", done(&TcpStream::from_std(std)));
}

pub(crate) async fn listener(listener: TcpListener, calls: Calls<'_>) {
    calls.row("set_backlog", listener.set_backlog(32));
    calls.row("set_fast_open", listener.set_fast_open(4));
    calls.row("set_options", listener.set_options(TcpOptions::default()));
}

pub(crate) async fn socket(calls: Calls<'_>) {
    let new = || TcpSocket::new_v4().unwrap();
    let (at, socket) = (calls.knocked, new());
    calls.row("new_v6", done(&TcpSocket::new_v6()));
    calls.row("set_only_v6", TcpSocket::new_v6().and_then(|socket| socket.set_only_v6(true)));
    calls.row("bind of the other family", socket.bind("[::1]:0".parse().unwrap()));
    calls.row("bind", socket.bind(at));
    calls.row("bind again", socket.bind(at));
    calls.row("local_addr", socket.local_addr().map(|own| own == at));
    options(&socket, calls);
    socket.set_options(TcpOptions::default());
    let listener = socket.listen(16);
    calls.row("listen", done(&listener));
    drop(listener);
    calls.row("listen_fast_open", done(&new().listen_fast_open(16, 4)));
    calls.row("connect", done(&new().connect(calls.peer).await));
    let from = new();
    let bound = from.bind(SocketAddr::new(at.ip(), 0)).and_then(|()| from.local_addr());
    let stream = from.connect(calls.peer).await;
    calls.row(
        "connect from an address",
        stream.and_then(|s| s.local_addr()).map(|own| bound.is_ok_and(|at| at.ip() == own.ip())),
    );
    let connects = new().connect_with_data(calls.peer, b"early").await;
    calls.row("connect_with_data", connects.map(|(_, sent)| sent));
    calls.row("connect to nobody", done(&new().connect(SocketAddr::new(calls.peer.ip(), 9)).await));
}

fn options(socket: &TcpSocket, calls: Calls<'_>) {
    calls.row("options", Ok(socket.options().nodelay));
    calls.row("nodelay", socket.set_nodelay(true).and_then(|()| socket.nodelay()));
    calls.row("keepalive", socket.set_keepalive(true).and_then(|()| socket.keepalive()));
    let keepalive = Keepalive { idle: Duration::from_secs(60), interval: Duration::from_secs(7), count: 3 };
    calls.row("set_tcp_keepalive", socket.set_tcp_keepalive(keepalive).and_then(|()| socket.keepalive()));
    calls.row("linger", socket.set_linger(Some(Duration::from_secs(1))).and_then(|()| socket.linger()));
    calls.row("zero linger", socket.set_zero_linger().and_then(|()| socket.linger()));
    calls.row("ttl of 0", socket.set_ttl(0));
    calls.row("tos", socket.set_tos(0x10).and_then(|()| socket.tos()));
    calls.row("tos_v4", socket.set_tos_v4(0x20).and_then(|()| socket.tos_v4()));
    calls.row("tclass_v6", socket.set_tclass_v6(0x20).and_then(|()| socket.tclass_v6()));
    calls.row("reuseaddr", socket.set_reuseaddr(true).and_then(|()| socket.reuseaddr()));
    calls.row("reuseport", socket.set_reuseport(false).and_then(|()| socket.reuseport()));
    calls.row("send_buffer_size", socket.set_send_buffer_size(1 << 16).and_then(|()| socket.send_buffer_size()));
    calls.row("recv_buffer_size", socket.set_recv_buffer_size(1 << 16).and_then(|()| socket.recv_buffer_size()));
    calls.row("cork", socket.set_cork(true).and_then(|()| socket.cork()));
    let minute = Some(Duration::from_secs(60));
    calls.row("tcp_user_timeout", socket.set_tcp_user_timeout(minute).and_then(|()| socket.tcp_user_timeout()));
    let low = socket.set_tcp_notsent_lowat(Some(9000)).and_then(|()| socket.tcp_notsent_lowat());
    calls.row("tcp_notsent_lowat", low);
    calls.row("mss", socket.set_mss(Some(1000)).and_then(|()| socket.mss()));
    calls.row("window_clamp", socket.set_window_clamp(Some(60_000)).and_then(|()| socket.window_clamp()));
    let inline = socket.set_out_of_band_inline(true).and_then(|()| socket.out_of_band_inline());
    calls.row("out_of_band_inline", inline);
    calls.row("recv_lowat", socket.set_recv_lowat(1).and_then(|()| socket.recv_lowat()));
    let pacing = socket.set_max_pacing_rate(Some(1 << 30)).and_then(|()| socket.max_pacing_rate());
    calls.row("max_pacing_rate", pacing);
    let reno = Some(CongestionControl::NewReno);
    calls.row("tcp_congestion", socket.set_tcp_congestion(reno).and_then(|()| socket.tcp_congestion()));
    socket.set_tcp_defer_accept(None);
    calls.row("bind_device", socket.bind_device(None).and_then(|()| socket.device()));
    calls.row("bind_device of none such", socket.bind_device(Some(b"nosuch0")));
    let other = TcpSocket::new_v4().unwrap();
    calls.row("bind_device of the runtime's", other.bind_device(Some(calls.device.as_bytes())));
    calls.row("take_error", socket.take_error().map(|error| error.is_some()));
}

/// Calls methods of a connected UDP socket whose peer echoes.
pub(crate) async fn datagrams(socket: UdpSocket, calls: Calls<'_>) {
    let to = Some(calls.peer);
    let mut buf = [0; 64];
    calls.row("try_send_segments", socket.try_send_segments(b"12345678", 4, to));
    calls.row("recv of a segment", socket.recv(&mut buf).await);
    calls.row("recv of the next", socket.recv(&mut buf).await);
    calls.row("try_send_segments_marked", socket.try_send_segments_marked(b"1234", 4, to, Some(0x20)));
    calls.row("try_recv_segments", retried(|| socket.try_recv_segments(&mut buf)).await.map(|(_, size)| size));
    calls.row("try_send_batch", socket.try_send_batch(&[(b"1", to)]));
    let mut metas = Vec::new();
    calls.row("try_recv_batch", retried(|| socket.try_recv_batch(&mut [&mut buf], &mut metas)).await);
    calls.row("into_std", done(&socket.into_std()));
    // A daemon takes no socket as a proof whose port the kernel has chosen.
    let std = std::net::UdpSocket::bind("0.0.0.0:7171").unwrap();
    calls.row("from_std", done(&UdpSocket::from_std(std)));
}
