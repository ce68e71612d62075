//! TCP_INFO under its names in code blocks.

use super::Engine;
use super::fds::State;
use fs_core::TcpInfo;
use fs_core::TcpState;

/// Returns Linux's number of a state.
fn state_number(state: TcpState) -> i64 {
    match state {
        TcpState::Established => 1,
        TcpState::SynSent => 2,
        TcpState::SynReceived => 3,
        TcpState::FinWait1 => 4,
        TcpState::FinWait2 => 5,
        TcpState::TimeWait => 6,
        TcpState::Closed => 7,
        TcpState::CloseWait => 8,
        TcpState::LastAck => 9,
        TcpState::Listen => 10,
        TcpState::Closing => 11,
    }
}

fn options(info: &TcpInfo) -> i64 {
    let bits = [info.timestamps, info.sack, info.window_scaling, info.ecn, info.ecn_seen, info.syn_data];
    bits.iter().enumerate().map(|(i, on)| i64::from(*on) << i).sum()
}

impl Engine {
    pub(super) fn info_of(&mut self, fd: i32) -> Result<Vec<(&'static str, i64)>, String> {
        self.stack.set_now(self.instant(self.now));
        let socket = self.fds.socket(fd).ok_or("TCP_INFO of something that is no socket")?;
        let info = match socket.state {
            State::Stream(id) => self.stack.tcp_info(id).map_err(|e| format!("TCP_INFO: {e}"))?,
            State::Listening(_) => in_state(TcpState::Listen),
            State::New | State::Udp(_) => in_state(TcpState::Closed),
        };
        Ok(named(&info))
    }
}

fn in_state(state: TcpState) -> TcpInfo {
    let mut info = TcpInfo::default();
    info.state = Some(state);
    info
}

fn named(i: &TcpInfo) -> Vec<(&'static str, i64)> {
    vec![
        ("tcpi_state", state_number(i.state.unwrap_or(TcpState::Closed))),
        ("tcpi_ca_state", i.ca_state as i64),
        ("tcpi_retransmits", i.retransmits.into()),
        ("tcpi_probes", i.probes.into()),
        ("tcpi_backoff", i.backoff.into()),
        ("tcpi_options", options(i)),
        ("tcpi_snd_wscale", i.snd_wscale.into()),
        ("tcpi_rcv_wscale", i.rcv_wscale.into()),
        ("tcpi_delivery_rate_app_limited", i.delivery_rate_app_limited.into()),
        ("tcpi_rto", i.rto_us.into()),
        ("tcpi_ato", i.ato_us.into()),
        ("tcpi_snd_mss", i.snd_mss.into()),
        ("tcpi_rcv_mss", i.rcv_mss.into()),
        ("tcpi_unacked", i.unacked.into()),
        ("tcpi_sacked", i.sacked.into()),
        ("tcpi_lost", i.lost.into()),
        ("tcpi_retrans", i.retrans.into()),
        ("tcpi_fackets", 0),
        ("tcpi_last_data_sent", i.last_data_sent_ms.into()),
        ("tcpi_last_ack_sent", 0),
        ("tcpi_last_data_recv", i.last_data_recv_ms.into()),
        ("tcpi_last_ack_recv", i.last_ack_recv_ms.into()),
        ("tcpi_pmtu", i.pmtu.into()),
        ("tcpi_rcv_ssthresh", i.rcv_ssthresh.into()),
        ("tcpi_rtt", i.rtt_us.into()),
        ("tcpi_rttvar", i.rttvar_us.into()),
        ("tcpi_snd_ssthresh", i.snd_ssthresh.into()),
        ("tcpi_snd_cwnd", i.snd_cwnd.into()),
        ("tcpi_advmss", i.advmss.into()),
        ("tcpi_reordering", i.reordering.into()),
        ("tcpi_rcv_rtt", i.rcv_rtt_us.into()),
        ("tcpi_rcv_space", i.rcv_space.into()),
        ("tcpi_total_retrans", i.total_retrans.into()),
        ("tcpi_pacing_rate", i.pacing_rate as i64),
        ("tcpi_max_pacing_rate", i.max_pacing_rate as i64),
        ("tcpi_bytes_acked", i.bytes_acked as i64),
        ("tcpi_bytes_received", i.bytes_received as i64),
        ("tcpi_segs_out", i.segs_out.into()),
        ("tcpi_segs_in", i.segs_in.into()),
        ("tcpi_notsent_bytes", i.notsent_bytes.into()),
        ("tcpi_min_rtt", i.min_rtt_us.into()),
        ("tcpi_data_segs_in", i.data_segs_in.into()),
        ("tcpi_data_segs_out", i.data_segs_out.into()),
        ("tcpi_delivery_rate", i.delivery_rate as i64),
        ("tcpi_busy_time", i.busy_time_us as i64),
        ("tcpi_rwnd_limited", i.rwnd_limited_us as i64),
        ("tcpi_sndbuf_limited", i.sndbuf_limited_us as i64),
        ("tcpi_delivered", i.delivered.into()),
        ("tcpi_delivered_ce", i.delivered_ce.into()),
        ("tcpi_bytes_sent", i.bytes_sent as i64),
        ("tcpi_bytes_retrans", i.bytes_retrans as i64),
        ("tcpi_dsack_dups", i.dsack_dups.into()),
        ("tcpi_reord_seen", i.reord_seen.into()),
        ("tcpi_rcv_ooopack", i.rcv_ooopack.into()),
        ("tcpi_snd_wnd", i.snd_wnd.into()),
        ("tcpi_rcv_wnd", i.rcv_wnd.into()),
    ]
}
