//! Builds a control block from a completed handshake.

use crate::config::TcpConfig;
use crate::flow::FlowKey;
use crate::frame_queue::FrameQueue;
use crate::net::Net;
use crate::net::neigh::PathId;
use crate::seq::SeqNum;
use crate::socket::options::TcpOptions;
use crate::tcb::cc::algorithm::Window;
use crate::tcb::cc::{self};
use crate::tcb::endpoints::Endpoints;
use crate::tcb::extension::{Addresses, Extension};
use crate::tcb::flags::Flags;
use crate::tcb::send::buffer::TxQueue;
use crate::tcb::send::room::initial_buffer;
use crate::tcb::send::rto::RttEstimator;
use crate::tcb::sequence::{ReceiveSequence, SendSequence, TsRecent};
use crate::tcb::timer_kind::TimerTick;
use crate::tcb::{State, Tcb};
use crate::time::{Instant, micros};
use crate::wire::options::SynOptions;

/// RFC 9293 3.7.1: the MSS if the peer's SYN has no MSS option.
const MSS_DEFAULT_V4: u16 = 536;
const MSS_DEFAULT_V6: u16 = 1220;
/// Bytes of a padded timestamp option: MSS options exclude them (RFC 6691), our segments carry
/// them.
const TIMESTAMPS_LEN: u16 = 12;

/// Result of a handshake.
pub(crate) struct Opening<'a> {
    pub(crate) key: FlowKey,
    pub(crate) generation: u32,
    pub(crate) iss: SeqNum,
    pub(crate) irs: SeqNum,
    /// The options of the peer's SYN.
    pub(crate) peer: SynOptions,
    /// The window scale that we offered.
    pub(crate) shift: u8,
    /// The window field of the segment that completed the handshake: not scaled if it was a SYN.
    pub(crate) window: u16,
    pub(crate) path: PathId,
    /// Route epoch of `path`.
    pub(crate) route_epoch: u8,
    /// When our SYN (or SYN-ACK) was sent, if it was sent only once.
    pub(crate) sample_from_us: Option<u32>,
    /// Number of its retransmissions.
    pub(crate) retries: u8,
    /// Both sides support ECN (RFC 3168 6.1.1).
    pub(crate) ecn: bool,
    pub(crate) options: &'a TcpOptions,
    /// See [`TcpOptions::is_plain`].
    pub(crate) is_plain: bool,
}

/// Returns the smallest shift with which a window of `bytes` fits its 16-bit field; at most 14 (RFC
/// 7323 2.3).
fn window_scale(bytes: u32) -> u8 {
    16u32.saturating_sub(bytes.leading_zeros()).min(14) as u8
}

impl TcpOptions {
    /// Returns the window scale to offer.
    pub(crate) fn offered_scale(&self, tcp: &TcpConfig) -> u8 {
        window_scale(self.largest_window(tcp))
    }
}

/// Returns the window field of a SYN or SYN-ACK, never scaled.
pub(crate) fn syn_window(initial: u32) -> u16 {
    initial.min(u16::MAX as u32) as u16
}

impl Opening<'_> {
    /// Makes the control block, in ESTABLISHED. `flow_label` returns RFC 6437's label for IPv6.
    pub(crate) fn tcb(self, tcp: &TcpConfig, net: &Net, now: Instant, flow_label: impl FnOnce(&FlowKey) -> u32) -> Tcb {
        let Opening { key, generation, iss, irs, peer, shift, window, path, sample_from_us, retries, .. } = self;
        let Opening { ecn, options, is_plain, route_epoch, .. } = self;
        let v6 = key.is_v6();
        let mut flags = Flags::default();
        flags.put(Flags::V6, v6);
        flags.put(Flags::TIMESTAMPS, tcp.timestamps && peer.timestamps.is_some());
        flags.put(Flags::ECN, ecn);
        flags.put(Flags::SACK, tcp.sack && peer.sack_permitted);
        let scaled = tcp.window_scaling && peer.window_scale.is_some();
        let shifts = if scaled { shift | peer.window_scale.unwrap_or(0) << 4 } else { 0 };
        let default_mss = if v6 { MSS_DEFAULT_V6 } else { MSS_DEFAULT_V4 };
        // Without a path no size is known: a later path splits segments if necessary.
        let of_path = if path == PathId::NOWHERE { u16::MAX } else { net.mss_to(path, key.remote_ip(), now) };
        let most = options.max_segment.unwrap_or(u16::MAX).min(of_path).max(crate::net::MSS_MIN);
        let mss = peer.mss.unwrap_or(default_mss).clamp(crate::net::MSS_MIN, most);
        let mss = mss - if flags.has(Flags::TIMESTAMPS) { TIMESTAMPS_LEN } else { 0 };
        let mut rtt = RttEstimator::new();
        if let Some(sent) = sample_from_us {
            rtt.sample(micros(now).wrapping_sub(sent));
        } else {
            rtt.distrust();
        }
        // RFC 5681 3.1: one segment after a lost SYN or SYN-ACK. As Linux (`tcp_init_transfer`),
        // only after the second loss: with an initial timeout of 1 s (RFC 6298 2.1) one timeout may
        // well be spurious.
        let initial_segments = if retries > 1 { 1 } else { tcp.initial_window };
        let offered = syn_window(options.initial_window(tcp)) as u32;
        let addresses = match key {
            FlowKey::V4 { .. } => None,
            FlowKey::V6 { local, remote, .. } => Some(Addresses { local, remote, flow_label: flow_label(&key) }),
        };
        let mut tcb = Tcb {
            ends: Endpoints::new(&key),
            generation,
            rcv: ReceiveSequence::new(irs, offered),
            snd: SendSequence::new(iss, irs, window, window >> (shifts >> 4).min(15), initial_buffer(tcp.send_buffer)),
            ts_recent: TsRecent::new(peer.timestamps.map_or(0, |t| t.val)),
            rx: FrameQueue::new(),
            shifts,
            dup_acks: 0,
            rcv_mss_64: crate::tcb::recv::ack::initial_rcv_mss_64(mss),
            state: State::Established,
            flags,
            tx: TxQueue::new(),
            window: Window::new(cc::initial_window(mss as u32, initial_segments)),
            rtt,
            timer: TimerTick::default(),
            armed_at: 0,
            mss,
            backoff: 0,
            route_epoch,
            path,
            rcv_buf_k: 0,
            unacked: 0,
            ext: Extension::new(addresses),
        };
        tcb.set_rcv_buf(tcp.receive_buffer_initial);
        tcb.flags.set_quick(crate::tcb::recv::ack::QUICK_MAX);
        tcb.use_algorithm(options.congestion_control.unwrap_or(tcp.congestion_control), now);
        tcb.inherit(options, is_plain, now);
        if !is_plain && options.device.is_some() {
            tcb.ext_mut().device = options.device;
        }
        tcb
    }
}

impl Tcb {
    /// Sets the options of the listener that accepts the connection. `is_plain`: see
    /// [`TcpOptions::is_plain`].
    pub(crate) fn inherit(&mut self, options: &TcpOptions, is_plain: bool, now: Instant) {
        if is_plain {
            self.flags.put(Flags::NODELAY, options.nodelay);
        } else {
            self.apply(options, now);
        }
    }
}
