//! Socket options.

use crate::config::{CongestionControl, TcpConfig};
use crate::frame::IfaceId;
use crate::time::Duration;
use core::net::SocketAddr;

/// Smallest receive buffer in bytes.
pub(crate) const RECEIVE_BUFFER_MIN: u32 = 2048;

/// Keepalive parameters: RFC 9293 3.8.4.
///
/// ```
/// use fastsock::Keepalive;
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
    /// Unanswered probes before the connection is aborted (TCP_KEEPCNT; Linux 9).
    pub count: u8,
}

impl Default for Keepalive {
    fn default() -> Self {
        Self { idle: Duration::from_secs(7200), interval: Duration::from_secs(75), count: 9 }
    }
}

/// Treatment of unsent data by `tcp_close`: SO_LINGER.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Linger {
    /// Queued data is sent in the background, then FIN.
    #[default]
    Background,
    /// Zero: queued data is dropped, and RST is sent at once. Otherwise as `Background`: on Linux
    /// the time is how long close(2) blocks, and the rest is still sent afterwards; closing does
    /// not block here.
    Timeout(Duration),
}

/// Options of a connection, or of a listener for the connections that it accepts.
///
/// ```
/// use fastsock::{CongestionControl, Keepalive, TcpOptions};
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
    /// TCP_NODELAY: disables Nagle's algorithm (RFC 9293 3.7.4).
    pub nodelay: bool,
    /// SO_KEEPALIVE and its parameters.
    pub keepalive: Option<Keepalive>,
    /// SO_LINGER.
    pub linger: Linger,
    /// IP_TTL or IPV6_UNICAST_HOPS; `None` means 64.
    pub ttl: Option<u8>,
    /// TCP_CONGESTION; `None` means the configuration's default.
    pub congestion_control: Option<CongestionControl>,
    /// SO_RCVBUF in bytes; `None`: auto-tuned up to the configuration's maximum. If set before the
    /// handshake, it also bounds the first window and the window scale. A larger value set later
    /// cannot exceed what that scale reaches.
    pub receive_buffer: Option<u32>,
    /// SO_SNDBUF in bytes; `None`: auto-tuned up to the configuration's maximum.
    pub send_buffer: Option<u32>,
    /// TCP_CORK: only full segments are sent, or partial ones after 200 ms. Clearing it sends the
    /// rest.
    pub cork: bool,
    /// TCP_DEFER_ACCEPT (listeners): a connection is reported when its first data has arrived, or
    /// this time after its SYN. Until then the handshake's final ACK is ignored.
    pub defer_accept: Option<Duration>,
    /// TCP_USER_TIMEOUT (RFC 9293 3.8.3, RFC 5482): maximum time for which data may stay
    /// unacknowledged, or the window closed.
    pub user_timeout: Option<Duration>,
    /// TCP_SYNCNT: number of SYN retransmissions of an active open; `None` means the
    /// configuration's value.
    pub syn_retries: Option<u8>,
    /// TCP_NOTSENT_LOWAT: writable while fewer unsent bytes than this are queued.
    pub not_sent_low: Option<u32>,
    /// TCP_MAXSEG: upper bound of the segment size, announced in our SYN.
    pub max_segment: Option<u16>,
    /// TCP_WINDOW_CLAMP: upper bound of the offered window.
    pub window_clamp: Option<u32>,
    /// SO_OOBINLINE: urgent data stays in the stream.
    pub oob_inline: bool,
    /// SO_RCVLOWAT: readable only with at least this many bytes, or at the end of the stream. 0
    /// means 1.
    pub receive_low: u32,
    /// IP_TOS or IPV6_TCLASS without its two ECN bits, which belong to the stack.
    pub tos: u8,
    /// SO_MAX_PACING_RATE in bytes per second; `None`: determined by congestion control.
    pub pacing_max: Option<u64>,
    /// SO_BINDTODEVICE, set before connecting or listening: packets leave by this interface, and
    /// the socket ignores packets that arrive by another. The scope id of a link-local address,
    /// ours or the peer's, binds to its interface as well (`Stack::set_scope`).
    pub device: Option<IfaceId>,
}

impl TcpOptions {
    /// Returns true if none of the options that a new connection inherits is set, except perhaps
    /// TCP_NODELAY.
    pub(crate) fn is_plain(&self) -> bool {
        let Self { nodelay, defer_accept, syn_retries, .. } = *self;
        *self == Self { nodelay, defer_accept, syn_retries, ..Self::default() }
    }

    /// Returns the window, in bytes, that our SYN or SYN-ACK offers.
    pub(crate) fn initial_window(&self, tcp: &TcpConfig) -> u32 {
        let buffer = self.receive_buffer.map_or(tcp.receive_buffer_initial, |bytes| bytes.max(RECEIVE_BUFFER_MIN));
        self.window_clamp.map_or(u32::MAX, |clamp| clamp.max(1152)).min(buffer)
    }

    /// Returns the largest window, in bytes, that the scale of our SYN or SYN-ACK must be able to
    /// express. A buffer size that was set does not grow.
    pub(crate) fn largest_window(&self, tcp: &TcpConfig) -> u32 {
        self.receive_buffer.unwrap_or(tcp.receive_buffer_max)
    }
}

/// Parameters of an active open.
#[derive(Clone, Copy, Debug)]
pub struct Connect {
    /// The peer.
    pub remote: SocketAddr,
    /// Local address and port. With `None`, an unspecified address or port 0, the stack chooses.
    pub local: Option<SocketAddr>,
    /// The connection's options.
    pub options: TcpOptions,
}

/// Parameters of a listener.
#[derive(Clone, Copy, Debug)]
pub struct Listen {
    /// Listen address. An unspecified address is a wildcard (of its family; `[::]` includes IPv4
    /// unless `v6_only`).
    pub at: SocketAddr,
    /// Maximum number of connections in the accept queue.
    pub backlog: u32,
    /// IPV6_V6ONLY.
    pub v6_only: bool,
    /// TCP_FASTOPEN: maximum number of connections opened by data in a SYN whose handshake is not
    /// complete. 0 disables it.
    pub fast_open: u32,
    /// Options of accepted connections.
    pub options: TcpOptions,
}

/// Direction of a connection to shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Receiving: `recv` discards later data and returns end of stream.
    Read,
    /// Sending: FIN follows the queued data.
    Write,
    /// Both directions.
    Both,
}

/// TCP connection states as seen from outside (RFC 9293 3.3.2).
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
