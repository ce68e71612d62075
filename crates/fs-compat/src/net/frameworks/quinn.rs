//! quinn on [`UdpSocket`]: `Endpoint::new_with_abstract_socket(config, server, Arc::new(socket),
//! Arc::new(TokioRuntime))`.

use crate::net::udp_socket::UdpSocket;
use crate::net::udp_task::Outgoing;
use quinn::{AsyncUdpSocket, UdpPoller};
use quinn_udp::{EcnCodepoint, RecvMeta, Transmit};
use std::fmt;
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

/// Datagrams per call: as many datagrams of 1,472 bytes as one UDP payload of IPv4 can hold.
const TOGETHER: usize = 44;

impl AsyncUdpSocket for UdpSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Writable { socket: self, waiting: Mutex::new(None) })
    }

    /// A datagram that cannot be sent is lost, as on the network: quinn would take an error as the
    /// end of the connection. The route selects the source, not `src_ip` (docs/SEND.md).
    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let (data, to) = (transmit.contents, transmit.destination);
        let size = transmit.segment_size.unwrap_or(data.len()).max(1);
        let ecn = transmit.ecn.map(|ecn| ecn as u8);
        let sent = self.push(to, || Outgoing { data: data.to_vec(), to, size, whole: true, ecn });
        sent.unwrap_or_else(|| Err(io::ErrorKind::WouldBlock.into()))
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut taken = 0;
        for (buf, meta) in bufs.iter_mut().zip(meta) {
            let next = self.poll_pop(cx, |data, received| {
                let stride = received.stride;
                // Only whole datagrams. If one is larger than the buffer, its beginning.
                let n = if data.len() <= buf.len() { data.len() } else { buf.len() / stride * stride };
                let len = if n == 0 { data.len().min(buf.len()) } else { n };
                buf[..len].copy_from_slice(&data[..len]);
                *meta = RecvMeta::default();
                meta.addr = received.from;
                meta.len = len;
                meta.stride = stride.min(len);
                meta.dst_ip = Some(received.to.ip());
                meta.ecn = received.ecn.and_then(EcnCodepoint::from_bits);
                (if n == 0 { stride } else { n }, ())
            });
            match next {
                Poll::Ready(Ok(())) => taken += 1,
                Poll::Ready(Err(error)) if taken == 0 => return Poll::Ready(Err(error)),
                _ => break,
            }
        }
        if taken == 0 { Poll::Pending } else { Poll::Ready(Ok(taken)) }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        UdpSocket::local_addr(self)
    }

    fn max_transmit_segments(&self) -> usize {
        TOGETHER
    }

    fn max_receive_segments(&self) -> usize {
        TOGETHER
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

type WriteFuture = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

/// One task that waits for space.
struct Writable {
    socket: Arc<UdpSocket>,
    waiting: Mutex<Option<WriteFuture>>,
}

impl fmt::Debug for Writable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Writable({:?})", self.socket)
    }
}

impl UdpPoller for Writable {
    fn poll_writable(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let socket = &this.socket;
        let waiting = this.waiting.get_mut().unwrap_or_else(|e| e.into_inner());
        let waiting = waiting.get_or_insert_with(|| {
            let socket = socket.clone();
            Box::pin(async move { socket.writable().await })
        });
        let ready = std::task::ready!(waiting.as_mut().poll(cx));
        *this.waiting.get_mut().unwrap_or_else(|e| e.into_inner()) = None;
        Poll::Ready(ready)
    }
}
