//! The other ends: sockets of the kernel, or of another runtime. Their calls do not wait.

use crate::flow::{Flow, TO_PEER, TO_PROGRAM, bytes, datagram};
use fs_compat::net;
use fs_rt::Handle;
use socket2::SockRef;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;
use tokio::io::AsyncWrite;

/// Where the peers of a program are.
#[derive(Clone)]
pub(crate) enum Peers {
    Kernel,
    Core(Handle, IpAddr),
}

pub(crate) enum Peer {
    Kernel(std::net::TcpStream),
    Core(net::TcpStream),
}

/// Small, so that senders wait.
pub(crate) const BUFFER: u32 = 16 << 10;

pub(crate) enum PeerListener {
    Kernel(std::net::TcpListener),
    Core(net::TcpListener, IpAddr),
}

impl Peers {
    pub(crate) async fn listen(&self) -> PeerListener {
        match self {
            Peers::Kernel => PeerListener::Kernel(std::net::TcpListener::bind("127.0.0.1:0").unwrap()),
            Peers::Core(handle, at) => {
                PeerListener::Core(net::TcpListener::bind_on(handle, (*at, 0)).await.unwrap(), *at)
            }
        }
    }

    /// Connects. A listener that nobody accepts from has room for it.
    pub(crate) async fn connect(&self, to: SocketAddr) -> Peer {
        match self {
            Peers::Kernel => Peer::kernel(std::net::TcpStream::connect(to).unwrap()),
            Peers::Core(handle, _) => Peer::Core(net::TcpStream::connect_on(handle, to).await.unwrap()),
        }
    }

    pub(crate) async fn udp(&self) -> PeerUdp {
        match self {
            Peers::Kernel => {
                let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
                socket.set_nonblocking(true).unwrap();
                PeerUdp::Kernel(socket)
            }
            Peers::Core(handle, at) => {
                PeerUdp::Core(Box::new(net::UdpSocket::bind_on(handle, (*at, 0)).await.unwrap()))
            }
        }
    }
}

impl PeerListener {
    pub(crate) fn addr(&self) -> SocketAddr {
        match self {
            PeerListener::Kernel(listener) => listener.local_addr().unwrap(),
            PeerListener::Core(listener, at) => SocketAddr::new(*at, listener.local_addr().unwrap().port()),
        }
    }

    pub(crate) async fn accept(&self) -> (Peer, SocketAddr) {
        match self {
            PeerListener::Kernel(listener) => {
                let (stream, from) = listener.accept().unwrap();
                (Peer::kernel(stream), from)
            }
            PeerListener::Core(listener, _) => {
                let (stream, from) = listener.accept().await.unwrap();
                (Peer::Core(stream), from)
            }
        }
    }
}

impl Peer {
    fn kernel(stream: std::net::TcpStream) -> Peer {
        stream.set_nonblocking(true).unwrap();
        Peer::Kernel(stream)
    }

    pub(crate) fn limit_buffers(&self) {
        match self {
            Peer::Kernel(stream) => {
                let options = SockRef::from(stream);
                options.set_recv_buffer_size(BUFFER as usize).unwrap();
                options.set_send_buffer_size(BUFFER as usize).unwrap();
            }
            Peer::Core(stream) => {
                let mut options = stream.options().unwrap();
                (options.send_buffer, options.receive_buffer) = (Some(BUFFER), Some(BUFFER));
                stream.set_options(options).unwrap();
            }
        }
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        match self {
            Peer::Kernel(stream) => stream.local_addr().unwrap(),
            Peer::Core(stream) => stream.local_addr().unwrap(),
        }
    }

    /// Sends up to `n` bytes. Returns how many, or an error if the connection is over.
    pub(crate) fn send(&mut self, at: u64, n: usize) -> io::Result<usize> {
        let data = bytes(TO_PROGRAM, at, n);
        let sent = match self {
            Peer::Kernel(stream) => stream.write(&data),
            Peer::Core(stream) => stream.try_write(&data),
        };
        sent.or_else(|error| if error.kind() == ErrorKind::WouldBlock { Ok(0) } else { Err(error) })
    }

    /// Reads up to `n` bytes, which must be those at `at`. `None`: there are none yet.
    pub(crate) fn read(&mut self, at: u64, n: usize) -> Option<io::Result<usize>> {
        let mut buf = vec![0; n];
        let got = match self {
            Peer::Kernel(stream) => stream.read(&mut buf),
            Peer::Core(stream) => stream.try_read(&mut buf),
        };
        match got {
            Err(nothing) if nothing.kind() == ErrorKind::WouldBlock => None,
            Ok(n) => {
                assert!(buf[..n] == bytes(TO_PEER, at, n), "the peer got wrong bytes at {at}");
                Some(Ok(n))
            }
            Err(error) => Some(Err(error)),
        }
    }

    pub(crate) fn fin(&mut self) {
        match self {
            Peer::Kernel(stream) => drop(stream.shutdown(std::net::Shutdown::Write)),
            // It does not wait.
            Peer::Core(stream) => drop(Pin::new(stream).poll_shutdown(&mut Context::from_waker(Waker::noop()))),
        }
    }

    /// Sends a byte out of band, which is no byte of the stream. `false` if this peer cannot.
    pub(crate) fn urgent(&mut self) -> bool {
        let Peer::Kernel(stream) = self else { return false };
        SockRef::from(&*stream).send_out_of_band(b"!").is_ok()
    }

    pub(crate) fn reset(self) {
        match self {
            Peer::Kernel(stream) => SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap(),
            Peer::Core(stream) => stream.set_zero_linger().unwrap(),
        }
    }
}

pub(crate) enum PeerUdp {
    Kernel(std::net::UdpSocket),
    Core(Box<net::UdpSocket>),
}

impl PeerUdp {
    pub(crate) fn addr(&self) -> SocketAddr {
        match self {
            PeerUdp::Kernel(socket) => socket.local_addr().unwrap(),
            PeerUdp::Core(socket) => socket.local_addr().unwrap(),
        }
    }

    pub(crate) fn send(&self, data: &[u8], to: SocketAddr) {
        let sent = match self {
            PeerUdp::Kernel(socket) => socket.send_to(data, to),
            PeerUdp::Core(socket) => socket.try_send_to(data, to),
        };
        assert_eq!(sent.unwrap(), data.len());
    }

    /// Receives everything that has arrived, which must be in order. Returns how many came.
    pub(crate) fn drain(&self, mut at: u64) -> u64 {
        let (mut buf, begin) = ([0; 2048], at);
        loop {
            let got = match self {
                PeerUdp::Kernel(socket) => socket.recv(&mut buf),
                PeerUdp::Core(socket) => socket.try_recv(&mut buf),
            };
            match got {
                Err(nothing) if nothing.kind() == ErrorKind::WouldBlock => return at - begin,
                got => assert!(buf[..got.unwrap()] == datagram(TO_PEER, at), "the peer's datagram {at}"),
            }
            at += 1;
        }
    }
}

/// Reads at the peer until `flow`'s bytes are there. Returns what it got, and whether it ended.
pub(crate) fn drain(peer: &mut Peer, flow: &Flow, at: &mut u64, n: usize) -> Option<io::Result<()>> {
    let mut left = n;
    while left > 0 {
        match peer.read(*at, left.min(16 << 10)) {
            None => return None,
            Some(Ok(0)) => return Some(Ok(())),
            Some(Ok(n)) => {
                *at += n as u64;
                left -= n;
                assert!(*at <= flow.written.get(), "the peer got {at} bytes of {}", flow.written.get());
            }
            Some(Err(error)) => return Some(Err(error)),
        }
    }
    None
}
