//! TCP_INFO: what a connection knows of itself.

use crate::config::CongestionControl;
use crate::socket::options::TcpState;

/// Congestion state as Linux names it (`enum tcp_ca_state`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum CaState {
    /// Nothing is wrong.
    #[default]
    Open = 0,
    /// Duplicate ACKs or SACKs, not enough to act upon.
    Disorder = 1,
    /// The window was reduced for an ECN echo or a lost probe's sake.
    Cwr = 2,
    /// Fast recovery.
    Recovery = 3,
    /// After a retransmission time-out.
    Loss = 4,
}

/// A connection's state, counters and estimates: the fields of Linux's `struct tcp_info`, under its names. Counts
/// of packets are of segments, times are in microseconds, rates in bytes a second.
///
/// What would cost much with every segment is not kept; such a field says so and is 0. Of an active open that is not
/// answered yet the time-outs are known, of a connection that is over what was true at its end.
///
/// ```
/// # let info = fs_core::TcpInfo::default();
/// println!("round trip {} µs, {} segments sent again", info.rtt_us, info.total_retrans);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are Linux's and are documented there")]
#[non_exhaustive]
pub struct TcpInfo {
    pub state: Option<TcpState>,
    pub ca_state: CaState,
    /// Consecutive time-outs.
    pub retransmits: u8,
    /// Window or keepalive probes that are not answered.
    pub probes: u8,
    /// How often the time-out was doubled.
    pub backoff: u8,
    pub timestamps: bool,
    pub sack: bool,
    pub window_scaling: bool,
    pub ecn: bool,
    /// At least one segment with ECT has come in.
    pub ecn_seen: bool,
    /// Data in our SYN was acknowledged with the SYN (RFC 7413).
    pub syn_data: bool,
    pub snd_wscale: u8,
    pub rcv_wscale: u8,
    pub delivery_rate_app_limited: bool,
    /// The retransmission time-out, backed off.
    pub rto_us: u32,
    /// How long an ACK is delayed.
    pub ato_us: u32,
    pub snd_mss: u32,
    /// Rounded up to a multiple of 64.
    pub rcv_mss: u32,
    /// Bytes, in full segments, rounded up; so are `sacked`, `lost` and `retrans`.
    pub unacked: u32,
    pub sacked: u32,
    pub lost: u32,
    pub retrans: u32,
    /// Since a segment of the send queue went out, since one with payload came, and since any came; before, since the
    /// connection opened. Times of this structure in milliseconds, and `busy_time_us` and the two behind it, are
    /// measured to 1.05 ms.
    pub last_data_sent_ms: u32,
    pub last_data_recv_ms: u32,
    pub last_ack_recv_ms: u32,
    /// What is known of the path now.
    pub pmtu: u32,
    /// The largest window that the receive buffer, as it is now, lets us offer.
    pub rcv_ssthresh: u32,
    pub rtt_us: u32,
    pub rttvar_us: u32,
    /// In segments; `u32::MAX >> 1` (Linux's infinity) before the first loss.
    pub snd_ssthresh: u32,
    /// In segments.
    pub snd_cwnd: u32,
    /// What our SYN announced, less the timestamps of each segment.
    pub advmss: u32,
    /// Over how many segments the path has been seen to reorder: 3 to 300. Only told: what it does to us is answered by
    /// RACK's time (RFC 8985).
    pub reordering: u32,
    pub rcv_rtt_us: u32,
    pub rcv_space: u32,
    /// Segments sent again, tail loss probes included; once the connection is open, without its handshake's.
    pub total_retrans: u32,
    pub pacing_rate: u64,
    pub max_pacing_rate: u64,
    /// Payload that the peer has acknowledged, modulo 2^32. Neither SYN nor FIN counts.
    pub bytes_acked: u64,
    /// Payload received in order, modulo 2^32. Neither SYN nor FIN counts.
    pub bytes_received: u64,
    /// With those of the handshake, and all that came for the connection, refused ones too.
    pub segs_out: u32,
    pub segs_in: u32,
    /// Written and not yet sent.
    pub notsent_bytes: u32,
    /// Kept by BBR, and by others from the first sign of trouble on; 0 before.
    pub min_rtt_us: u32,
    /// Those with payload; of ours also a FIN alone.
    pub data_segs_in: u32,
    pub data_segs_out: u32,
    /// Measured by BBR; not counted with others.
    pub delivery_rate: u64,
    /// How long something was queued or in flight.
    pub busy_time_us: u64,
    /// How long the peer's window was all that kept us from sending.
    pub rwnd_limited_us: u64,
    /// How long all was sent, and the application waited for room in the send buffer to write more.
    pub sndbuf_limited_us: u64,
    /// Our segments that have arrived, SYN included.
    pub delivered: u32,
    /// Segments whose ACKs said that they came with CE.
    pub delivered_ce: u32,
    /// Payload sent for the first time, modulo 2^32, and `bytes_retrans`.
    pub bytes_sent: u64,
    /// Payload sent again.
    pub bytes_retrans: u64,
    /// D-SACK blocks received (RFC 2883).
    pub dsack_dups: u32,
    /// How often a segment was seen to arrive after one sent later.
    pub reord_seen: u32,
    /// Segments that came out of order and were kept.
    pub rcv_ooopack: u32,
    pub snd_wnd: u32,
    pub rcv_wnd: u32,
    pub congestion_control: CongestionControl,
    /// What BBR takes for the path's rate, in bytes a second (Linux `struct tcp_bbr_info`); 0 with the others.
    pub bandwidth: u64,
}
