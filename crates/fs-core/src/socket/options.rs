//! Socket options.

use crate::config::{CongestionControl, TcpConfig};
use crate::frame::IfaceId;
use crate::time::Duration;
use core::net::SocketAddr;

/// The smallest receive buffer, in bytes.
pub(crate) const RECEIVE_BUFFER_MIN: u32 = 2048;

/// Keepalive: RFC 9293 3.8.4.
///
/// ```
/// use fs_core::Keepalive;
/// use std::time::Duration;
///
/// let keepalive = Keepalive { idle: Duration::from_secs(60), ..Keepalive::default() };
/// assert_eq!(keepalive.count, 9, "Linux's");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Idle time before the first probe (TCP_KEEPIDLE; Linux 2 h).
    pub idle: Duration,
    /// Time between probes (TCP_KEEPINTVL; Linux 75 s).
    pub interval: Duration,
    /// Unanswered probes before the connection is given up (TCP_KEEPCNT; Linux 9).
    pub count: u8,
}

impl Default for Keepalive {
    fn default() -> Self {
        Self { idle: Duration::from_secs(7200), interval: Duration::from_secs(75), count: 9 }
    }
}

/// What `tcp_close` does with unsent data: SO_LINGER.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Linger {
    /// Send what is queued, then FIN, in the background.
    #[default]
    Background,
    /// Zero: what is queued is dropped, and RST sent at once. Else as `Background`: on Linux, the time is how long close(2)
    /// waits, and what is left then is sent all the same; closing does not wait here.
    Timeout(Duration),
}

/// Options of a connection, or of a listener for the connections that it accepts.
///
/// ```
/// use fs_core::{CongestionControl, Keepalive, TcpOptions};
///
/// let options = TcpOptions {
///     nodelay: true,
///     keepalive: Some(Keepalive::default()),
///     congestion_control: Some(CongestionControl::Bbr),
///     ..TcpOptions::default()
/// };
/// assert!(!options.cork);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    /// TCP_NODELAY: no Nagle (RFC 9293 3.7.4).
    pub nodelay: bool,
    /// SO_KEEPALIVE with its times.
    pub keepalive: Option<Keepalive>,
    /// SO_LINGER.
    pub linger: Linger,
    /// IP_TTL or IPV6_UNICAST_HOPS; `None` is 64.
    pub ttl: Option<u8>,
    /// TCP_CONGESTION; `None` is the configuration's.
    pub congestion_control: Option<CongestionControl>,
    /// SO_RCVBUF in bytes; `None`: auto-tuned up to the configuration's maximum. Set before the handshake it bounds the
    /// first window too, and the window scale, beyond which a later, larger one cannot reach.
    pub receive_buffer: Option<u32>,
    /// SO_SNDBUF in bytes; `None`: auto-tuned up to the configuration's maximum.
    pub send_buffer: Option<u32>,
    /// TCP_CORK: only full segments leave, at most 200 ms late; turning it off sends the rest.
    pub cork: bool,
    /// TCP_DEFER_ACCEPT (listeners): a connection is offered when its first data is there, or this time after
    /// its SYN; until then the handshake's last ACK is not taken for one.
    pub defer_accept: Option<Duration>,
    /// TCP_USER_TIMEOUT (RFC 9293 3.8.3, RFC 5482): how long data may stay unacknowledged, or the window closed.
    pub user_timeout: Option<Duration>,
    /// TCP_SYNCNT: how often an active open sends its SYN again; `None` is the configuration's.
    pub syn_retries: Option<u8>,
    /// TCP_NOTSENT_LOWAT: writable while fewer unsent bytes than this are queued.
    pub not_sent_low: Option<u32>,
    /// TCP_MAXSEG: upper bound of the segment size, announced in our SYN.
    pub max_segment: Option<u16>,
    /// TCP_WINDOW_CLAMP: upper bound of the window that we offer.
    pub window_clamp: Option<u32>,
    /// SO_OOBINLINE: urgent data stays in the stream.
    pub oob_inline: bool,
    /// SO_RCVLOWAT: readable only from this many bytes on (or at the end of the stream). 0 is 1.
    pub receive_low: u32,
    /// IP_TOS or IPV6_TCLASS without its two ECN bits, which are the stack's.
    pub tos: u8,
    /// SO_MAX_PACING_RATE in bytes a second; `None`: as congestion control says.
    pub pacing_max: Option<u64>,
    /// SO_BINDTODEVICE, before it connects or listens: packets leave by this interface, and those that come by another are for
    /// others. The scope id of a link-local address, ours or the peer's, binds to its interface as well (`Stack::set_scope`).
    pub device: Option<IfaceId>,
}

impl TcpOptions {
    /// Of those that a connection is given when it opens, none is set but perhaps TCP_NODELAY.
    pub(crate) fn is_plain(&self) -> bool {
        let Self { nodelay, defer_accept, syn_retries, .. } = *self;
        *self == Self { nodelay, defer_accept, syn_retries, ..Self::default() }
    }

    /// Bytes of the window that our SYN or SYN-ACK offers.
    pub(crate) fn initial_window(&self, tcp: &TcpConfig) -> u32 {
        let buffer = self.receive_buffer.map_or(tcp.receive_buffer_initial, |bytes| bytes.max(RECEIVE_BUFFER_MIN));
        self.window_clamp.map_or(u32::MAX, |clamp| clamp.max(1152)).min(buffer)
    }

    /// Bytes of the largest window that the scale of our SYN or SYN-ACK must reach: a buffer that was set does not grow.
    pub(crate) fn largest_window(&self, tcp: &TcpConfig) -> u32 {
        self.receive_buffer.unwrap_or(tcp.receive_buffer_max)
    }
}

/// How to connect.
#[derive(Clone, Copy, Debug)]
pub struct Connect {
    /// The peer.
    pub remote: SocketAddr,
    /// Our address and port; `None`, an unspecified address or port 0 lets the stack choose.
    pub local: Option<SocketAddr>,
    /// The connection's options.
    pub options: TcpOptions,
}

/// How to listen.
#[derive(Clone, Copy, Debug)]
pub struct Listen {
    /// Where; an unspecified address is a wildcard (of its family; `[::]` takes IPv4 too unless `v6_only`).
    pub at: SocketAddr,
    /// Connections that may wait to be accepted.
    pub backlog: u32,
    /// IPV6_V6ONLY.
    pub v6_only: bool,
    /// TCP_FASTOPEN: how many connections whose SYN carried data may wait for their handshake's last ACK. 0: none.
    pub fast_open: u32,
    /// Options of accepted connections.
    pub options: TcpOptions,
}

/// Which half of a connection to shut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// No more reads: later data is discarded by `recv` answering end of stream.
    Read,
    /// No more writes: FIN follows what is queued.
    Write,
    /// Both.
    Both,
}

/// TCP connection states as the outside sees them (RFC 9293 3.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TcpState {
    /// LISTEN.
    Listen,
    /// SYN-SENT.
    SynSent,
    /// SYN-RECEIVED.
    SynReceived,
    /// ESTABLISHED.
    Established,
    /// FIN-WAIT-1.
    FinWait1,
    /// FIN-WAIT-2.
    FinWait2,
    /// CLOSE-WAIT.
    CloseWait,
    /// CLOSING.
    Closing,
    /// LAST-ACK.
    LastAck,
    /// TIME-WAIT.
    TimeWait,
    /// CLOSED.
    Closed,
}
