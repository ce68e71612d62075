//! The sockets of `local` and of `net` behind one trait, and the calls that programs make.

use crate::actors::Call;
use crate::flow::Flow;
use fs_compat::{local, net};
use fs_rt::Handle;
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest, ReadBuf};

/// A call, with the size of its buffer or what it asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Readable(usize),
    AsyncRead(usize),
    Peek(usize),
    PollPeek(usize),
    Ready(Interest),
    Writable(usize),
    AsyncWrite(usize),
    /// `read` and `write`, which only halves have here: they need `&mut`.
    Read(usize),
    Write(usize),
    /// What only `local` has. In `net` they are other calls.
    Borrowed,
    SendBuffer(usize),
    Closed,
}

impl Op {
    /// What the call waits for.
    pub(crate) fn waits(self) -> Option<Interest> {
        match self {
            Op::Readable(_) | Op::AsyncRead(_) | Op::Peek(_) | Op::PollPeek(_) | Op::Read(_) | Op::Borrowed => {
                Some(Interest::READABLE)
            }
            Op::Writable(_) | Op::AsyncWrite(_) | Op::Write(_) | Op::SendBuffer(_) => Some(Interest::WRITABLE),
            Op::Ready(interest) => Some(interest),
            Op::Closed => None,
        }
    }

    pub(crate) fn writes(self) -> bool {
        matches!(self, Op::Writable(_) | Op::AsyncWrite(_) | Op::Write(_) | Op::SendBuffer(_))
    }

    pub(crate) fn draw(random: &mut fastrand::Rng, is_split: bool) -> Op {
        let interests = [Interest::READABLE, Interest::WRITABLE, Interest::READABLE | Interest::WRITABLE];
        let most = if random.u8(..4) == 0 { 400_000 } else { 30_000 };
        let (few, many) = (random.usize(1..3000), random.usize(1..most));
        match random.u8(..if is_split { 11 } else { 10 }) {
            0 => Op::Readable(few),
            1 => Op::AsyncRead(many),
            2 => Op::Peek(few),
            3 => Op::PollPeek(few),
            4 => Op::Ready(interests[random.usize(..3)]),
            5 | 6 if is_split => Op::Write(many),
            5 => Op::Writable(many),
            6 => Op::AsyncWrite(many),
            7 => Op::Borrowed,
            8 => Op::SendBuffer(random.usize(1..1400)),
            9 if !is_split => Op::Closed,
            _ => Op::Read(many),
        }
    }
}

/// Connections that calls have made, each with its client's address.
pub(crate) type Made<K> = Rc<RefCell<Vec<(<K as Kind>::Stream, SocketAddr)>>>;
pub(crate) type Later<T> = Pin<Box<dyn Future<Output = T>>>;

/// Half of a connection, in use by one call, which returns it.
pub(crate) struct Lent<H> {
    half: Option<H>,
    home: Rc<RefCell<Option<H>>>,
}

impl<H> Lent<H> {
    /// Returns `None` while another call has it.
    pub(crate) fn of(home: &Rc<RefCell<Option<H>>>) -> Option<Self> {
        let half = home.borrow_mut().take()?;
        Some(Self { half: Some(half), home: home.clone() })
    }

    fn get(&mut self) -> &mut H {
        self.half.as_mut().unwrap()
    }
}

impl<H> Drop for Lent<H> {
    fn drop(&mut self) {
        *self.home.borrow_mut() = self.half.take();
    }
}

pub(crate) trait Kind: Sized + 'static {
    const NAME: &'static str;
    type Stream: 'static;
    type Reader: 'static;
    type Writer: 'static;
    type Listener: 'static;
    type Udp: 'static;

    fn connect(runtime: Handle, to: SocketAddr) -> Later<io::Result<Self::Stream>>;
    fn listen(runtime: Handle, at: SocketAddr) -> Later<io::Result<Self::Listener>>;
    fn accept(listener: Rc<Self::Listener>, polls: bool) -> Later<io::Result<(Self::Stream, SocketAddr)>>;
    fn listens_at(listener: &Self::Listener) -> SocketAddr;
    fn local_addr(stream: &Self::Stream) -> SocketAddr;
    fn limit_buffers(stream: &Self::Stream, bytes: u32);
    /// Returns true if a call that waits for `interest` would be ready.
    fn is_ready(stream: &Self::Stream, interest: Interest) -> bool;
    fn reader(half: &Self::Reader) -> &Self::Stream;
    fn writer(half: &Self::Writer) -> &Self::Stream;
    /// Shuts one direction of a shared connection, if the kind can.
    fn shut(stream: &Self::Stream, how: Shutdown) -> bool;
    fn split(stream: Self::Stream) -> (Self::Reader, Self::Writer);
    fn reunite(reader: Self::Reader, writer: Self::Writer) -> Self::Stream;
    fn call(stream: Rc<Self::Stream>, flow: Rc<Flow>, op: Op) -> Call;
    fn read_call(half: Lent<Self::Reader>, flow: Rc<Flow>, op: Op) -> Call;
    fn write_call(half: Lent<Self::Writer>, flow: Rc<Flow>, op: Op) -> Call;
    /// Ends the writing half's direction.
    fn shut_half(half: Lent<Self::Writer>) -> Call;
    fn bind_udp(runtime: Handle, at: SocketAddr) -> Later<io::Result<Self::Udp>>;
    fn udp_addr(socket: &Self::Udp) -> SocketAddr;
    fn connect_udp(socket: Rc<Self::Udp>, to: SocketAddr) -> Call;
    fn is_udp_ready(socket: &Self::Udp, interest: Interest) -> bool;
    fn udp_call(socket: Rc<Self::Udp>, flow: Rc<Flow>, op: Op, to: SocketAddr) -> Call;
}

macro_rules! kind {
    ($kind:ident, $name:literal, $sockets:ident, $connect:expr, $listen:expr, $bind:expr, $only:ident) => {
        pub(crate) struct $kind;

        impl Kind for $kind {
            const NAME: &'static str = $name;
            type Stream = $sockets::TcpStream;
            type Reader = $sockets::OwnedReadHalf;
            type Writer = $sockets::OwnedWriteHalf;
            type Listener = $sockets::TcpListener;
            type Udp = $sockets::UdpSocket;

            fn connect(runtime: Handle, to: SocketAddr) -> Later<io::Result<Self::Stream>> {
                Box::pin(async move { $connect(&runtime, to).await })
            }

            fn listen(runtime: Handle, at: SocketAddr) -> Later<io::Result<Self::Listener>> {
                Box::pin(async move { $listen(&runtime, at).await })
            }

            fn accept(listener: Rc<Self::Listener>, polls: bool) -> Later<io::Result<(Self::Stream, SocketAddr)>> {
                Box::pin(async move {
                    if polls { poll_fn(|cx| listener.poll_accept(cx)).await } else { listener.accept().await }
                })
            }

            fn listens_at(listener: &Self::Listener) -> SocketAddr {
                listener.local_addr().unwrap()
            }

            fn local_addr(stream: &Self::Stream) -> SocketAddr {
                stream.local_addr().unwrap()
            }

            fn limit_buffers(stream: &Self::Stream, bytes: u32) {
                let mut options = stream.options().unwrap();
                (options.send_buffer, options.receive_buffer) = (Some(bytes), Some(bytes));
                stream.set_options(options).unwrap();
            }

            fn is_ready(stream: &Self::Stream, interest: Interest) -> bool {
                let waits = stream.try_io(interest, || Ok(())).is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock);
                !waits || $only::queued(stream, interest)
            }

            fn reader(half: &Self::Reader) -> &Self::Stream {
                half.as_ref()
            }

            fn writer(half: &Self::Writer) -> &Self::Stream {
                half.as_ref()
            }

            fn shut(stream: &Self::Stream, how: Shutdown) -> bool {
                $only::shut(stream, how)
            }

            fn split(stream: Self::Stream) -> (Self::Reader, Self::Writer) {
                stream.into_split()
            }

            fn reunite(reader: Self::Reader, writer: Self::Writer) -> Self::Stream {
                reader.reunite(writer).unwrap()
            }

            fn call(stream: Rc<Self::Stream>, flow: Rc<Flow>, op: Op) -> Call {
                Box::pin(async move {
                    match op {
                        Op::Readable(n) => {
                            flow.done(stream.readable().await);
                            flow.read(n, |buf| stream.try_read(buf));
                        }
                        Op::AsyncRead(n) | Op::Read(n) => {
                            let mut buf = vec![0; n];
                            let got = stream.async_io(Interest::READABLE, || stream.try_read(&mut buf)).await;
                            flow.got(&buf, got);
                        }
                        Op::Peek(n) => {
                            let mut buf = vec![0; n];
                            let got = stream.peek(&mut buf).await;
                            flow.peeked(&buf, got);
                        }
                        Op::PollPeek(n) => {
                            let mut buf = vec![0; n];
                            let mut part = ReadBuf::new(&mut buf);
                            let got = poll_fn(|cx| stream.poll_peek(cx, &mut part)).await;
                            flow.peeked(&buf, got);
                        }
                        Op::Ready(interest) => flow.done(stream.ready(interest).await.map(drop)),
                        Op::Writable(n) => {
                            flow.done(stream.writable().await);
                            flow.write(n, |bytes| stream.try_write(bytes));
                        }
                        Op::AsyncWrite(n) | Op::Write(n) => {
                            let write = || flow.write_now(n, |bytes| stream.try_write(bytes));
                            flow.wrote(stream.async_io(Interest::WRITABLE, write).await);
                        }
                        Op::Borrowed | Op::SendBuffer(_) | Op::Closed => $only::call(&stream, &flow, op).await,
                    }
                })
            }

            fn read_call(mut half: Lent<Self::Reader>, flow: Rc<Flow>, op: Op) -> Call {
                Box::pin(async move {
                    let half = half.get();
                    match op {
                        Op::Readable(n) => {
                            flow.done(half.readable().await);
                            flow.read(n, |buf| half.try_read(buf));
                        }
                        Op::Peek(n) | Op::PollPeek(n) => {
                            let mut buf = vec![0; n];
                            let got = half.peek(&mut buf).await;
                            flow.peeked(&buf, got);
                        }
                        Op::Ready(interest) => flow.done(half.ready(interest).await.map(drop)),
                        Op::AsyncRead(n) | Op::Read(n) => {
                            let mut buf = vec![0; n];
                            let got = half.read(&mut buf).await;
                            flow.got(&buf, got);
                        }
                        _ => $only::call(half.as_ref(), &flow, op).await,
                    }
                })
            }

            fn write_call(mut half: Lent<Self::Writer>, flow: Rc<Flow>, op: Op) -> Call {
                Box::pin(async move {
                    let half = half.get();
                    match op {
                        Op::Writable(n) => {
                            flow.done(half.writable().await);
                            flow.write(n, |bytes| half.try_write(bytes));
                        }
                        Op::AsyncWrite(n) | Op::Write(n) => {
                            let bytes = flow.next(n);
                            flow.wrote(half.write(&bytes).await);
                        }
                        Op::Ready(interest) => flow.done(half.ready(interest).await.map(drop)),
                        _ => $only::call(half.as_ref(), &flow, op).await,
                    }
                })
            }

            fn shut_half(mut half: Lent<Self::Writer>) -> Call {
                Box::pin(async move { drop(half.get().shutdown().await) })
            }

            fn bind_udp(runtime: Handle, at: SocketAddr) -> Later<io::Result<Self::Udp>> {
                Box::pin(async move { $bind(&runtime, at).await })
            }

            fn udp_addr(socket: &Self::Udp) -> SocketAddr {
                socket.local_addr().unwrap()
            }

            fn connect_udp(socket: Rc<Self::Udp>, to: SocketAddr) -> Call {
                Box::pin(async move { socket.connect(to).await.unwrap() })
            }

            fn is_udp_ready(socket: &Self::Udp, interest: Interest) -> bool {
                !socket.try_io(interest, || Ok(())).is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock)
            }

            fn udp_call(socket: Rc<Self::Udp>, flow: Rc<Flow>, op: Op, to: SocketAddr) -> Call {
                Box::pin(async move {
                    let mut buf = vec![0; 2048];
                    match op {
                        Op::Readable(_) => {
                            socket.readable().await.unwrap();
                            flow.datagram(&mut buf, |buf| socket.try_recv_from(buf));
                        }
                        Op::AsyncRead(_) => {
                            let got = socket.async_io(Interest::READABLE, || socket.try_recv_from(&mut buf)).await;
                            flow.datagram(&mut buf, |_| got);
                        }
                        Op::Peek(_) => {
                            let got = socket.peek_from(&mut buf).await;
                            flow.peeked_datagram(&buf, got);
                        }
                        Op::PollPeek(_) => {
                            let mut part = ReadBuf::new(&mut buf);
                            let from = poll_fn(|cx| socket.poll_peek_from(cx, &mut part)).await;
                            let n = part.filled().len();
                            flow.peeked_datagram(&buf, from.map(|from| (n, from)));
                        }
                        Op::Ready(interest) => drop(socket.ready(interest).await.unwrap()),
                        Op::Writable(_) | Op::Write(_) => {
                            socket.writable().await.unwrap();
                            flow.send(|bytes| socket.try_send_to(bytes, to));
                        }
                        Op::AsyncWrite(_) | Op::SendBuffer(_) => {
                            let send = || flow.send_now(|bytes| socket.try_send_to(bytes, to));
                            flow.sent(socket.async_io(Interest::WRITABLE, send).await);
                        }
                        Op::Borrowed | Op::Closed => {
                            let mut part = ReadBuf::new(&mut buf);
                            let from = poll_fn(|cx| socket.poll_recv_from(cx, &mut part)).await;
                            let n = part.filled().len();
                            flow.datagram(&mut buf, |_| from.map(|from| (n, from)));
                        }
                        Op::Read(_) => {
                            let got = socket.recv_from(&mut buf).await;
                            flow.datagram(&mut buf, |_| got);
                        }
                    }
                })
            }
        }
    };
}

kind!(
    Local,
    "local",
    local,
    |_: &Handle, to| local::TcpStream::connect(to),
    |_: &Handle, at| local::TcpListener::bind(at),
    |_: &Handle, at| local::UdpSocket::bind(at),
    only_local
);
kind!(Net, "net", net, net::TcpStream::connect_on, net::TcpListener::bind_on, net::UdpSocket::bind_on, only_net);

mod only_local {
    use super::*;

    /// Readiness can be older than the socket's state.
    pub(super) fn queued(stream: &local::TcpStream, interest: Interest) -> bool {
        interest.is_readable() && stream.queued().is_ok_and(|(unread, _)| unread > 0)
    }

    pub(super) fn shut(stream: &local::TcpStream, how: Shutdown) -> bool {
        stream.shutdown_now(how).is_ok()
    }

    pub(super) async fn call(stream: &local::TcpStream, flow: &Flow, op: Op) {
        match op {
            Op::SendBuffer(n) => {
                let Ok(mut buffer) = stream.alloc_send_buffer() else { return };
                let n = buffer.put_slice(&flow.next(n));
                flow.wrote(stream.send_buffer(buffer).await.map(|()| n));
            }
            Op::Closed => poll_fn(|cx| stream.poll_closed(cx)).await,
            _ => {
                let got = stream.recv_borrowed().await;
                let n = got.as_ref().map(|bytes| bytes.len()).map_err(|error| io::Error::from(error.kind()));
                flow.got(got.as_deref().unwrap_or_default(), n);
            }
        }
    }
}

mod only_net {
    use super::*;

    pub(super) fn queued(_: &net::TcpStream, _: Interest) -> bool {
        false
    }

    pub(super) fn shut(_: &net::TcpStream, _: Shutdown) -> bool {
        false
    }

    pub(super) async fn call(stream: &net::TcpStream, flow: &Flow, op: Op) {
        if op.writes() {
            flow.done(poll_fn(|cx| stream.poll_write_ready(cx)).await);
            flow.write(1000, |bytes| stream.try_write(bytes));
        } else {
            flow.done(poll_fn(|cx| stream.poll_read_ready(cx)).await);
            flow.read(1000, |buf| stream.try_read(buf));
        }
    }
}
