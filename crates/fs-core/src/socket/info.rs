//! TCP_INFO: what a connection knows of itself.

use crate::config::CongestionControl;
use crate::error::Error;
use crate::frame::FramePool;
use crate::socket::event::TcpId;
use crate::socket::options::TcpState;
use crate::stack::Stack;
use crate::tcb::cc::Control;
use crate::tcb::flags::Flags;
use crate::tcb::send::sack::DUP_THRESH;
use crate::tcb::seq::SeqNum;
use crate::tcb::syn_sent::SynSent;
use crate::tcb::tally::Tally;
use crate::tcb::timers::handshake_wait;
use crate::tcb::{Recovery, Slot, State, Tcb};
use crate::time::Duration;

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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are Linux's and are documented there")]
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

impl<P: FramePool> Stack<P> {
    /// TCP_INFO.
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

    /// Of an open connection, but for the state.
    pub(crate) fn open_info(&self, tcb: &Tcb, index: u32) -> TcpInfo {
        let (tally, now) = (&self.slots.tally(index, self.turn.tick), self.now);
        let (last_ack_recv_ms, last_data_recv_ms, last_data_sent_ms) = tally.ages_ms(now);
        let (rwnd_limited_us, sndbuf_limited_us) = tcb.ext.as_ref().map_or((0, 0), |e| e.sender.limited.times_us(now));
        let info = TcpInfo {
            segs_in: tally.segments_in,
            segs_out: tally.segments_out,
            data_segs_in: tally.data_in,
            data_segs_out: tally.data_out,
            // Our SYN counts when it is acknowledged.
            delivered: tally.delivered - u32::from(tcb.flags.has(Flags::SYN_RECEIVED)),
            last_ack_recv_ms,
            last_data_recv_ms,
            last_data_sent_ms,
            busy_time_us: tally.busy_us(now),
            rwnd_limited_us,
            sndbuf_limited_us,
            ..tcb.info(tally)
        };
        self.info_of(tcb, info)
    }

    /// What the path and the configuration add.
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

impl Tcb {
    fn info(&self, origin: &Tally) -> TcpInfo {
        let mss = self.mss as u32;
        let out = self.snd_nxt.since(self.snd_una);
        let ext = self.ext.as_ref();
        let segments = |bytes: u32| bytes.div_ceil(mss);
        let persist = self.flags.has(Flags::PERSIST);
        // With SACK a duplicate ACK that names nothing is none (Linux `tcp_left_out`).
        let counted = !persist && self.dup_acks > 0 && !self.flags.has(Flags::SACK);
        let disorder = counted || ext.is_some_and(|e| e.sacked > 0);
        TcpInfo {
            ca_state: match self.recovery() {
                Recovery::Open if disorder => CaState::Disorder,
                Recovery::Open => CaState::Open,
                Recovery::Cwr { .. } => CaState::Cwr,
                Recovery::Fast { .. } => CaState::Recovery,
                Recovery::Loss { .. } => CaState::Loss,
            },
            probes: if persist { self.dup_acks } else { ext.map_or(0, |e| e.keepalive_probes) },
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
            reordering: self.loss().map_or(0, |l| l.reordering).max(DUP_THRESH),
            snd_ssthresh: if self.window.ssthresh == u32::MAX { u32::MAX >> 1 } else { self.window.ssthresh / mss },
            snd_cwnd: self.window.cwnd / mss,
            snd_wnd: self.snd_wnd,
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

    /// Bytes since the connection began, and what loss recovery has counted.
    fn byte_info(&self, origin: &Tally) -> TcpInfo {
        let past_syn = |at: SeqNum, start: SeqNum| at.since(start + 1);
        // A FIN takes a number too.
        let fin_received = u32::from(!self.state.can_receive());
        let fin_sent = u32::from(!self.state.can_send() && !self.has_unsent());
        let fin_acked = u32::from(self.state == State::FinWait2);
        let once = past_syn(self.snd_nxt, origin.iss).wrapping_sub(fin_sent);
        let info = TcpInfo {
            bytes_acked: past_syn(self.snd_una, origin.iss).wrapping_sub(fin_acked).into(),
            bytes_received: past_syn(self.rcv_nxt, origin.irs).wrapping_sub(fin_received).into(),
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
