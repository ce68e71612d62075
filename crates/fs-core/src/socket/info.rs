//! TCP_INFO: state and statistics of a connection.

use crate::config::CongestionControl;
use crate::socket::options::TcpState;

/// Congestion state as Linux names it (`enum tcp_ca_state`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum CaState {
    /// No sign of loss.
    #[default]
    Open = 0,
    /// Duplicate ACKs or SACKs, too few to act on.
    Disorder = 1,
    /// The window was reduced because of an ECN echo or a lost probe.
    Cwr = 2,
    /// Fast recovery.
    Recovery = 3,
    /// After a retransmission timeout.
    Loss = 4,
}

/// A connection's state, counters and estimates: the fields of Linux's `struct tcp_info`, under its
/// names. Packet counts are of segments, times are in microseconds, rates in bytes per second.
///
/// Fields that would cost much work per segment are not maintained; their documentation says so,
/// and they are 0. An active open that is not answered yet reports its timeouts. A closed
/// connection reports its last state.
///
/// ```
/// # let info = fastsock::TcpInfo::default();
/// println!("round trip {} µs, {} segments sent again", info.rtt_us, info.total_retrans);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are Linux's and are documented there")]
#[non_exhaustive]
pub struct TcpInfo {
    pub state: Option<TcpState>,
    pub ca_state: CaState,
    /// Consecutive timeouts.
    pub retransmits: u8,
    /// Unanswered window or keepalive probes.
    pub probes: u8,
    /// Number of times that the timeout was doubled.
    pub backoff: u8,
    pub timestamps: bool,
    pub sack: bool,
    pub window_scaling: bool,
    pub ecn: bool,
    /// At least one segment with ECT was received.
    pub ecn_seen: bool,
    /// Data in our SYN was acknowledged with the SYN (RFC 7413).
    pub syn_data: bool,
    pub snd_wscale: u8,
    pub rcv_wscale: u8,
    pub delivery_rate_app_limited: bool,
    /// The retransmission timeout, with its backoff.
    pub rto_us: u32,
    /// The delay of a delayed ACK.
    pub ato_us: u32,
    pub snd_mss: u32,
    /// Rounded up to a multiple of 64.
    pub rcv_mss: u32,
    /// Bytes in full segments, rounded up; the same holds for `sacked`, `lost` and `retrans`.
    pub unacked: u32,
    pub sacked: u32,
    pub lost: u32,
    pub retrans: u32,
    /// Time since a segment of the send queue was sent (and in the next fields: since one with
    /// payload, and since any, was received); before the first, since the connection opened. The
    /// millisecond fields, `busy_time_us` and the two after it have a resolution of 1.05 ms.
    pub last_data_sent_ms: u32,
    pub last_data_recv_ms: u32,
    pub last_ack_recv_ms: u32,
    /// Current path MTU.
    pub pmtu: u32,
    /// The largest window that the current receive buffer allows to offer.
    pub rcv_ssthresh: u32,
    pub rtt_us: u32,
    pub rttvar_us: u32,
    /// In segments; `u32::MAX >> 1` (Linux's infinity) before the first loss.
    pub snd_ssthresh: u32,
    /// In segments.
    pub snd_cwnd: u32,
    /// The MSS of our SYN, minus the space of each segment's timestamps.
    pub advmss: u32,
    /// Observed reordering of the path in segments: 3 to 300. Informational: the engine compensates
    /// reordering by RACK's time (RFC 8985).
    pub reordering: u32,
    pub rcv_rtt_us: u32,
    pub rcv_space: u32,
    /// Retransmitted segments, including tail loss probes; without those of the handshake once the
    /// connection is open.
    pub total_retrans: u32,
    pub pacing_rate: u64,
    pub max_pacing_rate: u64,
    /// Payload acknowledged by the peer, modulo 2^32. Excludes SYN and FIN.
    pub bytes_acked: u64,
    /// Payload received in order, modulo 2^32. Excludes SYN and FIN.
    pub bytes_received: u64,
    /// Includes segments of the handshake, and all received segments of the connection, also
    /// rejected ones.
    pub segs_out: u32,
    pub segs_in: u32,
    /// Bytes written and not yet sent.
    pub notsent_bytes: u32,
    /// Maintained by BBR, and by other algorithms from the first sign of loss on; 0 before.
    pub min_rtt_us: u32,
    /// Segments with payload; sent ones also with a FIN alone.
    pub data_segs_in: u32,
    pub data_segs_out: u32,
    /// Measured by BBR; 0 with other algorithms.
    pub delivery_rate: u64,
    /// Time during which data was queued or in flight.
    pub busy_time_us: u64,
    /// Time during which only the peer's window prevented sending.
    pub rwnd_limited_us: u64,
    /// Time during which everything was sent, while the application waited for space in the send
    /// buffer.
    pub sndbuf_limited_us: u64,
    /// Delivered segments, including the SYN.
    pub delivered: u32,
    /// Segments that were delivered with CE, according to ACKs.
    pub delivered_ce: u32,
    /// Payload sent for the first time, modulo 2^32, plus `bytes_retrans`.
    pub bytes_sent: u64,
    /// Retransmitted payload.
    pub bytes_retrans: u64,
    /// D-SACK blocks received (RFC 2883).
    pub dsack_dups: u32,
    /// Number of times that a segment arrived after one that was sent later.
    pub reord_seen: u32,
    /// Segments received out of order and kept.
    pub rcv_ooopack: u32,
    pub snd_wnd: u32,
    pub rcv_wnd: u32,
    pub congestion_control: CongestionControl,
    /// BBR's estimate of the path's rate, in bytes per second (Linux `struct tcp_bbr_info`); 0 with
    /// other algorithms.
    pub bandwidth: u64,
}
