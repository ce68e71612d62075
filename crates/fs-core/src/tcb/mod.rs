//! One connection: its control block and its state machine.
//!
//! A connection's slot is an enum, one payload per stage of its life; a transition takes the old payload
//! out and puts the new one in:
//!
//! `SynSent` (active open) → `Open` (synchronized states) → `Dead` (over, but the application still holds
//! its handle) → `Free`. A passive open is an entry of the SYN cache (`rx::syn`) until its final
//! ACK, and TIME-WAIT is a compact record (`time_wait`): neither costs a slot.

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
    /// The peer may still send data.
    #[inline]
    pub(crate) fn can_receive(self) -> bool {
        matches!(self, State::Established | State::FinWait1 | State::FinWait2)
    }

    /// We may still send data.
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

/// The hot control block: two cache lines, the first for what a received segment needs, the second for
/// what sending needs. Names are RFC 9293's.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Tcb {
    // ---- line 0: receiving
    pub(crate) ends: Endpoints,
    generation: u32,
    pub(crate) rcv: ReceiveSequence,
    pub(crate) snd: SendSequence,
    pub(crate) ts_recent: TsRecent,
    /// Received and not yet read.
    pub(crate) rx: FrameQueue,
    /// Window shifts: ours in the low, the peer's in the high four bits.
    shifts: u8,
    dup_acks: u8,
    /// Size of the segments that the peer sends, in units of 64 bytes, rounded up: see [`Tcb::rcv_mss`].
    rcv_mss_64: u8,
    pub(crate) state: State,
    // ---- line 1: sending
    pub(crate) flags: Flags,
    /// Sent and not acknowledged, and not yet sent.
    pub(crate) tx: TxQueue,
    pub(crate) window: cc::Window,
    pub(crate) rtt: RttEstimator,
    /// When the timer fires that [`Flags::timer`] names.
    timer: TimerTick,
    /// Tick for which an entry of this connection is in the wheel; 0 = none.
    armed_at: u32,
    /// Largest payload that we send in one segment with our options of every segment.
    pub(crate) mss: u16,
    /// Consecutive time-outs.
    backoff: u8,
    /// Route epoch in which `path` was looked up. Who was silent for 256 changes exactly takes it for the present one, and looks
    /// again after `R1` time-outs.
    pub(crate) route_epoch: u8,
    pub(crate) path: PathId,
    /// Bytes that the receive queue may hold, in KiB: see [`Tcb::rcv_buf`].
    rcv_buf_k: u16,
    /// Bytes received in order since our last ACK; 65535 stands for more. RCV.NXT less these is RFC 7323's
    /// Last.ACK.sent.
    unacked: u16,
    /// IPv6 addresses, and everything rare; allocated when first needed.
    pub(crate) ext: Extension,
}

/// The connection is over; what was received can still be read, then the error, then end of stream.
#[derive(Debug)]
pub(crate) struct Dead {
    pub(crate) key: FlowKey,
    /// See `TcpOptions::device`.
    pub(crate) device: Option<IfaceId>,
    pub(crate) generation: u32,
    pub(crate) rx: FrameQueue,
    /// The peer's FIN was received: end of stream comes before the error, which writing will tell.
    pub(crate) finished: bool,
    pub(crate) error: Option<Error>,
    /// TCP_INFO at its end, if it had opened.
    pub(crate) info: Option<Box<TcpInfo>>,
}

impl Dead {
    /// What a reader gets when nothing is left to read.
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

    /// It is in a slot of that generation from here on.
    pub(crate) fn set_generation(&mut self, generation: u32) {
        self.generation = generation;
    }

    /// What was out has arrived, without any sign of loss.
    #[inline(always)]
    pub(crate) fn no_trouble(&mut self) {
        (self.backoff, self.dup_acks) = (0, 0);
    }

    /// All that came in order is acknowledged.
    #[inline(always)]
    pub(crate) fn owes_no_bytes(&self) -> bool {
        self.unacked == 0
    }

    /// Tick for which an entry of it is in the wheel; 0: none.
    #[inline(always)]
    pub(crate) fn armed_at(&self) -> u32 {
        self.armed_at
    }

    /// There is no entry of it in the wheel any more.
    pub(crate) fn disarm(&mut self) {
        self.armed_at = 0;
    }

    #[inline]
    pub(crate) fn key(&self) -> FlowKey {
        if self.flags.has(Flags::V6) { self.ends.v6_key(&self.ext.addresses()) } else { self.ends.v4_key() }
    }

    /// RFC 6437.
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

    /// Largest window the peer has offered: Max(SND.WND) of RFC 9293 3.8.6.2.1.
    #[inline]
    pub(crate) fn max_snd_wnd(&self) -> u32 {
        self.snd.max_wnd(self.snd_shift())
    }

    /// The sequence number of a segment without text: SND.NXT, but no more than the peer's window has, which may
    /// have shrunk (Linux: `tcp_acceptable_seq`). Beyond it the segment would be dropped.
    #[inline]
    pub(crate) fn acceptable_seq(&self) -> SeqNum {
        self.snd.acceptable(self.snd_shift())
    }

    /// RCV.WND as last offered.
    #[inline]
    pub(crate) fn rcv_wnd(&self) -> u32 {
        self.rcv.wnd()
    }

    /// Bytes of the send queue that are thought to be in the network: RFC 6675's pipe.
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

    /// Bytes that the receive queue may hold; what the window is made of.
    #[inline]
    pub(crate) fn rcv_buf(&self) -> u32 {
        self.rcv_buf_k as u32 * 1024
    }

    /// Sets the receive buffer, to whole KiB: at least 2, at most what the agreed scale can offer.
    pub(crate) fn set_rcv_buf(&mut self, bytes: u32) {
        let bytes = bytes.clamp(RECEIVE_BUFFER_MIN, (0xffff << self.rcv_shift()).max(RECEIVE_BUFFER_MIN));
        self.rcv_buf_k = bytes.div_ceil(1024).min(u16::MAX as u32) as u16;
    }

    #[inline]
    pub(crate) fn snd_buf(&self) -> u32 {
        self.snd.buffer()
    }

    /// Bytes in the send buffer above which the application waits: two thirds, as Linux's `sk_stream_is_writeable`.
    #[inline]
    pub(crate) fn write_mark(&self) -> u32 {
        self.snd_buf() / 3 * 2
    }

    /// The application may write.
    #[inline(always)]
    pub(crate) fn writable(&self) -> bool {
        self.tx.bytes <= self.write_mark() && self.below_low_water()
    }

    /// Sequence number after the last one queued (data and FIN).
    #[inline]
    pub(crate) fn has_unsent(&self) -> bool {
        self.tx.next != NIL
    }

    /// RFC 9293 3.10.5: ABORT tells the peer, but where both have closed; and then if not all of ours has left (as Linux).
    pub(crate) fn abort_resets(&self) -> bool {
        !matches!(self.state, State::Closing | State::LastAck) || self.has_unsent()
    }

    /// Loss recovery's memory, made when first needed. Its smallest round trip starts with the smoothed one.
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

    /// As `loss_mut`, where trouble has not begun if there is none.
    #[inline]
    pub(crate) fn loss_if_any(&mut self) -> Option<&mut Loss> {
        self.ext.as_mut().and_then(|e| e.loss.as_deref_mut())
    }
}
