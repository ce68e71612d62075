//! One connection: its control block and its state machine.
//!
//! A connection's slot is an enum with one payload per stage; a transition replaces the payload:
//!
//! `SynSent` (active open) → `Open` (synchronized states) → `Dead` (closed, but the application
//! still holds its handle) → `Free`. A passive open is an entry of the SYN cache (`rx::syn`) until
//! its final ACK, and TIME-WAIT is a compact record (`time_wait`): neither takes a slot.

pub(crate) mod arrival;
pub(crate) mod cc;
pub(crate) mod connection_stats;
pub(crate) mod deadlines;
pub(crate) mod ecn;
pub(crate) mod endpoints;
pub(crate) mod extension;
pub(crate) mod flags;
pub(crate) mod handover;
pub(crate) mod info;
pub(crate) mod input;
pub(crate) mod model;
pub(crate) mod open;
pub(crate) mod recv;
pub(crate) mod send;
pub(crate) mod sequence;
pub(crate) mod slots;
pub(crate) mod syn_sent;
pub(crate) mod time_wait;
pub(crate) mod timer_kind;
pub(crate) mod timers;

use crate::error::Error;
use crate::flow::FlowKey;
use crate::frame::IfaceId;
use crate::frame_queue::FrameQueue;
use crate::net::neigh::PathId;
use crate::seq::SeqNum;
use crate::slab::NIL;
use crate::socket::info::TcpInfo;
use crate::socket::options::{RECEIVE_BUFFER_MIN, TcpState};
use alloc::boxed::Box;
use endpoints::Endpoints;
use extension::{Ext, Extension, Recovery};
use flags::Flags;
use send::buffer::TxQueue;
use send::loss::Loss;
use send::rto::RttEstimator;
use send::sender::Starved;
use sequence::{ReceiveSequence, SendSequence, TsRecent};
use timer_kind::TimerTick;

/// Synchronized states of RFC 9293 3.3.2 that need a control block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
}

impl State {
    /// Returns true if the peer may still send data.
    #[inline]
    pub(crate) fn can_receive(self) -> bool {
        matches!(self, State::Established | State::FinWait1 | State::FinWait2)
    }

    /// Returns true if the local side may still send data.
    #[inline]
    pub(crate) fn can_send(self) -> bool {
        matches!(self, State::Established | State::CloseWait)
    }
}

impl From<State> for TcpState {
    fn from(state: State) -> TcpState {
        match state {
            State::Established => TcpState::Established,
            State::FinWait1 => TcpState::FinWait1,
            State::FinWait2 => TcpState::FinWait2,
            State::CloseWait => TcpState::CloseWait,
            State::Closing => TcpState::Closing,
            State::LastAck => TcpState::LastAck,
        }
    }
}

/// The hot control block: two cache lines, the first for received segments, the second for sending.
/// Names are RFC 9293's.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Tcb {
    // ---- line 0: receiving
    pub(crate) ends: Endpoints,
    generation: u32,
    pub(crate) rcv: ReceiveSequence,
    pub(crate) snd: SendSequence,
    pub(crate) ts_recent: TsRecent,
    /// Data received and not yet read.
    pub(crate) rx: FrameQueue,
    /// Window shifts: ours in the low, the peer's in the high four bits.
    shifts: u8,
    dup_acks: u8,
    /// Size of the peer's segments, in units of 64 bytes, rounded up: see [`Tcb::rcv_mss`].
    rcv_mss_64: u8,
    pub(crate) state: State,
    // ---- line 1: sending
    pub(crate) flags: Flags,
    /// Unacknowledged and unsent data.
    pub(crate) tx: TxQueue,
    pub(crate) window: cc::Window,
    pub(crate) rtt: RttEstimator,
    /// Expiry of the timer named by [`Flags::timer`].
    timer: TimerTick,
    /// Tick of this connection's entry in the wheel; 0: none.
    armed_at: u32,
    /// Largest payload of a sent segment that carries only the options of every segment.
    pub(crate) mss: u16,
    /// Consecutive timeouts.
    backoff: u8,
    /// Route epoch in which `path` was looked up. After exactly 256 changes without a packet the
    /// epoch appears current; the path is then looked up again after `R1` timeouts.
    pub(crate) route_epoch: u8,
    pub(crate) path: PathId,
    /// Size of the receive buffer in KiB: see [`Tcb::rcv_buf`].
    rcv_buf_k: u16,
    /// Bytes received in order since our last ACK; 65535 stands for more. RCV.NXT minus this is RFC
    /// 7323's Last.ACK.sent.
    unacked: u16,
    /// IPv6 addresses, and everything rare; allocated on first use.
    pub(crate) ext: Extension,
}

/// A closed connection whose handle is still held. The application can read the remaining data,
/// then the error, then end of stream.
#[derive(Debug)]
pub(crate) struct Dead {
    pub(crate) key: FlowKey,
    /// See `TcpOptions::device`.
    pub(crate) device: Option<IfaceId>,
    pub(crate) generation: u32,
    pub(crate) rx: FrameQueue,
    /// The peer's FIN was received: end of stream comes before the error, which writing will
    /// return.
    pub(crate) finished: bool,
    pub(crate) error: Option<Error>,
    /// TCP_INFO at the end, if the connection was established.
    pub(crate) info: Option<Box<TcpInfo>>,
}

impl Dead {
    /// Returns the result of a read when no data is left.
    pub(crate) fn at_end(&mut self) -> Result<(), Error> {
        if self.finished { Ok(()) } else { self.error.take().map_or(Ok(()), Err) }
    }
}

/// A connection's slot: see the module's documentation.
#[derive(Debug)]
pub(crate) enum Slot {
    Open(Tcb),
    SynSent(Box<syn_sent::SynSent>),
    Dead(Box<Dead>),
    Free { next: u32, generation: u32 },
}

const _: () = assert!(size_of::<Tcb>() == 128);
const _: () = assert!(size_of::<Slot>() == 128);

impl Slot {
    pub(crate) fn generation(&self) -> u32 {
        match self {
            Slot::Open(tcb) => tcb.generation,
            Slot::SynSent(s) => s.generation,
            Slot::Dead(d) => d.generation,
            Slot::Free { generation, .. } => *generation,
        }
    }
}

impl Tcb {
    #[inline(always)]
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// Sets the slot's generation.
    pub(crate) fn set_generation(&mut self, generation: u32) {
        self.generation = generation;
    }

    /// Resets the loss indications: all data in flight has arrived.
    #[inline(always)]
    pub(crate) fn no_trouble(&mut self) {
        (self.backoff, self.dup_acks) = (0, 0);
    }

    /// Returns true if all in-order data is acknowledged.
    #[inline(always)]
    pub(crate) fn owes_no_bytes(&self) -> bool {
        self.unacked == 0
    }

    /// Returns the tick of its entry in the wheel; 0: none.
    #[inline(always)]
    pub(crate) fn armed_at(&self) -> u32 {
        self.armed_at
    }

    /// Records that it has no entry in the wheel any more.
    pub(crate) fn disarm(&mut self) {
        self.armed_at = 0;
    }

    #[inline]
    pub(crate) fn key(&self) -> FlowKey {
        if self.flags.has(Flags::V6) { self.ends.v6_key(&self.ext.addresses()) } else { self.ends.v4_key() }
    }

    /// Returns the flow label of RFC 6437.
    #[inline]
    pub(crate) fn flow_label(&self) -> u32 {
        if !self.flags.has(Flags::V6) {
            return 0;
        }
        self.ext.flow_label()
    }

    #[inline]
    pub(crate) fn is(&self, key: &FlowKey) -> bool {
        match *key {
            FlowKey::V4 { local, remote, local_port, remote_port } => {
                self.ends.are_v4(local, remote, local_port, remote_port) && !self.flags.has(Flags::V6)
            }
            FlowKey::V6 { .. } => self.flags.has(Flags::V6) && self.key() == *key,
        }
    }

    #[inline]
    pub(crate) fn rcv_shift(&self) -> u8 {
        self.shifts & 15
    }

    #[inline]
    pub(crate) fn snd_shift(&self) -> u8 {
        self.shifts >> 4
    }

    /// Returns the largest window that the peer has offered: Max(SND.WND) of RFC 9293 3.8.6.2.1.
    #[inline]
    pub(crate) fn max_snd_wnd(&self) -> u32 {
        self.snd.max_wnd(self.snd_shift())
    }

    /// Returns the sequence number of a segment without text: SND.NXT, but not beyond the peer's
    /// window, which may have shrunk (Linux: `tcp_acceptable_seq`). Beyond it the segment would be
    /// dropped.
    #[inline]
    pub(crate) fn acceptable_seq(&self) -> SeqNum {
        self.snd.acceptable(self.snd_shift())
    }

    /// Returns RCV.WND as last offered.
    #[inline]
    pub(crate) fn rcv_wnd(&self) -> u32 {
        self.rcv.wnd()
    }

    /// Returns the estimate of the bytes in the network: RFC 6675's pipe.
    #[inline]
    pub(crate) fn flight(&self) -> u32 {
        let out = self.snd.outstanding();
        match self.ext.as_ref() {
            None => out,
            Some(e) => (out + e.retransmitted).saturating_sub(e.sacked + e.lost),
        }
    }

    #[inline]
    pub(crate) fn ext_mut(&mut self) -> &mut Ext {
        self.ext.get_or_make()
    }

    #[inline]
    pub(crate) fn recovery(&self) -> Recovery {
        self.ext.as_ref().map_or(Recovery::Open, |e| e.recovery)
    }

    /// Returns the size of the receive buffer in bytes, which determines the window.
    #[inline]
    pub(crate) fn rcv_buf(&self) -> u32 {
        self.rcv_buf_k as u32 * 1024
    }

    /// Sets the receive buffer, in whole KiB: at least 2, at most what the negotiated scale can
    /// offer.
    pub(crate) fn set_rcv_buf(&mut self, bytes: u32) {
        let bytes = bytes.clamp(RECEIVE_BUFFER_MIN, (0xffff << self.rcv_shift()).max(RECEIVE_BUFFER_MIN));
        self.rcv_buf_k = bytes.div_ceil(1024).min(u16::MAX as u32) as u16;
    }

    #[inline]
    pub(crate) fn snd_buf(&self) -> u32 {
        self.snd.buffer()
    }

    /// Returns the fill level of the send buffer above which it is not writable: two thirds, as
    /// Linux's `sk_stream_is_writeable`.
    #[inline]
    pub(crate) fn write_mark(&self) -> u32 {
        self.snd_buf() / 3 * 2
    }

    /// Returns true if the application may write.
    #[inline(always)]
    pub(crate) fn writable(&self) -> bool {
        self.tx.bytes <= self.write_mark() && self.below_low_water() && !self.waits_for_frames()
    }

    /// Returns true if a write would be refused for lack of frames. A connection that waits for some
    /// has an extension.
    #[inline(always)]
    fn waits_for_frames(&self) -> bool {
        let Some(ext) = self.ext.as_ref() else { return false };
        let least = self.tx.bytes == 0 && self.snd.wnd() > 0;
        ext.sender.starved == Starved::Waits || self.flags.has(Flags::WAITS_FOR_POOL) && !least
    }

    /// Returns true if unsent segments are queued (data or FIN).
    #[inline]
    pub(crate) fn has_unsent(&self) -> bool {
        self.tx.next != NIL
    }

    /// Returns true if ABORT sends a reset (RFC 9293 3.10.5): unless both sides have closed and all
    /// our data was sent (as Linux).
    pub(crate) fn abort_resets(&self) -> bool {
        !matches!(self.state, State::Closing | State::LastAck) || self.has_unsent()
    }

    /// Returns the state of loss recovery, allocated on first use. Its smallest round trip starts
    /// with the smoothed one.
    pub(crate) fn loss_mut(&mut self) -> &mut Loss {
        let srtt = self.rtt.srtt_us();
        self.ext_mut().loss.get_or_insert_with(|| {
            let mut loss = Box::<Loss>::default();
            loss.rack.sample(srtt, 0);
            loss
        })
    }

    #[inline]
    pub(crate) fn loss(&self) -> Option<&Loss> {
        self.ext.as_ref().and_then(|e| e.loss.as_deref())
    }

    /// Returns the state of loss recovery, if allocated.
    #[inline]
    pub(crate) fn loss_if_any(&mut self) -> Option<&mut Loss> {
        self.ext.as_mut().and_then(|e| e.loss.as_deref_mut())
    }
}
