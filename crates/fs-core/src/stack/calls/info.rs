//! TCP_INFO: state and statistics of a connection.

use crate::error::Error;
use crate::frame::FramePool;
use crate::socket::event::TcpId;
use crate::socket::info::TcpInfo;
use crate::stack::Stack;
use crate::tcb::flags::Flags;
use crate::tcb::syn_sent::SynSent;
use crate::tcb::timers::handshake_wait;
use crate::tcb::{Slot, Tcb};
use crate::time::Duration;

impl<P: FramePool> Stack<P> {
    /// Returns TCP_INFO.
    pub fn tcp_info(&self, id: TcpId) -> Result<TcpInfo, Error> {
        let index = self.slot_of(id)?;
        let state = Some(self.tcp_state(id)?);
        Ok(match self.slots.slot(index) {
            Slot::Open(tcb) => TcpInfo { state, ..self.open_info(tcb, index) },
            Slot::SynSent(s) => TcpInfo { state, ..self.opening_info(s) },
            Slot::Dead(dead) => TcpInfo { state, ..dead.info.as_deref().copied().unwrap_or_default() },
            Slot::Free { .. } => TcpInfo { state, ..TcpInfo::default() },
        })
    }

    /// Returns all fields of an open connection except the state.
    pub(crate) fn open_info(&self, tcb: &Tcb, index: u32) -> TcpInfo {
        let (conn_stats, now) = (self.slots.conn_stats(index), self.now);
        let (last_ack_recv_ms, last_data_recv_ms, last_data_sent_ms) = conn_stats.ages_ms(now);
        let (rwnd_limited_us, sndbuf_limited_us) = tcb.ext.as_ref().map_or((0, 0), |e| e.sender.limited.times_us(now));
        let info = TcpInfo {
            segs_in: conn_stats.segments_in,
            segs_out: conn_stats.segments_out,
            data_segs_in: conn_stats.data_in,
            data_segs_out: conn_stats.data_out,
            // Excludes our SYN until it is acknowledged.
            delivered: conn_stats.delivered - u32::from(tcb.flags.has(Flags::SYN_RECEIVED)),
            last_ack_recv_ms,
            last_data_recv_ms,
            last_data_sent_ms,
            busy_time_us: conn_stats.busy_us(now),
            rwnd_limited_us,
            sndbuf_limited_us,
            ..tcb.info(conn_stats)
        };
        self.info_of(tcb, info)
    }

    /// Adds the fields that come from path and configuration.
    fn info_of(&self, tcb: &Tcb, info: TcpInfo) -> TcpInfo {
        let (tcp, key) = (&self.config.tcp, tcb.key());
        let headers = if key.is_v6() { 60 } else { 40 };
        let path_mss = self.net.mss_to(tcb.path, key.remote_ip(), self.now);
        let wanted = tcb.ext.as_ref().map_or(0, |e| e.recv.max_segment);
        let most = if wanted == 0 { u16::MAX } else { wanted.max(crate::net::MSS_MIN) };
        let announced = u32::from(self.net.mss(tcb.path, key.is_v6()).min(most));
        TcpInfo {
            rto_us: whole_us(tcb.rto(tcp)),
            ato_us: whole_us(tcp.delayed_ack),
            pmtu: u32::from(path_mss) + headers,
            advmss: announced - if info.timestamps { 12 } else { 0 },
            ..info
        }
    }

    fn opening_info(&self, s: &SynSent) -> TcpInfo {
        let tcp = &self.config.tcp;
        TcpInfo {
            retransmits: s.retries,
            backoff: s.retries,
            total_retrans: u32::from(s.retries),
            rto_us: whole_us(handshake_wait(tcp.rto_initial, s.retries, tcp.rto_max)),
            unacked: 1,
            segs_out: 1 + u32::from(s.retries),
            max_pacing_rate: u64::MAX,
            congestion_control: s.options.congestion_control.unwrap_or(tcp.congestion_control),
            ..TcpInfo::default()
        }
    }
}

fn whole_us(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}
