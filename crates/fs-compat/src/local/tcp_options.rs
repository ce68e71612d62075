//! Options that tokio's types do not have. Names are socket2's where it has them.

use crate::error::IntoIo;
use crate::local::tcp_listener::TcpListener;
use crate::local::tcp_socket::TcpSocket;
use crate::local::tcp_stream::TcpStream;
use crate::local::udp_socket::class_in_range;
use fs_core::CongestionControl;
use fs_core::TcpInfo;
use fs_core::{Connect, Listen, Ready as CoreReady, TcpOptions};
use fs_rt::Interest as Wait;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::Poll;
use std::time::Duration;

macro_rules! options {
    ($($(#[$doc:meta])* $get:ident, $set:ident, $field:ident: $kind:ty;)*) => {
        impl TcpStream {
            $($(#[$doc])*
            pub fn $get(&self) -> io::Result<$kind> {
                Ok(self.options()?.$field)
            }

            $(#[$doc])*
            pub fn $set(&self, $field: $kind) -> io::Result<()> {
                self.change(|options| options.$field = $field)
            })*
        }

        impl TcpSocket {
            $($(#[$doc])*
            pub fn $get(&self) -> io::Result<$kind> {
                Ok(self.options().$field)
            }

            $(#[$doc])*
            pub fn $set(&self, $field: $kind) -> io::Result<()> {
                self.change(|options: &mut TcpOptions| options.$field = $field);
                Ok(())
            })*
        }
    };
}

options! {
    /// TCP_CORK: only full segments are sent, others at most 200 ms late. Turning it off sends the
    /// rest.
    cork, set_cork, cork: bool;
    /// TCP_USER_TIMEOUT: how long data may stay unacknowledged before the connection fails.
    tcp_user_timeout, set_tcp_user_timeout, user_timeout: Option<Duration>;
    /// TCP_NOTSENT_LOWAT: writable while fewer unsent bytes than this are queued.
    tcp_notsent_lowat, set_tcp_notsent_lowat, not_sent_low: Option<u32>;
    /// TCP_MAXSEG: upper bound of the segment size; our SYN announces it.
    mss, set_mss, max_segment: Option<u16>;
    /// TCP_WINDOW_CLAMP: upper bound of the window that we offer, in bytes.
    window_clamp, set_window_clamp, window_clamp: Option<u32>;
    /// SO_OOBINLINE: urgent data stays in the stream.
    out_of_band_inline, set_out_of_band_inline, oob_inline: bool;
    /// SO_RCVLOWAT: readable only from this many bytes on (or at the end of the stream).
    recv_lowat, set_recv_lowat, receive_low: u32;
    /// SO_MAX_PACING_RATE in bytes a second.
    max_pacing_rate, set_max_pacing_rate, pacing_max: Option<u64>;
    /// TCP_CONGESTION; `None` is the runtime's.
    tcp_congestion, set_tcp_congestion, congestion_control: Option<CongestionControl>;
}

macro_rules! traffic_class {
    ($socket:ty, $self:ident, $options:expr, $change:ident) => {
        impl $socket {
            /// Returns IP_TOS or IPV6_TCLASS without its two ECN bits, which the stack controls.
            pub fn tos(&$self) -> io::Result<u32> {
                Ok($options.tos.into())
            }

            /// Sets IP_TOS or IPV6_TCLASS; `EINVAL` above 255. The stack controls its two ECN bits.
            pub fn set_tos(&$self, tos: u32) -> io::Result<()> {
                $change($self, class_in_range(tos)? & !3)
            }

            /// IP_TOS: see [`Self::tos`].
            pub fn tos_v4(&self) -> io::Result<u32> {
                self.tos()
            }

            /// IP_TOS: see [`Self::set_tos`].
            pub fn set_tos_v4(&self, tos: u32) -> io::Result<()> {
                self.set_tos(tos)
            }

            /// IPV6_TCLASS: see [`Self::tos`].
            pub fn tclass_v6(&self) -> io::Result<u32> {
                self.tos()
            }

            /// IPV6_TCLASS: see [`Self::set_tos`].
            pub fn set_tclass_v6(&self, tclass: u32) -> io::Result<()> {
                self.set_tos(tclass)
            }
        }
    };
}

fn change_stream(stream: &TcpStream, tos: u8) -> io::Result<()> {
    stream.change(|options| options.tos = tos)
}

fn change_socket(socket: &TcpSocket, tos: u8) -> io::Result<()> {
    socket.change(|options| options.tos = tos);
    Ok(())
}

traffic_class!(TcpStream, self, self.options()?, change_stream);
traffic_class!(TcpSocket, self, self.options(), change_socket);

impl TcpSocket {
    /// Sets all options.
    pub fn set_options(&self, options: TcpOptions) {
        self.change(|all| *all = options);
    }

    /// TCP_DEFER_ACCEPT, for a listener: a connection is offered when its first data has arrived,
    /// or after this time.
    pub fn set_tcp_defer_accept(&self, time: Option<Duration>) {
        self.change(|options| options.defer_accept = time);
    }

    /// Listens, and accepts data in the SYN of up to `pending` connections at once (TCP_FASTOPEN,
    /// RFC 7413). The runtime's configuration must allow it. A duplicated SYN can deliver its data
    /// twice, so use it only for requests that may be repeated.
    pub fn listen_fast_open(self, backlog: u32, pending: u32) -> io::Result<TcpListener> {
        // The lease keeps the port until the listener has it.
        let (listen, _lease) = self.into_listen(backlog);
        TcpListener::listen(Listen { fast_open: pending, ..listen })
    }

    /// Connects with the first bytes to send (TCP Fast Open, RFC 7413). Returns how many bytes of
    /// `data` were taken, possibly none. The server's application may receive them twice.
    pub async fn connect_with_data(self, remote: SocketAddr, data: &[u8]) -> io::Result<(TcpStream, usize)> {
        let (connect, lease): (Connect, _) = self.into_connect(remote)?;
        TcpStream::connect_with_data(connect, lease, data).await
    }
}

impl TcpListener {
    /// Sets the options of connections that arrive from now on.
    pub fn set_options(&self, options: TcpOptions) -> io::Result<()> {
        self.call(|stack, id| stack.tcp_set_listener_options(id, options))?;
        if let Some(kernel) = &*self.kernel.borrow() {
            kernel.set_options(&self.core, &self.options.get(), &options)?;
        }
        self.options.set(options);
        Ok(())
    }

    /// Sets how many established connections may wait to be accepted, as another listen(2) does.
    pub fn set_backlog(&self, backlog: u32) -> io::Result<()> {
        self.call(|stack, id| stack.tcp_set_listener_backlog(id, backlog))?;
        self.kernel.borrow().as_ref().map_or(Ok(()), |kernel| kernel.set_backlog(backlog))
    }

    /// TCP_FASTOPEN: see [`TcpSocket::listen_fast_open`].
    pub fn set_fast_open(&self, pending: u32) -> io::Result<()> {
        self.call(|stack, id| stack.tcp_set_listener_fast_open(id, pending))?;
        self.kernel.borrow().as_ref().map_or(Ok(()), |kernel| kernel.set_fast_open(pending))
    }
}

impl TcpStream {
    /// TCP_INFO.
    pub fn info(&self) -> io::Result<TcpInfo> {
        self.inspect(|stack, id| stack.tcp_info(id), |kernel| kernel.info())
    }

    /// TCP_QUICKACK: false if ACKs wait for data to carry them.
    pub fn quickack(&self) -> io::Result<bool> {
        self.inspect(|stack, id| stack.tcp_quickack(id), |kernel| kernel.quickack())
    }

    /// TCP_QUICKACK: `true` sends a delayed ACK now and delays none of the next 16. It is not
    /// permanent.
    pub fn set_quickack(&self, on: bool) -> io::Result<()> {
        self.call(|stack, id| stack.tcp_set_quickack(id, on), |kernel| kernel.set_quickack(on))
    }

    /// Like [`TcpStream::try_write`] with MSG_MORE: the last segment waits for more data.
    pub fn try_write_more(&self, buf: &[u8]) -> io::Result<usize> {
        self.call(|stack, id| stack.tcp_send_more(id, buf), |kernel| kernel.try_send_flags(buf, libc::MSG_MORE))
    }

    /// Sends with MSG_OOB: the last byte is urgent. `WouldBlock` if nothing fits.
    pub fn try_send_out_of_band(&self, buf: &[u8]) -> io::Result<usize> {
        self.call(|stack, id| stack.tcp_send_urgent(id, buf), |kernel| kernel.try_send_flags(buf, libc::MSG_OOB))
    }

    /// Returns the urgent byte (MSG_OOB), once. `InvalidInput` if none is announced, `WouldBlock`
    /// if it has not arrived yet.
    pub fn try_recv_out_of_band(&self) -> io::Result<u8> {
        self.call(|stack, id| stack.tcp_recv_urgent(id), |kernel| kernel.try_recv_urgent())
    }

    /// Waits for urgent data (POLLPRI) or the end of the connection, and returns the urgent byte.
    pub async fn recv_out_of_band(&self) -> io::Result<u8> {
        let own = match self.own_or_kernel() {
            Ok(own) => own,
            Err(kernel) => return kernel.recv_urgent().await,
        };
        poll_fn(|cx| {
            let ready = own.inspect(|stack, id| stack.tcp_ready(id))?;
            if ready.intersects(CoreReady::PRIORITY | CoreReady::CLOSED) {
                return Poll::Ready(self.try_recv_out_of_band());
            }
            own.poll_op(cx, Wait::TcpRead, |_, _| Err::<u8, _>(fs_core::Error::WouldBlock)).map(IntoIo::io)
        })
        .await
    }

    /// SIOCATMARK: true if the next byte to be read is the urgent one, or would be if it were in
    /// the stream.
    pub fn at_mark(&self) -> io::Result<bool> {
        self.inspect(|stack, id| stack.tcp_at_mark(id), |kernel| kernel.at_mark())
    }
}
