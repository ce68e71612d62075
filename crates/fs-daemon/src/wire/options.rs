//! What applications set and ask (setsockopt, TCP_INFO): from a channel's block to the engine, and back.

use fs_compat::TcpStream;
use fs_core::{CongestionControl, Keepalive, TcpInfo, TcpOptions, TcpState};
use fs_shm::Channel;
use fs_shm::channel::{Algorithm, Answer, INFO, Options};
use std::time::Duration;

/// What a listener's connections inherit, and what only listeners have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListenerOptions {
    pub(crate) inherited: Options,
    /// TCP_DEFER_ACCEPT in seconds; 0: off.
    pub(crate) defer_accept: u32,
    /// TCP_FASTOPEN: connections that data in a SYN may have opened at once; 0: off.
    pub(crate) fast_open: u32,
}

impl ListenerOptions {
    pub(super) fn on_core(&self) -> TcpOptions {
        let defer_accept = (self.defer_accept != 0).then(|| Duration::from_secs(self.defer_accept.into()));
        TcpOptions { defer_accept, ..on_core(&self.inherited) }
    }
}

/// What the process has asked for so far.
#[derive(Debug)]
pub(super) struct SocketOptions {
    seen: u32,
    quick: u32,
    options: Options,
}

impl SocketOptions {
    /// What stands in the channel.
    pub(super) fn of(channel: &Channel<'_>) -> Self {
        // The count first: what changes after it is noticed.
        Self { seen: channel.asks(), quick: 0, options: channel.peer_options() }
    }

    /// For a connection that has come: what its listener had set.
    pub(super) fn inherited(options: Options) -> Self {
        Self { seen: 0, quick: 0, options }
    }

    /// For the connection that is to be made.
    pub(super) fn options(&self) -> TcpOptions {
        on_core(&self.options)
    }

    /// Puts what has changed in force, and answers questions. Cheap when there is nothing.
    #[inline]
    pub(super) fn heed(&mut self, channel: &Channel<'_>, stream: &TcpStream) {
        let asks = channel.asks();
        if asks != self.seen {
            self.seen = asks;
            self.look(channel, stream);
        }
    }

    #[cold]
    fn look(&mut self, channel: &Channel<'_>, stream: &TcpStream) {
        let options = channel.peer_options();
        if options != self.options {
            self.options = options;
            // Only a connection that is over has none; whoever moves its bytes finds that out.
            let _over = stream.set_options(on_core(&options));
        }
        let (quick, on) = channel.quickack();
        if quick != self.quick {
            self.quick = quick;
            // As above.
            let _over = stream.set_quickack(on);
        }
        if let Some(question) = channel.question()
            && let Some(answer) = answer(stream)
        {
            channel.answer(question, &answer);
        }
    }
}

/// `None`: the connection is over.
fn answer(stream: &TcpStream) -> Option<Answer> {
    let info = stream.info().ok()?;
    let (_, unacknowledged) = stream.queued().ok()?;
    let congestion = Algorithm::from_name(info.congestion_control.name().as_bytes());
    Some(Answer { unacknowledged, unsent: info.notsent_bytes, congestion, info: linux(&info) })
}

/// A process may have written anything: what the engine does not bound is bounded here, as setsockopt(2) does.
fn on_core(options: &Options) -> TcpOptions {
    // All of them, so that a new one is not forgotten here. SO_LINGER is done where the process closes.
    let Options {
        nodelay,
        cork,
        keepalive,
        reset_on_close: _,
        syn_retries,
        keep_count,
        ttl,
        tos,
        congestion,
        keep_idle,
        keep_interval,
        user_timeout,
        max_segment,
        not_sent_low,
        window_clamp,
        receive_buffer,
        send_buffer,
        pacing,
    } = *options;
    let given = |value: u32| (value != 0).then_some(value);
    let seconds = |value: u32, usual: Duration| match value {
        0 => usual,
        // MAX_TCP_KEEPIDLE, MAX_TCP_KEEPINTVL of include/net/tcp.h.
        value => Duration::from_secs(value.min(32_767).into()),
    };
    let usual = Keepalive::default();
    TcpOptions {
        nodelay,
        cork,
        keepalive: keepalive.then(|| Keepalive {
            idle: seconds(keep_idle, usual.idle),
            interval: seconds(keep_interval, usual.interval),
            count: if keep_count == 0 { usual.count } else { keep_count.min(127) },
        }),
        ttl: (ttl != 0).then_some(ttl),
        tos,
        congestion_control: congestion.and_then(|algorithm| CongestionControl::from_name(algorithm.name())),
        user_timeout: given(user_timeout).map(|ms| Duration::from_millis(ms.into())),
        // 88 is Linux's TCP_MIN_MSS.
        max_segment: given(max_segment).map(|bytes| bytes.clamp(88, 32_767) as u16),
        syn_retries: (syn_retries != 0).then(|| syn_retries.min(127)),
        not_sent_low: given(not_sent_low),
        window_clamp: given(window_clamp),
        receive_buffer: given(receive_buffer),
        send_buffer: given(send_buffer),
        pacing_max: (pacing != 0).then_some(pacing),
        // SO_RCVLOWAT and SO_OOBINLINE are done where the process reads.
        ..TcpOptions::default()
    }
}

/// `struct tcp_info` of linux/tcp.h (6.12), in its bytes.
fn linux(info: &TcpInfo) -> [u8; INFO] {
    let mut bytes = Fields { bytes: [0; INFO], at: 0 };
    let options = [info.timestamps, info.sack, info.window_scaling, info.ecn, info.ecn_seen, info.syn_data];
    let options = options.iter().rev().fold(0, |bits, &bit| bits << 1 | u8::from(bit));
    bytes.u8([state(info.state), info.ca_state as u8, info.retransmits, info.probes, info.backoff, options]);
    bytes.u8([info.snd_wscale & 15 | info.rcv_wscale << 4, u8::from(info.delivery_rate_app_limited)]);
    bytes.u32([info.rto_us, info.ato_us, info.snd_mss, info.rcv_mss, info.unacked, info.sacked, info.lost]);
    // No FACK; the time of the last ACK sent is not kept by Linux either.
    bytes.u32([info.retrans, 0, info.last_data_sent_ms, 0, info.last_data_recv_ms, info.last_ack_recv_ms, info.pmtu]);
    bytes.u32([info.rcv_ssthresh, info.rtt_us, info.rttvar_us, info.snd_ssthresh, info.snd_cwnd, info.advmss]);
    bytes.u32([info.reordering, info.rcv_rtt_us, info.rcv_space, info.total_retrans]);
    bytes.u64([info.pacing_rate, info.max_pacing_rate, info.bytes_acked, info.bytes_received]);
    bytes.u32([
        info.segs_out,
        info.segs_in,
        info.notsent_bytes,
        info.min_rtt_us,
        info.data_segs_in,
        info.data_segs_out,
    ]);
    bytes.u64([info.delivery_rate, info.busy_time_us, info.rwnd_limited_us, info.sndbuf_limited_us]);
    bytes.u32([info.delivered, info.delivered_ce]);
    bytes.u64([info.bytes_sent, info.bytes_retrans]);
    bytes.u32([info.dsack_dups, info.reord_seen, info.rcv_ooopack, info.snd_wnd, info.rcv_wnd]);
    bytes.bytes
}

/// Fields one behind the other.
struct Fields {
    bytes: [u8; INFO],
    at: usize,
}

impl Fields {
    fn put(&mut self, value: &[u8]) {
        if let Some(room) = self.bytes.get_mut(self.at..self.at + value.len()) {
            room.copy_from_slice(value);
            self.at += value.len();
        }
    }

    fn u8<const N: usize>(&mut self, values: [u8; N]) {
        self.put(&values);
    }

    fn u32<const N: usize>(&mut self, values: [u32; N]) {
        values.iter().for_each(|value| self.put(&value.to_ne_bytes()));
    }

    fn u64<const N: usize>(&mut self, values: [u64; N]) {
        values.iter().for_each(|value| self.put(&value.to_ne_bytes()));
    }
}

/// As `include/net/tcp_states.h` numbers them.
fn state(state: Option<TcpState>) -> u8 {
    match state {
        Some(TcpState::Established) => 1,
        Some(TcpState::SynSent) => 2,
        Some(TcpState::SynReceived) => 3,
        Some(TcpState::FinWait1) => 4,
        Some(TcpState::FinWait2) => 5,
        Some(TcpState::TimeWait) => 6,
        Some(TcpState::Closed) | None => 7,
        Some(TcpState::CloseWait) => 8,
        Some(TcpState::LastAck) => 9,
        Some(TcpState::Listen) => 10,
        Some(TcpState::Closing) => 11,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field<const N: usize>(bytes: &[u8; INFO], at: usize) -> [u8; N] {
        bytes[at..at + N].try_into().unwrap()
    }

    #[test]
    fn each_congestion_control_has_one_name_on_both_sides() {
        for &algorithm in CongestionControl::ALL {
            let of_process = Algorithm::from_name(algorithm.name().as_bytes()).expect("fs-shm has one of that name");
            let options = Options { congestion: Some(of_process), ..Options::default() };
            assert_eq!(on_core(&options).congestion_control, Some(algorithm));
        }
    }

    /// Offsets as in `struct tcp_info` of linux/tcp.h.
    #[test]
    fn tcp_info_has_linuxs_layout() {
        let info = TcpInfo {
            state: Some(TcpState::CloseWait),
            sack: true,
            syn_data: true,
            snd_wscale: 7,
            rcv_wscale: 9,
            rto_us: 204_000,
            snd_mss: 1448,
            pmtu: 1500,
            rtt_us: 123,
            advmss: 1447,
            total_retrans: 5,
            pacing_rate: 1 << 40,
            bytes_received: 77,
            segs_in: 6,
            notsent_bytes: 8,
            delivery_rate: 99,
            delivered_ce: 4,
            bytes_retrans: 1 << 33,
            rcv_wnd: 65_535,
            ..TcpInfo::default()
        };
        let bytes = linux(&info);
        assert_eq!((bytes[0], bytes[5], bytes[6]), (8, 2 | 32, 7 | 9 << 4));
        for (at, value) in [(8, 204_000), (16, 1448), (60, 1500), (68, 123), (84, 1447), (100, 5), (140, 6), (144, 8)] {
            assert_eq!(u32::from_ne_bytes(field(&bytes, at)), value, "at {at}");
        }
        for (at, value) in [(104, 1 << 40), (128, 77), (160, 99), (208, 1 << 33)] {
            assert_eq!(u64::from_ne_bytes(field(&bytes, at)), value, "at {at}");
        }
        assert_eq!(u32::from_ne_bytes(field(&bytes, 196)), 4);
        assert_eq!(u32::from_ne_bytes(field(&bytes, 232)), 65_535);
    }

    #[test]
    fn what_a_process_scribbles_is_bounded() {
        let wild = Options {
            keepalive: true,
            syn_retries: 255,
            keep_count: 255,
            keep_idle: u32::MAX,
            keep_interval: u32::MAX,
            max_segment: 1,
            ..Options::default()
        };
        let options = on_core(&wild);
        let keepalive = options.keepalive.unwrap();
        assert_eq!((keepalive.idle.as_secs(), keepalive.interval.as_secs(), keepalive.count), (32_767, 32_767, 127));
        assert_eq!((options.max_segment, options.syn_retries), (Some(88), Some(127)));
        let plain = on_core(&Options::default());
        assert_eq!(plain, TcpOptions::default());
    }
}
