//! TCP_INFO: what a connection knows of itself.

use crate::config::CongestionControl;
use crate::error::Error;
use crate::frame::FramePool;
use crate::socket::event::TcpId;
use crate::socket::options::TcpState;
use crate::stack::Stack;
use crate::tcb::cc::Control;
use crate::tcb::flags::Flags;
use crate::tcb::{Recovery, Slot, Tcb};

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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are Linux's and are documented there")]
pub struct TcpInfo {
    pub state: Option<TcpState>,
    pub ca_state: CaState,
    pub retransmits: u8,
    pub probes: u8,
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
    pub rto_us: u32,
    pub ato_us: u32,
    pub snd_mss: u32,
    pub rcv_mss: u32,
    pub unacked: u32,
    pub sacked: u32,
    pub lost: u32,
    pub retrans: u32,
    pub last_data_sent_ms: u32,
    pub last_data_recv_ms: u32,
    pub last_ack_recv_ms: u32,
    pub pmtu: u32,
    pub rcv_ssthresh: u32,
    pub rtt_us: u32,
    pub rttvar_us: u32,
    /// In segments; `u32::MAX >> 1` (Linux's infinity) before the first loss.
    pub snd_ssthresh: u32,
    /// In segments.
    pub snd_cwnd: u32,
    pub advmss: u32,
    pub reordering: u32,
    pub rcv_rtt_us: u32,
    pub rcv_space: u32,
    pub total_retrans: u32,
    pub pacing_rate: u64,
    pub max_pacing_rate: u64,
    pub bytes_acked: u64,
    pub bytes_received: u64,
    pub segs_out: u32,
    pub segs_in: u32,
    pub notsent_bytes: u32,
    pub min_rtt_us: u32,
    pub data_segs_in: u32,
    pub data_segs_out: u32,
    pub delivery_rate: u64,
    pub busy_time_us: u64,
    pub rwnd_limited_us: u64,
    pub sndbuf_limited_us: u64,
    pub delivered: u32,
    pub delivered_ce: u32,
    pub bytes_sent: u64,
    pub bytes_retrans: u64,
    pub dsack_dups: u32,
    pub reord_seen: u32,
    pub rcv_ooopack: u32,
    pub snd_wnd: u32,
    pub rcv_wnd: u32,
    pub congestion_control: CongestionControl,
    /// What BBR takes for the path's rate, in bytes a second (Linux `struct tcp_bbr_info`); 0 with the others.
    pub bandwidth: u64,
}

impl<P: FramePool> Stack<P> {
    /// TCP_INFO.
    pub fn tcp_info(&self, id: TcpId) -> Result<TcpInfo, Error> {
        let index = self.slot_of(id)?;
        let state = Some(self.tcp_state(id)?);
        Ok(match self.slots.slot(index) {
            Slot::Open(tcb) => TcpInfo { state, ..tcb.info() },
            Slot::SynSent(_) | Slot::Dead(_) | Slot::Free { .. } => TcpInfo { state, ..TcpInfo::default() },
        })
    }
}

impl Tcb {
    fn info(&self) -> TcpInfo {
        let mss = self.mss as u32;
        let out = self.snd_nxt.since(self.snd_una);
        let ext = self.ext.as_ref();
        let segments = |bytes: u32| bytes.div_ceil(mss);
        TcpInfo {
            ca_state: match self.recovery() {
                Recovery::Open if self.dup_acks > 0 => CaState::Disorder,
                Recovery::Open => CaState::Open,
                Recovery::Cwr { .. } => CaState::Cwr,
                Recovery::Fast { .. } => CaState::Recovery,
                Recovery::Loss { .. } => CaState::Loss,
            },
            retransmits: self.backoff,
            backoff: self.backoff,
            timestamps: self.flags.has(Flags::TIMESTAMPS),
            sack: self.flags.has(Flags::SACK),
            window_scaling: self.shifts != 0,
            ecn: self.flags.has(Flags::ECN),
            ecn_seen: self.flags.has(Flags::ECN_SEEN),
            delivered_ce: ext.map_or(0, |e| e.ecn.delivered_ce),
            snd_wscale: self.snd_shift(),
            rcv_wscale: self.rcv_shift(),
            snd_mss: mss,
            unacked: segments(out),
            sacked: ext.map_or(0, |e| segments(e.sacked)),
            lost: ext.map_or(0, |e| segments(e.lost)),
            retrans: ext.map_or(0, |e| segments(e.retransmitted)),
            rtt_us: self.rtt.srtt_us(),
            rttvar_us: self.rtt.rttvar_us(),
            snd_ssthresh: if self.window.ssthresh == u32::MAX { u32::MAX >> 1 } else { self.window.ssthresh / mss },
            snd_cwnd: self.window.cwnd / mss,
            snd_wnd: self.snd_wnd,
            rcv_wnd: self.rcv_wnd(),
            rcv_mss: self.rcv_mss(),
            syn_data: ext.is_some_and(|e| e.recv.syn_data),
            rcv_space: ext.map_or(0, |e| e.recv.autotune.figures().0),
            rcv_rtt_us: ext.map_or(0, |e| e.recv.autotune.figures().1),
            congestion_control: self.algorithm(),
            ..self.model_info()
        }
    }

    /// What pacing and the model of the path know.
    fn model_info(&self) -> TcpInfo {
        let Some(ext) = self.ext.as_ref() else { return TcpInfo { max_pacing_rate: u64::MAX, ..TcpInfo::default() } };
        let mut info = TcpInfo {
            // Linux's `~0` where there is no bound.
            max_pacing_rate: ext.pacing.max.unwrap_or(u64::MAX),
            pacing_rate: ext.pacing.rate(),
            ..TcpInfo::default()
        };
        if let Some(Control::Bbr(bbr)) = &ext.control {
            (info.delivery_rate, info.delivery_rate_app_limited) = bbr.rate.latest;
            info.bandwidth = bbr.bandwidth();
            info.min_rtt_us = bbr.min_rtt_us().unwrap_or(0);
        }
        info
    }
}
