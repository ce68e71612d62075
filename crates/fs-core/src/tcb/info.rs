//! TCP_INFO: the fields from the control block.

use crate::seq::SeqNum;
use crate::socket::info::{CaState, TcpInfo};
use crate::tcb::cc::Control;
use crate::tcb::connection_stats::ConnectionStats;
use crate::tcb::extension::Recovery;
use crate::tcb::flags::Flags;
use crate::tcb::send::cursor::DUP_THRESH;
use crate::tcb::timer_kind::TimerKind;
use crate::tcb::{State, Tcb};

impl Tcb {
    pub(crate) fn info(&self, origin: &ConnectionStats) -> TcpInfo {
        let mss = self.mss as u32;
        let out = self.snd.outstanding();
        let ext = self.ext.as_ref();
        let segments = |bytes: u32| bytes.div_ceil(mss);
        // With SACK, a duplicate ACK without blocks does not count (Linux `tcp_left_out`).
        let counted = self.dup_acks > 0 && !self.flags.has(Flags::SACK);
        let persist = self.flags.timer_is(TimerKind::Persist);
        let disorder = counted || ext.is_some_and(|e| e.sacked > 0);
        TcpInfo {
            ca_state: match self.recovery() {
                Recovery::Open if disorder => CaState::Disorder,
                Recovery::Open => CaState::Open,
                Recovery::Cwr { .. } => CaState::Cwr,
                Recovery::Fast { .. } => CaState::Recovery,
                Recovery::Loss { .. } => CaState::Loss,
            },
            probes: ext.map_or(0, |e| {
                if persist { e.sender.window_probes } else { e.keepalive_probes.try_into().unwrap_or(u8::MAX) }
            }),
            backoff: self.backoff,
            timestamps: self.flags.has(Flags::TIMESTAMPS),
            sack: self.flags.has(Flags::SACK),
            window_scaling: self.shifts != 0,
            ecn: self.flags.has(Flags::ECN),
            ecn_seen: self.flags.has(Flags::ECN_SEEN),
            delivered_ce: ext.map_or(0, |e| e.delivered_ce),
            snd_wscale: self.snd_shift(),
            rcv_wscale: self.rcv_shift(),
            snd_mss: mss,
            unacked: segments(out),
            sacked: ext.map_or(0, |e| segments(e.sacked)),
            lost: ext.map_or(0, |e| segments(e.lost)),
            retrans: ext.map_or(0, |e| segments(e.retransmitted)),
            rtt_us: self.rtt.srtt_us(),
            rttvar_us: self.rtt.rttvar_us(),
            reordering: self.loss().map_or(0, |l| l.reordering).max(DUP_THRESH),
            snd_ssthresh: if self.window.ssthresh == u32::MAX { u32::MAX >> 1 } else { self.window.ssthresh / mss },
            snd_cwnd: self.window.cwnd / mss,
            snd_wnd: self.snd.wnd(),
            rcv_wnd: self.rcv_wnd(),
            rcv_mss: self.rcv_mss(),
            rcv_ssthresh: self.rcv_buf().min(ext.map_or(u32::MAX, |e| e.recv.window_clamp())),
            rcv_ooopack: ext.map_or(0, |e| e.recv.out_of_order),
            notsent_bytes: self.unsent(),
            syn_data: ext.is_some_and(|e| e.recv.syn_data),
            rcv_space: origin.tune.figures().0,
            rcv_rtt_us: origin.tune.figures().1,
            congestion_control: self.algorithm(),
            ..self.byte_info(origin)
        }
    }

    /// Returns the bytes since the connection began, and loss recovery's counters.
    fn byte_info(&self, origin: &ConnectionStats) -> TcpInfo {
        let past_syn = |at: SeqNum, start: SeqNum| at.since(start + 1);
        // A FIN takes a sequence number, too.
        let fin_received = u32::from(!self.state.can_receive());
        let fin_sent = u32::from(!self.state.can_send() && !self.has_unsent());
        let fin_acked = u32::from(self.state == State::FinWait2);
        let once = past_syn(self.snd.nxt(), origin.iss).wrapping_sub(fin_sent);
        let info = TcpInfo {
            bytes_acked: past_syn(self.snd.una(), origin.iss).wrapping_sub(fin_acked).into(),
            bytes_received: past_syn(self.rcv.nxt(), origin.irs).wrapping_sub(fin_received).into(),
            bytes_sent: once.into(),
            ..self.model_info()
        };
        let Some(loss) = self.loss() else { return info };
        TcpInfo {
            retransmits: loss.time_outs,
            total_retrans: loss.total_retransmits,
            bytes_retrans: loss.bytes_retransmitted,
            bytes_sent: info.bytes_sent + loss.bytes_retransmitted,
            dsack_dups: loss.dsacks,
            reord_seen: loss.reorderings,
            min_rtt_us: if info.min_rtt_us == 0 { loss.rack.min_rtt_us() } else { info.min_rtt_us },
            ..info
        }
    }

    /// Returns the fields from pacing and the path model.
    fn model_info(&self) -> TcpInfo {
        let Some(ext) = self.ext.as_ref() else { return TcpInfo { max_pacing_rate: u64::MAX, ..TcpInfo::default() } };
        let mut info = TcpInfo {
            // Linux's `~0` for no limit.
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
