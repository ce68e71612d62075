//! Methods that sockets of a core and sockets of any thread have in common. `sockets` is one of the
//! two modules.

use super::super::{Calls, done, retried};
use super::sockets::{TcpListener, TcpStream, UdpSocket};
use fs_compat::Keepalive;
use std::future::poll_fn;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest, ReadBuf};

/// Calls methods of a stream while both directions are open.
pub(crate) async fn stream(calls: Calls<'_>) -> TcpStream {
    let nobody = SocketAddr::new(calls.peer.ip(), 9);
    calls.row("connect to nobody", done(&TcpStream::connect(nobody).await));
    let stream = TcpStream::connect(calls.peer).await;
    calls.row("connect", done(&stream));
    let mut stream = stream.unwrap();
    let mut buf = [0; 16];
    calls.row("carrier", Ok(stream.carrier()));
    calls.row("local_addr", stream.local_addr().map(|own| own.port() != 0));
    calls.row("peer_addr", stream.peer_addr().map(|peer| peer == calls.peer));
    calls.row("poll_read_ready", poll_fn(|cx| stream.poll_read_ready(cx)).await);
    calls.row("poll_write_ready", poll_fn(|cx| stream.poll_write_ready(cx)).await);
    calls.row("readable", stream.readable().await);
    calls.row("writable", stream.writable().await);
    let ready = stream.ready(Interest::READABLE | Interest::WRITABLE).await;
    calls.row("ready", ready.map(|ready| ready.is_readable() && ready.is_writable()));
    calls.row("peek", stream.peek(&mut buf[..3]).await);
    let mut peeked = ReadBuf::new(&mut buf[..2]);
    calls.row("poll_peek", poll_fn(|cx| stream.poll_peek(cx, &mut peeked)).await);
    calls.row("try_io", stream.try_io(Interest::READABLE, || stream.try_read(&mut buf[..1])));
    calls.row("try_read", stream.try_read(&mut buf[..1]));
    calls.row("try_read_vectored", stream.try_read_vectored(&mut [IoSliceMut::new(&mut buf[..1])]));
    calls.row("try_read_buf", stream.try_read_buf(&mut (&mut buf[..1])));
    calls.row("read", stream.read(&mut buf).await);
    calls.row("try_read of nothing", stream.try_read(&mut buf));
    calls.row("try_write", stream.try_write(b"a"));
    let pieces = [IoSlice::new(b"b"), IoSlice::new(b""), IoSlice::new(b"c")];
    calls.row("try_write_vectored", stream.try_write_vectored(&pieces));
    calls.row("write_vectored", stream.write_vectored(&[IoSlice::new(b"e"), IoSlice::new(b"f")]).await);
    calls.row("write_all", stream.write_all(b"gh").await);
    calls.row("flush", stream.flush().await);
    calls.row("read_exact", stream.read_exact(&mut buf[..7]).await);
    stream.write_all(b"i").await.unwrap();
    calls.row("async_io", stream.async_io(Interest::READABLE, || stream.try_read(&mut buf)).await);
    calls.row("options", stream.options().map(|options| options.nodelay));
    calls.row("set_options", stream.options().and_then(|options| stream.set_options(options)));
    calls.row("nodelay", stream.set_nodelay(true).and_then(|()| stream.nodelay()));
    calls.row("quickack", stream.set_quickack(true).and_then(|()| stream.quickack()));
    calls.row("ttl", stream.set_ttl(33).and_then(|()| stream.ttl()));
    calls.row("ttl of 0", stream.set_ttl(0));
    let keepalive = Keepalive { idle: Duration::from_secs(60), interval: Duration::from_secs(7), count: 3 };
    calls.row("keepalive", stream.set_keepalive(Some(keepalive)).and_then(|()| stream.keepalive()));
    calls.row("linger", stream.set_linger(Some(Duration::from_secs(60))).and_then(|()| stream.linger()));
    calls.row("zero linger", stream.set_zero_linger().and_then(|()| stream.linger()));
    calls.row("linger off", stream.set_linger(None).and_then(|()| stream.linger()));
    calls.row("take_error", stream.take_error().map(|error| error.is_some()));
    let (reader, writer) = stream.split();
    calls.row("split", reader.peer_addr().and_then(|a| writer.peer_addr().map(|b| a == b)));
    stream
}

/// Ends both directions.
pub(crate) async fn end(stream: TcpStream, calls: Calls<'_>) {
    let (mut reader, mut writer) = stream.into_split();
    calls.row("into_split", reader.peer_addr().and_then(|a| writer.peer_addr().map(|b| a == b)));
    calls.row("shutdown", writer.shutdown().await);
    calls.row("write after shutdown", writer.write(b"late").await);
    calls.row("read to the end", reader.read_to_end(&mut Vec::new()).await);
    let mut stream = reader.reunite(writer).unwrap();
    calls.row("shutdown again", stream.shutdown().await);
}

/// Returns a listener at the address to which peers connect.
pub(crate) async fn listener(calls: Calls<'_>) -> TcpListener {
    let at = calls.knocked;
    let listener = TcpListener::bind(at).await;
    calls.row("bind", done(&listener));
    let listener = listener.unwrap();
    calls.row("bind of a port in use", done(&TcpListener::bind(at).await));
    let elsewhere = SocketAddr::new(Ipv4Addr::new(192, 0, 2, 7).into(), 0);
    calls.row("bind of another host's address", done(&TcpListener::bind(elsewhere).await));
    calls.row("local_addr", listener.local_addr().map(|own| own == at));
    calls.row("ttl", listener.set_ttl(33).and_then(|()| listener.ttl()));
    calls.row("ttl of 0", listener.set_ttl(0));
    calls.row("accept", listener.accept().await.map(|(stream, peer)| stream.peer_addr().is_ok_and(|at| at == peer)));
    calls.row("poll_accept", poll_fn(|cx| listener.poll_accept(cx)).await.map(drop));
    listener
}

/// Calls every method of a UDP socket.
pub(crate) async fn datagrams(calls: Calls<'_>) -> UdpSocket {
    let to = calls.peer;
    let socket = UdpSocket::bind("0.0.0.0:0").await;
    calls.row("bind", done(&socket));
    let socket = socket.unwrap();
    let mut buf = [0; 64];
    let is_peer = |(len, from): (usize, SocketAddr)| (len, from == to);
    calls.row("local_addr", socket.local_addr().map(|at| at.port() != 0));
    calls.row("bind of a port in use", done(&UdpSocket::bind(socket.local_addr().unwrap()).await));
    calls.row("peer_addr, not connected", socket.peer_addr());
    calls.row("try_send, not connected", socket.try_send(b"lost"));
    calls.row("try_recv of nothing", socket.try_recv_from(&mut buf));
    calls.row("writable", socket.writable().await);
    calls.row("poll_send_ready", poll_fn(|cx| socket.poll_send_ready(cx)).await);
    calls.row("send_to", socket.send_to(b"hello", to).await);
    calls.row("readable", socket.readable().await);
    calls.row("poll_recv_ready", poll_fn(|cx| socket.poll_recv_ready(cx)).await);
    calls.row("ready", socket.ready(Interest::READABLE).await.map(|ready| ready.is_readable()));
    calls.row("peek_from", socket.peek_from(&mut buf).await.map(is_peer));
    calls.row("try_peek_from", socket.try_peek_from(&mut buf).map(is_peer));
    calls.row("peek_sender", socket.peek_sender().await.map(|from| from == to));
    calls.row("try_peek_sender", socket.try_peek_sender().map(|from| from == to));
    calls.row("poll_peek_sender", poll_fn(|cx| socket.poll_peek_sender(cx)).await.map(|from| from == to));
    let mut peeked = ReadBuf::new(&mut buf);
    calls.row("poll_peek_from", poll_fn(|cx| socket.poll_peek_from(cx, &mut peeked)).await.map(|at| at == to));
    calls.row("recv_from", socket.recv_from(&mut buf[..3]).await.map(is_peer));
    calls.row("try_send_to", socket.try_send_to(b"hello", to));
    calls.row("try_recv_from", retried(|| socket.try_recv_from(&mut buf)).await.map(is_peer));
    calls.row("poll_send_to", poll_fn(|cx| socket.poll_send_to(cx, b"hello", to)).await);
    let mut received = ReadBuf::new(&mut buf);
    calls.row("poll_recv_from", poll_fn(|cx| socket.poll_recv_from(cx, &mut received)).await.map(|at| at == to));
    socket.send_to(b"hello", to).await.unwrap();
    calls.row("recv_buf_from", socket.recv_buf_from(&mut Vec::new()).await.map(is_peer));
    socket.send_to(b"hello", to).await.unwrap();
    calls.row("try_recv_buf_from", retried(|| socket.try_recv_buf_from(&mut Vec::new())).await.map(is_peer));
    calls.row("connect", socket.connect(to).await);
    calls.row("peer_addr", socket.peer_addr().map(|at| at == to));
    calls.row("send", socket.send(b"hello").await);
    calls.row("peek", socket.peek(&mut buf).await);
    calls.row("try_peek", socket.try_peek(&mut buf));
    let mut peeked = ReadBuf::new(&mut buf);
    calls.row("poll_peek", poll_fn(|cx| socket.poll_peek(cx, &mut peeked)).await);
    calls.row("try_recv", socket.try_recv(&mut buf));
    calls.row("try_send", socket.try_send(b"hello"));
    let mut received = ReadBuf::new(&mut buf);
    calls.row("poll_recv", poll_fn(|cx| socket.poll_recv(cx, &mut received)).await);
    calls.row("poll_send", poll_fn(|cx| socket.poll_send(cx, b"hello")).await);
    calls.row("recv", socket.recv(&mut buf[..2]).await);
    socket.send(b"hello").await.unwrap();
    calls.row("recv_buf", socket.recv_buf(&mut Vec::new()).await);
    socket.send(b"hello").await.unwrap();
    calls.row("try_recv_buf", retried(|| socket.try_recv_buf(&mut Vec::new())).await);
    socket.send(b"hello").await.unwrap();
    calls.row("async_io", socket.async_io(Interest::READABLE, || socket.try_recv(&mut buf)).await);
    calls.row("try_io", socket.try_io(Interest::WRITABLE, || socket.try_send(b"last")));
    calls.row("recv of the last", socket.recv(&mut buf).await);
    datagram_options(&socket, calls);
    datagram_groups(&socket, calls);
    let v6 = UdpSocket::bind("[::]:0").await.unwrap();
    calls.row("tclass_v6", v6.set_tclass_v6(0x20).and_then(|()| v6.tclass_v6()));
    let groups = || {
        // Device 1 is lo.
        let (group, lo) = ("ff02::99".parse().unwrap(), 1);
        v6.set_multicast_loop_v6(true)?;
        v6.join_multicast_v6(&group, lo)?;
        v6.leave_multicast_v6(&group, lo)?;
        v6.multicast_loop_v6()
    };
    calls.row("join_multicast_v6", groups());
    socket
}

fn datagram_options(socket: &UdpSocket, calls: Calls<'_>) {
    calls.row("ttl", socket.set_ttl(33).and_then(|()| socket.ttl()));
    calls.row("ttl of 0", socket.set_ttl(0));
    calls.row("tos", socket.set_tos(0x10).and_then(|()| socket.tos()));
    calls.row("tos_v4", socket.set_tos_v4(0x20).and_then(|()| socket.tos_v4()));
    calls.row("tos above 255", socket.set_tos(256));
    calls.row("bind_device", socket.bind_device(None).and_then(|()| socket.device()));
    calls.row("bind_device of none such", socket.bind_device(Some(b"nosuch0")));
    calls.row("bind_device of the runtime's", socket.bind_device(Some(calls.device.as_bytes())));
    calls.row("take_error", socket.take_error().map(|error| error.is_some()));
}

fn datagram_groups(socket: &UdpSocket, calls: Calls<'_>) {
    calls.row("broadcast", socket.set_broadcast(true).and_then(|()| socket.broadcast()));
    let groups = || -> io::Result<_> {
        let (group, here) = (Ipv4Addr::new(224, 0, 0, 99), Ipv4Addr::LOCALHOST);
        socket.set_multicast_loop_v4(true)?;
        socket.set_multicast_ttl_v4(3)?;
        socket.join_multicast_v4(group, here)?;
        socket.leave_multicast_v4(group, here)?;
        Ok((socket.multicast_loop_v4()?, socket.multicast_ttl_v4()?))
    };
    calls.row("join_multicast_v4", groups());
}
